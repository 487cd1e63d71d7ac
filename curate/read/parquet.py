"""Parquet files: columns are fields, rows are records; a row group is the unit in which files are cut and faults are contained."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from curate.read.batch import BATCH_ROWS, first_line, take_batch
from curate.read.blocks import BrokenFile, compression, unpacked
from curate.read.intake import Intake
from curate.read.piece import Piece
from curate.read.remote import open_place


def cut_parquet(piece: Piece, location: str, shard_bytes: int) -> Iterator[tuple[Piece, int]]:
    """Cut a file larger than a shard between row groups.

    Yields:
        Parts with their bytes before compression; a small file is taken as it is, unopened.
    """
    if piece.size <= shard_bytes // 8:
        yield piece, piece.size
        return
    try:
        with open_place(location) as file:
            metadata = pq.read_metadata(file)
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
        opened = _plain(file)
    except BrokenFile as error:
        intake.refuse_file(error.reason, error.detail, piece.size)
        return
    try:
        table = pq.ParquetFile(opened)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        intake.refuse_file("unreadable_file", f"not a Parquet file: {first_line(error)}", piece.size)
        return
    number = piece.first
    stop = table.num_row_groups if piece.stop is None else piece.stop
    # What a file's footer says of single columns is not asked for: where it is damaged, Arrow ends the process.
    sizes = [max(0, table.metadata.row_group(group).total_byte_size) for group in range(table.num_row_groups)]
    before, whole = [0, *itertools.accumulate(sizes)], max(1, sum(sizes))
    for group in range(piece.start, stop):
        metadata = table.metadata.row_group(group)
        # Bytes on the disk, by the group's share of what all come to unpacked.
        intake.input_bytes += piece.size * before[group + 1] // whole - piece.size * before[group] // whole
        done = number
        try:
            for batch in table.iter_batches(BATCH_ROWS, row_groups=[group], use_threads=False):
                take_batch(intake, batch, done)
                done += batch.num_rows
                yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            lost = f"row group {group}, {number + metadata.num_rows - done} rows from {done}"
            intake.refuse_file("unreadable_file", f"{lost}: {first_line(error)}", metadata.total_byte_size)
        number += metadata.num_rows


def _plain(file: BinaryIO) -> BinaryIO:
    """The file, or what is packed in it as a temporary file without a name: a Parquet file is read from its end.

    Raises:
        BrokenFile: the packed stream is damaged or cut short.
        OSError: the disk has no room for what is packed.
    """
    packed = compression(file.read(4))
    file.seek(0)
    if packed is None:
        return file
    whole = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(unpacked(file), whole)
    return whole
