"""Signatures outside memory: as Arrow tables that carry what they were made with, and as scratch columns on disk.

Tables are what a lake keeps: an index of earlier documents is the tables of their shards. A spill is scratch: one file for
each column, appended shard by shard, then mapped; it is written anew after any interruption and has no durability of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.dedup.sketch import Signatures, SketchSettings
from schemas.errors import LakeError

FINGERPRINT = b"gristmill.signatures"
"""Key of the fingerprint in a table's schema metadata."""


def signature_schema(settings: SketchSettings) -> pa.Schema:
    """Columns band_000, ..., sketch (k bytes), shingles; the fingerprint in the metadata."""
    key = pa.uint32() if settings.key_bits == 32 else pa.uint64()
    fields = [pa.field(f"band_{band:03}", key, nullable=False) for band in range(settings.bands)]
    fields += [pa.field("sketch", pa.binary(settings.k), nullable=False), pa.field("shingles", pa.int64(), nullable=False)]
    return pa.schema(fields, metadata={FINGERPRINT: settings.fingerprint})


def to_table(signatures: Signatures) -> pa.Table:
    """Signatures as a table, one row for each document, in `signature_schema`."""
    settings, rows = signatures.settings, len(signatures)
    sketch = np.ascontiguousarray(signatures.sketch)
    columns: list[Any] = [pa.array(band) for band in signatures.bands]
    columns.append(pa.FixedSizeBinaryArray.from_buffers(pa.binary(settings.k), rows, [None, pa.py_buffer(sketch)]))
    columns.append(pa.array(signatures.shingles))
    return pa.Table.from_arrays(columns, schema=signature_schema(settings))


def from_table(table: pa.Table, settings: SketchSettings) -> Signatures:
    """Signatures of a table, without a copy where a column is one chunk.

    Raises:
        LakeError: When the table was made with other settings, or carries none.
    """
    found = (table.schema.metadata or {}).get(FINGERPRINT, b"none").decode()
    if found != settings.fingerprint:
        raise LakeError(
            f"a table holds signatures of {found}, not of {settings.fingerprint}",
            where="signatures",
            fix="curate with generations: one, which signs all documents again",
        )
    names = [f"band_{band:03}" for band in range(settings.bands)]
    if not table.num_rows:
        return _empty(settings)
    sketch = table["sketch"].combine_chunks()
    sketch = sketch.chunk(0) if isinstance(sketch, pa.ChunkedArray) else sketch
    small = np.frombuffer(sketch.buffers()[1], np.uint8)[sketch.offset * settings.k :][: len(sketch) * settings.k]
    return Signatures(
        settings,
        [table[name].to_numpy() for name in names],
        small.reshape(len(sketch), settings.k),
        table["shingles"].to_numpy(),
    )


def _empty(settings: SketchSettings) -> Signatures:
    key = np.uint32 if settings.key_bits == 32 else np.uint64
    return Signatures(settings, [np.empty(0, key)] * settings.bands, np.empty((0, settings.k), np.uint8), np.empty(0, np.int64))


class SignatureSpill:
    """Columns of signatures in files of a scratch folder, so that memory holds one shard's at a time."""

    def __init__(self, folder: Path, settings: SketchSettings) -> None:
        """Starts an empty spill.

        Args:
            folder: Where the files go; it is made, and files of an earlier spill are overwritten.
            settings: What all signatures must have been made with.
        """
        self._folder, self._settings, self._rows = folder, settings, 0
        folder.mkdir(parents=True, exist_ok=True)
        self._files: list[IO[bytes]] = [self._path(name).open("wb") for name in self._names()]

    def _names(self) -> list[str]:
        return [*(f"band_{band:03}" for band in range(self._settings.bands)), "sketch", "shingles"]

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.column"

    def append(self, signatures: Signatures) -> None:
        """Adds documents after those that are there.

        Raises:
            ValueError: For signatures of other settings.
        """
        if signatures.settings.fingerprint != self._settings.fingerprint:
            raise ValueError(f"a spill of {self._settings.fingerprint} cannot take signatures of {signatures.settings.fingerprint}")
        for file, column in zip(self._files, [*signatures.bands, signatures.sketch, signatures.shingles], strict=True):
            file.write(np.ascontiguousarray(column).data)
        self._rows += len(signatures)

    def finish(self) -> Signatures:
        """All signatures, memory-mapped. Nothing can be appended after."""
        for file in self._files:
            file.close()
        if not self._rows:
            return _empty(self._settings)
        key = np.uint32 if self._settings.key_bits == 32 else np.uint64
        shapes: list[tuple[Any, tuple[int, ...]]] = [(key, (self._rows,))] * self._settings.bands
        shapes += [(np.uint8, (self._rows, self._settings.k)), (np.int64, (self._rows,))]
        columns: list[npt.NDArray[Any]] = [
            np.memmap(self._path(name), dtype, "r", shape=shape) for name, (dtype, shape) in zip(self._names(), shapes, strict=True)
        ]
        return Signatures(self._settings, columns[:-2], columns[-2], columns[-1])

    def remove(self) -> None:
        """Deletes the files."""
        for file, name in zip(self._files, self._names(), strict=True):
            file.close()
            self._path(name).unlink(missing_ok=True)
