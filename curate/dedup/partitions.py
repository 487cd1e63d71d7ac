"""The LSH join beyond memory: band keys in files by band and leading bits, joined partition by partition, split by components.

Documents that share no chain of buckets cannot concern each other, so components of the candidate graph are decided apart, in batches of
bounded size and in any order. Memory stays under the limit whatever the corpus: a partition is as large as the limit allows, a batch too,
unless one component exceeds it, whose graph then takes what it needs. The union-find takes 4 bytes for each document; where that is much
of the limit it is a mapped file, whose pages the system takes back when it needs them. All files are scratch.

Keys grow with the corpus (`key_bits`): of 32 bits, every other document of 100 million would meet another by chance in some band, and such
meetings chain documents to components without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from curate.dedup.join import Buckets, group_packed
from curate.dedup.scratch import mapped_zeros
from curate.dedup.sketch import Signatures

_CHUNK = 1 << 18
"""Documents whose keys are put in order at once."""
_COST = 24
"""Bytes of working memory for each key of a partition: the key with its document, sorted, and its bucket."""
_PARTITION = 96 << 20
"""Bytes that suffice for a partition, however many there may be: sorting more keys at once is no faster."""
_WEIGHT_COST = 128
"""Bytes of working memory for each document of a batch and for each of its places in a bucket: they lie in one bucket at least."""
_HEAVIEST = -(1 << 31)
"""Where the weight of a component ends."""
SPARE_BITS = 8
"""Bits that keys have beyond those that number the documents, so that 18 bands meet by chance less than .07 times a document."""


def key_bits(documents: int) -> int:
    """Leading bits of band keys by which so many documents are joined: 32 up to 2^24, one more for each doubling from there on."""
    return max(32, _place_bits(documents) + SPARE_BITS)


def _place_bits(documents: int) -> int:
    return max(1, (documents - 1).bit_length())


@numba.njit(nogil=True, cache=True)
def _pack(keys, first, bits, mask, heads, out):  # type: ignore[no-untyped-def]
    """Writes keys without their `bits` leading ones, with document numbers in place of the bits outside `mask`, in groups by those bits.

    Group g begins at heads[g].
    """
    right = np.uint64(64) - bits
    heads[:] = 0
    for i in range(len(keys)):
        heads[(keys[i] >> right) + np.uint64(1)] += 1
    for g in range(len(heads) - 1):
        heads[g + 1] += heads[g]
    place = heads.copy()
    for i in range(len(keys)):
        g = keys[i] >> right
        out[place[g]] = ((keys[i] << bits) & mask) | np.uint64(first + i)
        place[g] += 1


class BandFiles:
    """Keys of all bands in scratch files, each band's in parts by their leading bits."""

    def __init__(self, folder: Path, documents: int, memory_limit: int) -> None:
        """Starts empty files.

        Args:
            folder: where they go.
            documents: how many documents will come.
            memory_limit: bytes that joining a partition may take.
        """
        self._places, self.key_bits = _place_bits(documents), key_bits(documents)
        self.bits = max(1, self._places + self.key_bits - 64)
        while documents * _COST >> self.bits > min(memory_limit, _PARTITION) and self.bits < 16:
            self.bits += 1
        self._folder, self._chunks, self._bands = folder, 0, 0

    def append(self, bands: Iterable[npt.NDArray[Any]], first: int) -> None:
        """Add documents first, first + 1, ...; one column of keys for each band, whose leading bits count."""
        kept = np.uint64((1 << 64) - (1 << 64 - self.key_bits))
        mask = np.uint64((1 << 64) - (1 << self._places))
        with (self._folder / "heads").open("ab") as ends:
            for self._bands, keys in enumerate(bands, 1):
                wide = keys.astype(np.uint64) << np.uint64(32) if keys.dtype == np.uint32 else keys
                packed, heads = np.empty(len(keys), np.uint64), np.empty((1 << self.bits) + 1, np.int32)
                _pack(wide & kept, first, np.uint64(self.bits), mask, heads, packed)
                with (self._folder / f"band-{self._bands - 1:03}").open("ab") as file:
                    file.write(packed.data)
                ends.write(heads.data)
        self._chunks += 1

    def partitions(self) -> Iterator[Buckets]:
        """Buckets of two documents and more, of one band and partition at a time."""
        if not self._bands:
            return
        heads = np.memmap(self._folder / "heads", np.int32, "r", shape=(self._chunks, self._bands, (1 << self.bits) + 1))
        begins = np.concatenate([[0], np.cumsum(heads[:, 0, -1], dtype=np.int64)])
        for band in range(self._bands):
            path = self._folder / f"band-{band:03}"
            for part in range(1 << self.bits):
                starts = begins[:-1] + heads[:, band, part]
                counts = np.asarray(heads[:, band, part + 1] - heads[:, band, part])
                keys, filled = np.empty(int(counts.sum()), np.uint64), 0
                with path.open("rb") as file:
                    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
                        file.seek(start * 8)
                        if count:
                            file.readinto(keys[filled : filled + count].data.cast("B"))
                        filled += count
                keys.sort()
                yield Buckets(*group_packed(keys, self._places))
            path.unlink()


@numba.njit(nogil=True, cache=True)
def _root(parent, v):  # type: ignore[no-untyped-def]
    """The root of v, with path halving; parent of a root is minus the weight of its component."""
    while parent[v] >= 0:
        if parent[parent[v]] >= 0:
            parent[v] = parent[parent[v]]
        v = parent[v]
    return v


@numba.njit(nogil=True, cache=True)
def _unite(starts, members, least_new, parent):  # type: ignore[no-untyped-def]
    """Joins the documents of each bucket that holds one from `least_new` on; a component weighs its documents and places in buckets."""
    for b in range(len(starts) - 1):
        if members[starts[b + 1] - 1] < least_new:
            continue
        a = _root(parent, members[starts[b]])
        weight = np.int64(parent[a]) - (starts[b + 1] - starts[b])
        for i in range(starts[b] + 1, starts[b + 1]):
            c = _root(parent, members[i])
            if a != c:
                weight += parent[c]
                if parent[a] > parent[c]:
                    a, c = c, a
                parent[c] = a
        parent[a] = max(weight, _HEAVIEST)


@numba.njit(nogil=True, cache=True)
def _number(parent, capacity):  # type: ignore[no-untyped-def]
    """Gives each component of two and more a batch, written to its root as -2 - batch; returns (batches, candidates)."""
    batch, filled, candidates = 0, 0, 0
    for v in range(len(parent)):
        candidates += parent[v] != -1
        if parent[v] < -1:
            weight = -int(parent[v])
            if filled and filled + weight > capacity:
                batch += 1
                filled = 0
            filled += weight
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
        self._folder, self._least_new, self._capacity = folder, least_new, max(1, memory_limit // _WEIGHT_COST)
        self._parent: npt.NDArray[np.int32] = np.full(0 if documents * 16 > memory_limit else documents, -1, np.int32)
        if len(self._parent) < documents:
            self._parent = _mapped(folder / "parent", np.int32, (documents,))
            for first in range(0, documents, _CHUNK):
                self._parent[first : first + _CHUNK] = -1
        self._parts = [(0, 0)]
        self._sizes = self._members = np.empty(0, np.uint32)
        self._ends = np.empty((0, 1, 2), np.int64)
        self.largest_bucket = 0

    def add(self, buckets: Buckets) -> None:
        """Add buckets; they go to the disk."""
        self.largest_bucket = max(self.largest_bucket, buckets.largest)
        _unite(buckets.starts, buckets.members, self._least_new, self._parent)
        for name, entries in (("sizes", np.diff(buckets.starts).astype(np.uint32)), ("members", buckets.members)):
            with (self._folder / name).open("ab") as file:
                file.write(entries.data)
        self._parts.append((self._parts[-1][0] + len(buckets), self._parts[-1][1] + len(buckets.members)))

    def batches(self) -> tuple[int, int]:
        """Puts the buckets in the order of their batches; returns how many batches and candidate documents there are."""
        count, candidates = _number(self._parent, self._capacity)
        if self._parts[-1][0]:
            self._sizes, self._members = (np.memmap(self._folder / name, np.uint32, "r+") for name in ("sizes", "members"))
            self._ends = _mapped(self._folder / "ends", np.int64, (len(self._parts) - 1, count + 1, 2))
        for number, ends in enumerate(self._ends):
            (first, begin), (last, end) = self._parts[number], self._parts[number + 1]
            sizes, members = np.array(self._sizes[first:last]), np.array(self._members[begin:end])
            starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
            _deal(starts, members, self._parent, self._least_new, ends, self._sizes[first:last], self._members[begin:end])
            ends += self._parts[number]
        self._parent = np.empty(0, np.int32)
        return count, candidates

    def batch(self, batch: int) -> tuple[npt.NDArray[np.int64], Buckets]:
        """The documents of a batch, ascending, and its buckets, whose members are places among them."""
        sizes, members = (
            np.concatenate([np.empty(0, np.uint32), *(column[first:last] for first, last in self._ends[:, batch : batch + 2, kind])])
            for kind, column in enumerate((self._sizes, self._members))
        )
        documents = np.unique(members)
        places = np.searchsorted(documents, members).astype(np.uint32)
        return documents.astype(np.int64), Buckets(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]), places)


def _mapped(path: Path, kind: type[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A new file of zeros, mapped."""
    with path.open("wb+") as file:
        return mapped_zeros(file, kind, shape)


def partitioned(signatures: Signatures, folder: Path, memory_limit: int) -> Iterator[Buckets]:
    """Buckets of signatures in memory or memory-mapped, by way of band files."""
    documents = len(signatures)
    files = BandFiles(folder, documents, memory_limit)
    for first in range(0, documents, _CHUNK):
        span = slice(first, first + _CHUNK)
        narrow = files.key_bits == 32
        columns = (keys[span] if narrow else signatures.wide_keys(band, span) for band, keys in enumerate(signatures.bands))
        files.append(columns, first)
    yield from files.partitions()
