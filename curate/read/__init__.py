"""Readers: files of any supported kind to documents and quarantine, in shards that do not depend on who reads them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.read.arrow import read_arrow, read_saved, saved_files
from curate.read.delimited import read_csv
from curate.read.files import Located, batches, find_files
from curate.read.hub import converted
from curate.read.intake import Intake
from curate.read.jsonl import cut_jsonl, read_jsonl
from curate.read.parquet import cut_parquet, read_parquet
from curate.read.piece import Piece
from curate.read.python import find_python, interpreter, read_python
from curate.read.remote import HUB, open_place
from curate.read.text import read_text
from curate.read.warc import read_warc
from curate.step import Shard, ShardWriter
from curate.tombstones import blanked, read_tombstones
from schemas.errors import InputError
from schemas.sources import Source
from schemas.tables import DOCUMENTS

READ_VERSION = 2
"""Raise it whenever the same input gives other documents or quarantine rows."""

SETTINGS = ("reader", "text_field", "id_field", "url_field", "date_field", "license_field", "max_document_bytes")
"""Fields of a source that decide what its documents are."""

Json = Any
Reader = Callable[[Intake, Piece, BinaryIO], Iterator[None]]
Cutter = Callable[[Piece, str, int], Iterable[tuple[Piece, int]]]

_READERS: dict[str, Reader] = {
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "datasets": read_saved,
    "csv": read_csv,
    "warc": read_warc,
    "text": read_text,
    "python": read_python,
}
_CUTTERS: dict[str, Cutter] = {"jsonl": cut_jsonl, "parquet": cut_parquet, "datasets": cut_parquet}


def reader_settings(source: Source) -> dict[str, Json]:
    """The settings of a source that its reader reads."""
    return {name: getattr(source, name) for name in SETTINGS}


def list_shards(name: str, source: Source, shard_bytes: int) -> list[Shard]:
    """Find a source's files and cut them into shards.

    Raises:
        InputError: a pattern matches no file, or all files are empty.
    """
    return cut_shards(name, source, *locate(name, source), shard_bytes)


def locate(name: str, source: Source, *, none: bool = False) -> tuple[list[Located], Json]:
    """A source's files in the order of their paths, and what else its documents depend on; by choice there may be none.

    Raises:
        InputError: a pattern matches no file, or all files are empty.
    """
    if source.reader == "python":
        located: list[Located] = find_python(source.parts)
        if not located:
            raise InputError(
                f"this Python has no files for parts {source.parts}",
                where=f"sources.{name}.parts",
                fix="install packages beside it, or choose other parts",
            )
        return located, interpreter()
    paths, only = source.paths, None
    if source.reader == "datasets" and all(path.startswith(HUB) for path in paths):
        paths = [converted(path) for path in paths]
    elif source.reader == "datasets":
        only = saved_files(name, paths)
    return find_files(name, paths, only, none=none), None


def cut_shards(name: str, source: Source, located: Iterable[Located], more: Json, shard_bytes: int, first: int = 0) -> list[Shard]:
    """Cut files into shards: consecutive ones up to about ``shard_bytes`` on the disk, numbered from ``first``.

    A larger file is a shard of its own; plain JSON lines are cut at line ends and Parquet between row groups.
    """
    cut = _CUTTERS.get(source.reader, _whole)
    pieces = ((part, location, size) for piece, location in located for part, size in cut(piece, location, shard_bytes))
    return [shard_of(f"{name}/{number:05d}", source, more, batch) for number, batch in enumerate(batches(pieces, shard_bytes), start=first)]


def shard_of(label: str, source: Source, more: Json, batch: Sequence[Located]) -> Shard:
    """The shard of a source that reads some pieces."""
    name, settings, pieces = label.partition("/")[0], reader_settings(source), [list(piece) for piece, _ in batch]
    task = {"source": name, "settings": settings, "pieces": pieces, "places": [place for _, place in batch]}
    return Shard(label, [name, settings, more, pieces], task, sum(piece.size for piece, _ in batch))


def _whole(piece: Piece, location: str, shard_bytes: int) -> Iterable[tuple[Piece, int]]:
    return [(piece, piece.size)]


def read_shard(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    """Read the files of a shard into one documents file, a row group at a time, and a quarantine file.

    Args:
        writer: publishes the tables.
        task: a task of ``list_shards``.

    Returns:
        records (good or bad), documents, quarantined (records), broken_files (faults of whole files), bytes_in (UTF-8 bytes of documents'
        texts) and input_bytes (bytes of files on the disk).
    """
    intake = Intake(task["source"], task["settings"])
    groups = _groups(intake, _READERS[task["settings"]["reader"]], [Piece(*piece) for piece in task["pieces"]], task["places"])
    tombstones = read_tombstones(writer.root)
    if len(tombstones):
        groups = _forgetting(intake, groups, tombstones)
    first = next(groups, None)
    if first is not None:
        writer.publish("documents", "parquet", lambda path: _write(path, itertools.chain([first], groups)))
        writer.files["documents"] = replace(writer.files["documents"], rows=intake.documents)
    writer.table("quarantine", intake.quarantine())
    return intake.counts()


def _forgetting(intake: Intake, groups: Iterable[pa.Table], tombstones: pa.Array) -> Iterator[pa.Table]:
    """Documents without what is to be forgotten, nor its bytes in the reader's count."""
    for group in groups:
        kept = blanked(group, tombstones)
        intake.bytes_in -= pc.sum(pc.subtract(group.column("bytes"), kept.column("bytes"))).as_py()
        yield kept


def _groups(intake: Intake, read: Reader, pieces: Iterable[Piece], places: Iterable[str]) -> Iterator[pa.Table]:
    """Row groups of the documents of all pieces; where they are cut depends on the documents alone."""
    for piece, place in zip(pieces, places, strict=True):
        intake.begin(piece.path)
        try:
            file = open_place(place)
        except OSError as error:
            intake.refuse_file("unreadable_file", f"cannot be opened: {error.strerror}", piece.size)
            continue
        with file:
            for _ in read(intake, piece, file):
                yield from _drain(intake)
    intake.close_group()
    yield from _drain(intake)


def _drain(intake: Intake) -> Iterator[pa.Table]:
    while intake.ready:
        yield intake.ready.pop(0)


def _write(path: Path, groups: Iterable[pa.Table]) -> None:
    # Dictionaries and statistics cost a third of the time on columns whose values are all different.
    repetitive = ["source", "path", "license", "text_version"]
    with pq.ParquetWriter(path, DOCUMENTS, compression="zstd", use_dictionary=repetitive, write_statistics=["record", "bytes"]) as file:
        for group in groups:
            file.write_table(group, row_group_size=group.num_rows)
