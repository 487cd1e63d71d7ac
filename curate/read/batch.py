"""Rows of Arrow batches as records: columns are fields, and a value that cannot be read costs only its own row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from curate.read.intake import Intake

BATCH_ROWS = 1024
"""Rows turned into Python values at once."""


def first_line(error: Exception) -> str:
    """An error's message without the places in memory and on disk that follow it."""
    return str(error).partition("\n")[0]


def take_batch(intake: Intake, batch: pa.RecordBatch, first: int) -> None:
    """Take the rows of an Arrow batch; ``first`` is the physical number of its first row."""
    names = batch.schema.names
    intake.records += batch.num_rows
    size = batch.nbytes // max(batch.num_rows, 1)
    try:
        columns = [column.to_pylist() for column in batch.columns]
    except (UnicodeDecodeError, ValueError, OverflowError):
        _take_singly(intake, batch, first, size)
        return
    for number, values in enumerate(zip(*columns, strict=True), first):
        _take_row(intake, dict(zip(names, values, strict=True)), number, size)


def _take_singly(intake: Intake, batch: pa.RecordBatch, first: int, size: int) -> None:
    """Take a batch some value of which Python cannot hold: only that value is lost, and the record only when it is text."""
    for row in range(batch.num_rows):
        record: dict[str, Any] = {}
        fault = None
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                record[name] = column[row].as_py()
            except UnicodeDecodeError as error:
                fault = f"{name!r}: {error.reason} at byte {error.start}"
            except (ValueError, OverflowError):  # a time beyond Python's years or finer than its microseconds
                record[name] = str(column[row].cast(pa.string()))
        if fault is None:
            _take_row(intake, record, first + row, size)
        else:
            intake.refuse(first + row, "invalid_utf8", fault, size)


def _take_row(intake: Intake, record: dict[str, Any], number: int, size: int) -> None:
    """Take one row; text that a writer left marked as bytes is decoded, null columns but the text are left out."""
    text = record.get(intake.text_field)
    if isinstance(text, bytes):
        try:
            record[intake.text_field] = text.decode()
        except UnicodeDecodeError as error:
            intake.refuse(number, "invalid_utf8", f"{error.reason} at byte {error.start}", size)
            return
    for name in [name for name, value in record.items() if value is None and name != intake.text_field]:
        del record[name]
    intake.take(record, number, size)
