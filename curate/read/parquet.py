"""Parquet files: columns are fields, rows are records; a row group is the unit in which files are cut and faults are contained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from curate.read.intake import Intake
from curate.read.piece import Piece

BATCH_ROWS = 1024


def cut_parquet(piece: Piece, location: str, shard_bytes: int) -> Iterator[tuple[Piece, int]]:
    """Cut a file larger than a shard between row groups.

    Yields:
        Parts with their bytes before compression; a small file is taken as it is, unopened.
    """
    if piece.size <= shard_bytes // 8:
        yield piece, piece.size
        return
    try:
        metadata = pq.read_metadata(location)
    except (pa.ArrowException, OSError):
        yield piece, piece.size  # read_parquet says what is wrong with it
        return
    sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
    if sum(sizes) <= shard_bytes:
        yield piece, sum(sizes)
        return
    start = first = total = rows = 0
    for group, size in enumerate(sizes):
        if group > start and total + size > shard_bytes:
            yield piece._replace(start=start, stop=group, first=first), total
            start, first, total = group, rows, 0
        total += size
        rows += metadata.row_group(group).num_rows
    yield piece._replace(start=start, stop=len(sizes), first=first), total


def read_parquet(intake: Intake, piece: Piece, file: BinaryIO) -> Iterator[None]:
    """Take the rows of a file, or of its row groups from ``piece.start`` to ``piece.stop``."""
    try:
        table = pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        intake.refuse_file("unreadable_file", f"not a Parquet file: {first_line(error)}", piece.size)
        return
    number = piece.first
    stop = table.num_row_groups if piece.stop is None else piece.stop
    for group in range(piece.start, stop):
        metadata = table.metadata.row_group(group)
        intake.input_bytes += sum(metadata.column(column).total_compressed_size for column in range(metadata.num_columns))
        done = number
        try:
            for batch in table.iter_batches(BATCH_ROWS, row_groups=[group], use_threads=False):
                take_batch(intake, batch, done)
                done += batch.num_rows
                yield
        except (pa.ArrowException, OSError) as error:
            lost = f"row group {group}, {number + metadata.num_rows - done} rows from {done}"
            intake.refuse_file("unreadable_file", f"{lost}: {first_line(error)}", metadata.total_byte_size)
        number += metadata.num_rows


def first_line(error: Exception) -> str:
    """An error's message without the places in memory and on disk that follow it."""
    return str(error).partition("\n")[0]


def take_batch(intake: Intake, batch: pa.RecordBatch, first: int) -> None:
    """Take the rows of an Arrow batch; ``first`` is the physical number of its first row."""
    intake.records += batch.num_rows
    size = batch.nbytes // max(batch.num_rows, 1)
    try:
        columns = [column.to_pylist() for column in batch.columns]
    except (UnicodeDecodeError, ValueError, OverflowError):
        _take_singly(intake, batch, first, size)
        return
    names = batch.schema.names
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
