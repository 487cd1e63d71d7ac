"""Arrow IPC, stream or file, packed or not, read from front to back; and the folders of it that ``datasets.save_to_disk`` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from curate.read.batch import BATCH_ROWS, first_line, take_batch
from curate.read.blocks import BrokenFile, unpacked
from curate.read.intake import Intake
from curate.read.parquet import read_parquet
from curate.read.piece import Piece
from curate.read.remote import is_file, open_place
from schemas.errors import InputError

MAGIC = b"ARROW1"
"""A file begins with it, padded to eight bytes, then holds a stream and a footer, and ends with it."""


def read_arrow(intake: Intake, piece: Piece, file: BinaryIO) -> Iterator[None]:
    """Take the rows of all batches; what comes before a break is kept."""
    intake.input_bytes += piece.size
    number = 0
    try:
        content = unpacked(file)
        has_footer = content.peek(len(MAGIC)).startswith(MAGIC)
        if has_footer:
            content.read(8)
        for batch in pa.ipc.open_stream(content):
            _check(batch)
            for start in range(0, batch.num_rows, BATCH_ROWS):
                part = batch.slice(start, BATCH_ROWS)
                take_batch(intake, part, number)
                number += part.num_rows
                yield
        if has_footer and not content.read().endswith(MAGIC):
            raise BrokenFile("truncated_file", "the footer is missing")
    except BrokenFile as error:
        intake.refuse_file(error.reason, f"{error.detail}; after {number} rows", piece.size)
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:  # a name that is no text, a length that lies
        intake.refuse_file("unreadable_file", f"{first_line(error)}; after {number} rows", piece.size)


def read_saved(intake: Intake, piece: Piece, file: BinaryIO) -> Iterator[None]:
    """Take the rows of a file that ``datasets`` saved, or of one of those in Parquet that the Hub makes of a dataset."""
    is_parquet = file.read(4) == b"PAR1"
    file.seek(0)
    return (read_parquet if is_parquet else read_arrow)(intake, piece, file)


def _check(batch: pa.RecordBatch) -> None:
    """Refuse a batch whose buffers lie, which would be read out of bounds; text that is not UTF-8 is left to its row.

    Raises:
        pa.ArrowInvalid: offsets or lengths are wrong.
    """
    for column in batch.columns:
        binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(column.type)
        (column if binary is None else column.view(binary)).validate(full=True)


def saved_files(source: str, folders: list[str]) -> list[str]:
    """Files that make up folders saved by ``datasets``, here or in a store, split by split; other files in them, such as caches, are not.

    Raises:
        InputError: a folder is no saved dataset.
    """
    return [file for number, folder in enumerate(folders) for file in _saved(folder.rstrip("/"), f"sources.{source}.paths[{number}]")]


def _saved(folder: str, where: str) -> Iterator[str]:
    try:
        if is_file(f"{folder}/dataset_dict.json"):
            for split in _json(f"{folder}/dataset_dict.json")["splits"]:
                yield from _saved(f"{folder}/{split}", where)
        else:
            for file in _json(f"{folder}/state.json")["_data_files"]:
                yield f"{folder}/{file['filename']}"
    except FileNotFoundError as error:
        raise InputError(
            f"{folder!r} is no folder that datasets' save_to_disk wrote (no state.json)",
            where=where,
            fix="for a folder of Parquet, JSON lines, CSV or Arrow files use the reader of that name",
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder!r} has a state that cannot be read: {error!r}", where=where, fix="save the dataset again") from error


def _json(place: str) -> Any:
    if not is_file(place):
        raise FileNotFoundError(place)
    with open_place(place) as file:
        return json.load(file)
