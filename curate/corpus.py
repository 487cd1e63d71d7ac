"""Reads a lake's documents back: whole shards, or texts by locator (documents shard << 32 | row)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from schemas.store import here

ROW_BITS = 32


def locators(shard: int, rows: int) -> NDArray[np.uint64]:
    """Locators of all rows of a documents shard."""
    return (np.uint64(shard) << np.uint64(ROW_BITS)) | np.arange(rows, dtype=np.uint64)


def shards_of(places: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Documents shard of each locator."""
    return (places >> np.uint64(ROW_BITS)).astype(np.int64)


def rows_of(places: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Row of each locator in its documents shard."""
    return (places & np.uint64((1 << ROW_BITS) - 1)).astype(np.int64)


def column_array(table: pa.Table, name: str) -> pa.Array:
    """A column as one array (``combine_chunks`` of large strings is cheap; ``take`` on chunks is not)."""
    chunked = table.column(name).combine_chunks()
    return chunked.chunk(0) if isinstance(chunked, pa.ChunkedArray) else chunked


def raw_column(table: pa.Table, name: str, kind: Any) -> NDArray[Any]:
    """A column of fixed width without nulls as NumPy reads it; Arrow's own conversions import pandas, which takes longer than a look-up."""
    array = column_array(table, name)
    return np.frombuffer(array.buffers()[1] or b"", dtype=kind)[array.offset : array.offset + len(array)]


HELD_BYTES = 64 << 20
"""Texts of row groups that a corpus keeps decoded, since rounds of comparisons ask for the same ones again."""


class Corpus:
    """The documents of a lake.

    Args:
        root: the lake.
        documents: path in the lake of each documents shard, None for an empty one.
        threads: shards whose texts are fetched at once, by whoever asks: all calls share them.
    """

    def __init__(self, root: Path, documents: Sequence[str | None], threads: int = 1) -> None:
        self.root, self.paths = root, list(documents)
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._held: dict[tuple[int, int], pa.LargeStringArray] = {}
        self._lock = Lock()

    def table(self, shard: int, columns: Sequence[str]) -> pa.Table | None:
        """Columns of a shard, None when it is empty."""
        path = self.paths[shard]
        return None if path is None else pq.read_table(here(self.root, path), columns=list(columns), memory_map=True, partitioning=None)

    def fetch(self, places: NDArray[np.uint64]) -> pa.LargeStringArray:
        """Texts of the documents at the locators, in their order; of each shard only the row groups that hold some are read."""
        order = np.argsort(places, kind="stable")
        shards, rows = shards_of(places[order]), rows_of(places[order])
        wanted = [(int(shard), rows[shards == shard]) for shard in np.unique(shards)]
        together = map if self._pool is None or len(wanted) == 1 else self._pool.map
        found = list(together(lambda each: self._fetch(*each), wanted))
        if not found:
            return pa.array([], pa.large_string())
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_arrays([piece for pieces in found for piece in pieces]).take(pa.array(back))

    def _fetch(self, shard: int, rows: NDArray[np.int64]) -> list[pa.LargeStringArray]:
        """Texts of ascending rows of a shard, in pieces."""
        path, pieces = self.paths[shard], []
        if path is None:
            raise ValueError(f"locator in an empty documents shard {shard}")
        with pq.ParquetFile(here(self.root, path), memory_map=True) as file:
            counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            ends = np.cumsum(counts)
            groups = np.searchsorted(ends, rows, side="right")
            for group in np.unique(groups).tolist():
                texts = self._texts(file, shard, group)
                pieces.append(texts.take(pa.array(rows[groups == group] - (ends[group] - counts[group]))))
        return pieces

    def _texts(self, file: pq.ParquetFile, shard: int, group: int) -> pa.LargeStringArray:
        """Texts of a row group; the oldest held ones make room."""
        with self._lock:
            held = self._held.get((shard, group))
        if held is not None:
            return held
        texts = column_array(file.read_row_group(group, columns=["text"], use_threads=False), "text")
        with self._lock:
            self._held[shard, group] = texts
            size = sum(each.nbytes for each in self._held.values())
            while size > HELD_BYTES and len(self._held) > 1:
                size -= self._held.pop(next(iter(self._held))).nbytes
        return texts


def id_hashes(doc_ids: pa.Array, seed: int) -> NDArray[np.uint64]:
    """Uniform 64-bit hashes of doc_ids under a seed (the doc_id is a hash already: its halves are mixed with the seed)."""
    halves = np.frombuffer(doc_ids.buffers()[1], dtype=np.uint64)[2 * doc_ids.offset : 2 * (doc_ids.offset + len(doc_ids))].reshape(-1, 2)
    mixed = halves[:, 0] ^ mix64(halves[:, 1] + np.uint64(seed & (2**64 - 1)))
    return mix64(mixed)


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014): a bijection whose output bits all depend on all input bits."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
