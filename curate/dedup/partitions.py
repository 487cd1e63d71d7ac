"""The LSH join beyond memory: band keys in files by band and leading bits, joined partition by partition, split by components.

Documents that share no chain of buckets cannot concern each other, so components of the candidate graph are decided apart, in batches of
bounded size and in any order. Memory stays under the limit whatever the corpus: a partition is as large as the limit allows, a batch too,
unless one component exceeds it, whose graph then takes what it needs. The union-find takes 4 bytes for each document; where that is much
of the limit it is a mapped file, whose pages the system takes back when it needs them. All files are scratch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from curate.dedup.join import Buckets, group_packed, scatter

_CHUNK = 1 << 18
"""Documents whose keys are put in order at once."""
_COST = 24
"""Bytes of working memory for each key of a partition: the key with its document, sorted, and its bucket."""
_DOCUMENT_COST = 640
"""Bytes of working memory for each document of a batch: sketch, places in buckets, state."""


class BandFiles:
    """Keys of all bands in scratch files, each band's in parts by their leading bits."""

    def __init__(self, folder: Path, documents: int, memory_limit: int) -> None:
        """Starts empty files.

        Args:
            folder: where they go.
            documents: how many documents will come.
            memory_limit: bytes that joining a partition may take.
        """
        self.bits = 1
        while documents * _COST >> self.bits > memory_limit and self.bits < 16:
            self.bits += 1
        self._folder, self._heads = folder, []  # type: tuple[Path, list[list[npt.NDArray[np.int64]]]]

    def append(self, bands: Sequence[npt.NDArray[Any]], first: int) -> None:
        """Add documents first, first + 1, ...; one column of keys for each band."""
        heads: list[npt.NDArray[np.int64]] = []
        places = np.arange(first, first + len(bands[0]), dtype=np.uint32)
        for number, keys in enumerate(bands):
            leading = np.asarray(keys if keys.dtype == np.uint32 else keys >> np.uint64(32)).astype(np.uint32)
            packed, ends = np.empty(len(keys), np.uint64), np.empty((1 << self.bits) + 1, np.int64)
            scatter(leading, places, 0, 32 - self.bits, ends, packed)
            with (self._folder / f"band-{number:03}").open("ab") as file:
                file.write(packed.data)
            heads.append(np.concatenate([[0], ends[:-1]]))
        self._heads.append(heads)

    def partitions(self) -> Iterator[Buckets]:
        """Buckets of two documents and more, of one band and partition at a time."""
        for band in range(len(self._heads[0]) if self._heads else 0):
            path = self._folder / f"band-{band:03}"
            chunks = [heads[band] for heads in self._heads]
            begins = np.concatenate([[0], np.cumsum([heads[-1] for heads in chunks])])
            for part in range(1 << self.bits):
                spans = [(begins[i] + heads[part], heads[part + 1] - heads[part]) for i, heads in enumerate(chunks)]
                keys = np.empty(sum(int(count) for _, count in spans), np.uint64)
                filled = 0
                with path.open("rb") as file:
                    for start, count in spans:
                        file.seek(int(start) * 8)
                        if count:
                            file.readinto(keys[filled : filled + count].data.cast("B"))
                        filled += int(count)
                keys.sort()
                starts, members = group_packed(keys)
                yield Buckets(starts, members)
            path.unlink()


@numba.njit(nogil=True, cache=True)
def _root(parent, v):  # type: ignore[no-untyped-def]
    """The root of v, with path halving; parent of a root is minus the documents of its component."""
    while parent[v] >= 0:
        if parent[parent[v]] >= 0:
            parent[v] = parent[parent[v]]
        v = parent[v]
    return v


@numba.njit(nogil=True, cache=True)
def _unite(starts, members, least_new, parent):  # type: ignore[no-untyped-def]
    """Joins the documents of each bucket that holds one from `least_new` on; returns the number of such buckets."""
    for b in range(len(starts) - 1):
        if members[starts[b + 1] - 1] < least_new:
            continue
        a = _root(parent, members[starts[b]])
        for i in range(starts[b] + 1, starts[b + 1]):
            c = _root(parent, members[i])
            if a != c:
                if parent[a] > parent[c]:
                    a, c = c, a
                parent[a] += parent[c]
                parent[c] = a


@numba.njit(nogil=True, cache=True)
def _number(parent, capacity):  # type: ignore[no-untyped-def]
    """Gives each component of two and more a batch, written to its root as -2 - batch; returns (batches, candidates)."""
    batch, filled, candidates = 0, 0, 0
    for v in range(len(parent)):
        if parent[v] < -1:
            size = -parent[v]
            candidates += size
            if filled and filled + size > capacity:
                batch += 1
                filled = 0
            filled += size
            parent[v] = -2 - batch
    return batch + 1, candidates


@numba.njit(nogil=True, cache=True)
def _deal(starts, members, parent, least_new, ends, sizes_out, members_out):  # type: ignore[no-untyped-def]
    """Writes buckets in the order of their batches; ends[k] becomes (buckets, members) before batch k, the totals last."""
    buckets = len(starts) - 1
    batches = np.empty(buckets, np.int64)
    ends[:] = 0
    for b in range(buckets):
        batches[b] = -1 if members[starts[b + 1] - 1] < least_new else -2 - parent[_root(parent, members[starts[b]])]
        if batches[b] >= 0:
            ends[batches[b] + 1, 0] += 1
            ends[batches[b] + 1, 1] += starts[b + 1] - starts[b]
    for k in range(len(ends) - 1):
        ends[k + 1] += ends[k]
    place = ends.copy()
    for b in range(buckets):
        k = batches[b]
        if k >= 0:
            size = starts[b + 1] - starts[b]
            sizes_out[place[k, 0]] = size
            members_out[place[k, 1] : place[k, 1] + size] = members[starts[b] : starts[b + 1]]
            place[k, 0] += 1
            place[k, 1] += size


class Components:
    """Buckets of a join, by batches of whole components."""

    def __init__(self, folder: Path, documents: int, least_new: int, memory_limit: int) -> None:
        """Starts without buckets.

        Args:
            folder: where scratch files go.
            documents: documents, at most 2^31 - 1.
            least_new: buckets of documents below this one alone concern nobody.
            memory_limit: bytes that a batch may take, unless one component takes more.
        """
        if documents > np.iinfo(np.int32).max:
            raise ValueError(f"{documents} documents: one join takes at most {np.iinfo(np.int32).max}")
        self._folder, self._least_new, self._capacity = folder, least_new, max(1, memory_limit // _DOCUMENT_COST)
        self._parent: npt.NDArray[np.int32] = np.full(0 if documents * 16 > memory_limit else documents, -1, np.int32)
        if len(self._parent) < documents:
            self._parent = np.memmap(folder / "parent", np.int32, "w+", shape=(documents,))
            for first in range(0, documents, _CHUNK):
                self._parent[first : first + _CHUNK] = -1
        self._parts: list[tuple[int, int]] = []
        self._ends: list[npt.NDArray[np.int64]] = []
        self.largest_bucket = 0

    def add(self, buckets: Buckets) -> None:
        """Add buckets; they go to the disk."""
        self.largest_bucket = max(self.largest_bucket, buckets.largest)
        _unite(buckets.starts, buckets.members, self._least_new, self._parent)
        number = len(self._parts)
        np.diff(buckets.starts).astype(np.uint32).tofile(self._folder / f"sizes-{number:06}")
        buckets.members.tofile(self._folder / f"members-{number:06}")
        self._parts.append((len(buckets), len(buckets.members)))

    def batches(self) -> tuple[int, int]:
        """Puts the buckets in the order of their batches; returns how many batches and candidate documents there are."""
        count, candidates = _number(self._parent, self._capacity)
        for number, (_, filled) in enumerate(self._parts):
            sizes, members = self._read(number, 0, -1, 0, -1)
            starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
            ends, dealt_sizes, dealt = np.empty((count + 1, 2), np.int64), np.empty(len(sizes), np.uint32), np.empty(filled, np.uint32)
            _deal(starts, members, self._parent, self._least_new, ends, dealt_sizes, dealt)
            dealt_sizes.tofile(self._folder / f"sizes-{number:06}")
            dealt.tofile(self._folder / f"members-{number:06}")
            self._ends.append(ends)
        self._parent = np.empty(0, np.int32)
        return count, candidates

    def batch(self, batch: int) -> Buckets:
        """The buckets of a batch."""
        parts = []
        for number, ends in enumerate(self._ends):
            (first, begin), (last, end) = ends[batch], ends[batch + 1]
            parts.append(self._read(number, int(first), int(last - first), int(begin), int(end - begin)))
        sizes = np.concatenate([sizes for sizes, _ in parts]) if parts else np.empty(0, np.uint32)
        members = np.concatenate([members for _, members in parts]) if parts else np.empty(0, np.uint32)
        return Buckets(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]), members)

    def _read(self, number: int, first: int, buckets: int, begin: int, members: int) -> tuple[Any, Any]:
        return (
            np.fromfile(self._folder / f"sizes-{number:06}", np.uint32, buckets, offset=first * 4),
            np.fromfile(self._folder / f"members-{number:06}", np.uint32, members, offset=begin * 4),
        )


def partitioned(bands: Sequence[npt.NDArray[Any]], folder: Path, memory_limit: int) -> Iterator[Buckets]:
    """Buckets of keys in memory or memory-mapped, by way of band files."""
    files = BandFiles(folder, len(bands[0]), memory_limit)
    for first in range(0, len(bands[0]), _CHUNK):
        files.append([band[first : first + _CHUNK] for band in bands], first)
    yield from files.partitions()
