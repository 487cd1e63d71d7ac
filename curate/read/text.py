"""Text files: a document per file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from curate.read.blocks import BrokenFile, blocks
from curate.read.intake import Intake
from curate.read.jsonl import BYTE_ORDER_MARK
from curate.read.piece import Piece


def read_text(intake: Intake, piece: Piece, file: BinaryIO) -> Iterator[None]:
    """Take the whole file as record 0; half a document is none, so a broken file is set aside."""
    intake.records += 1
    take_text(intake, piece, file)
    yield


def take_text(intake: Intake, piece: Piece, file: BinaryIO, **more: str) -> None:
    """Take a file's text with more fields, or set it aside; no more than the largest document is held."""
    intake.input_bytes += piece.size
    held: list[bytes] = []
    size = 0
    try:
        for block in blocks(file):
            held.append(block)
            size += len(block)
            if size > intake.max_bytes + len(BYTE_ORDER_MARK):
                intake.refuse(0, "too_large", f"more than max_document_bytes = {intake.max_bytes:,}", piece.size)
                return
        text = b"".join(held).removeprefix(BYTE_ORDER_MARK).decode()
    except BrokenFile as error:
        intake.refuse(0, error.reason, error.detail, piece.size)
    except UnicodeDecodeError as error:
        intake.refuse(0, "invalid_utf8", f"{error.reason} at byte {error.start}", piece.size)
    else:
        intake.take({intake.text_field: text, **more}, 0, piece.size)
