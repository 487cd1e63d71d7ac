"""CSV and its kin: the first row names the fields, quoted values may span lines, and a bad row costs only itself."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from typing import BinaryIO

from curate.read.blocks import BrokenFile, blocks, lines
from curate.read.intake import Intake
from curate.read.jsonl import BYTE_ORDER_MARK
from curate.read.piece import Piece

DELIMITERS = ",\t;|"
"""The one that is most frequent in the first line is taken; the earlier one of equals."""


def read_csv(intake: Intake, piece: Piece, file: BinaryIO) -> Iterator[None]:
    """Take the rows after the first; blank rows are no records, and empty values but the text are left out."""
    intake.input_bytes += piece.size
    number = 0
    before = csv.field_size_limit(intake.max_bytes)
    try:
        text = _Text(blocks(file), 4 * intake.max_bytes + (1 << 20))
        first = next(text, "")
        rows = csv.reader(itertools.chain([first], text), delimiter=max(DELIMITERS, key=first.count))
        names = _header(rows)
        text.begin_row()
        while True:
            try:
                values = next(rows, None)
            except csv.Error as error:
                reason = "too_large" if "limit" in str(error) else "broken_csv"
                intake.records += 1
                intake.refuse(number, reason, str(error), text.size)
            else:
                if values is None:
                    break
                if values or text.oversized:
                    intake.records += 1
                    _take(intake, names, values, number, text)
                else:
                    number -= 1
            number += 1
            text.begin_row()
            yield
    except BrokenFile as error:
        intake.refuse_file(error.reason, f"{error.detail}; after {number} rows", piece.size)
    finally:
        csv.field_size_limit(before)


class _Text:
    """Lines as text for the parser; remembers what its current row was made of."""

    def __init__(self, content: Iterator[bytes], limit: int) -> None:
        self._lines = itertools.chain.from_iterable(lines(content, limit))
        self._mark = BYTE_ORDER_MARK
        self.begin_row()

    def begin_row(self) -> None:
        """Forget the row before: its raw bytes, an over-long line or bytes that are not UTF-8 in it."""
        self.size = 0
        self.oversized = False
        self.undecodable = ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        if isinstance(line, int):
            self.size += line
            self.oversized = True
            return "\n"
        self.size += len(line) + 1
        line, self._mark = line.removeprefix(self._mark), b""
        try:
            return line.decode() + "\n"
        except UnicodeDecodeError as error:
            self.undecodable = error.reason
            return line.decode("utf-8", "replace") + "\n"


def _header(rows: Iterator[list[str]]) -> list[str]:
    """Names of the fields.

    Raises:
        BrokenFile: there is none, or two are the same.
    """
    try:
        names = next(rows, [])
    except csv.Error as error:
        raise BrokenFile("unreadable_file", f"the first row is not one of names: {error}") from error
    if not any(names) or len(set(names)) < len(names):
        raise BrokenFile("unreadable_file", "the first row does not name the fields, each with a name of its own")
    return names


def _take(intake: Intake, names: list[str], values: list[str], number: int, text: _Text) -> None:
    if text.oversized:
        intake.refuse(number, "too_large", f"{text.size:,} bytes, max_document_bytes = {intake.max_bytes:,}", text.size)
    elif text.undecodable:
        intake.refuse(number, "invalid_utf8", text.undecodable, text.size)
    elif len(values) != len(names):
        intake.refuse(number, "wrong_columns", f"{len(values)} values for {len(names)} fields", text.size)
    else:
        named = zip(names, values, strict=True)
        intake.take({name: value for name, value in named if value or name == intake.text_field}, number, text.size)
