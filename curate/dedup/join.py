"""LSH join: band keys to buckets of candidate documents, one band at a time, within a memory limit.

The leading 32 bits of a band's keys are packed with the document index into one 64-bit word and put in order, so that equal
keys lie side by side; keys are hashes, so two scatters by leading bits do almost all of it. A band too large for the limit is
read again for each range of keys. Buckets, not pairs, are what the join gives: a bucket of k documents takes k entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from curate.dedup.sketch import SketchSettings

_CHUNK = 1 << 18
"""Keys read at a time from a band that takes more than one range."""

_COST = 16
"""Bytes of working memory for each key."""

_GROUP_BITS = 11
"""Groups of the first scatter, as a power of two: as many as the address caches bear."""

_S32 = np.uint64(32)


@dataclass(frozen=True)
class Buckets:
    """Documents that share a band key, for keys that at least two share."""

    starts: npt.NDArray[np.int64]
    """Bucket b is members[starts[b]:starts[b + 1]]; shape (buckets + 1,)."""
    members: npt.NDArray[np.uint32]
    """Document indices, ascending in a bucket."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def largest(self) -> int:
        """Members of the largest bucket; 0 when there is none."""
        return int(np.diff(self.starts).max(initial=0))


def probability_curve(settings: SketchSettings, similarity: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Probability that two documents of a Jaccard similarity share a band: 1 - (1 - s^rows)^bands."""
    s = np.asarray(similarity, np.float64)
    return np.asarray(1.0 - (1.0 - s**settings.rows) ** settings.bands)


@numba.njit(nogil=True, cache=True)
def scatter(keys, places, low, shift, heads, out):  # type: ignore[no-untyped-def]
    """Writes key << 32 | document to `out`, in groups by (key - low) >> shift; heads[g] becomes the end of group g.

    An empty `places` stands for documents 0, 1, ...
    """
    heads[:] = 0
    for i in range(len(keys)):
        heads[((keys[i] - low) >> shift) + 1] += 1
    for g in range(len(heads) - 1):
        heads[g + 1] += heads[g]
    for i in range(len(keys)):
        place = np.uint64(i) if len(places) == 0 else np.uint64(places[i])
        g = (keys[i] - low) >> shift
        out[heads[g]] = np.uint64(keys[i]) << _S32 | place
        heads[g] += 1


@numba.njit(nogil=True, cache=True)
def _put_in_order(values):  # type: ignore[no-untyped-def]
    """Sorts in place what is nearly in order or short; anything else is left to a sort that bears it."""
    moves = 0
    for i in range(1, len(values)):
        value, j = values[i], i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value
        moves += i - j
        if moves > 64 * len(values):
            values.sort()
            return


@numba.njit(nogil=True, cache=True)
def _order_groups(heads, low, shift, packed):  # type: ignore[no-untyped-def]
    """Sorts each group of `packed` (group g ends at heads[g]) by a second scatter and insertion."""
    longest, first = np.int64(0), np.int64(0)
    for g in range(len(heads) - 1):
        longest = max(longest, heads[g] - first)
        first = heads[g]
    spare, places = np.empty(longest, np.uint64), np.empty(2 * longest + 2, np.int64)
    first = np.int64(0)
    for g in range(len(heads) - 1):
        last = heads[g]
        size, bits = last - first, 0
        while (1 << bits) < size and bits < shift:
            bits += 1
        right, mask = np.uint64(32 + shift - bits), (1 << bits) - 1
        base = np.uint64(low) << _S32
        places[: mask + 2] = 0
        for i in range(first, last):
            places[(np.int64((packed[i] - base) >> right) & mask) + 1] += 1
        for b in range(mask):
            places[b + 1] += places[b]
        for i in range(first, last):
            part = np.int64((packed[i] - base) >> right) & mask
            spare[places[part]] = packed[i]
            places[part] += 1
        packed[first:last] = spare[:size]
        _put_in_order(packed[first:last])
        first = last


@numba.njit(nogil=True, cache=True)
def _buckets(packed, places, starts, members):  # type: ignore[no-untyped-def]
    """Runs of two and more keys, equal but for `places` trailing bits: their starts (from 0) and documents; returns (buckets, members).

    Both counts are found without writing when `starts` is empty.
    """
    buckets, filled, first, low = 0, 0, 0, (np.uint64(1) << places) - np.uint64(1)
    for i in range(1, len(packed) + 1):
        if i == len(packed) or packed[i] >> places != packed[first] >> places:
            if i - first > 1:
                if len(starts):
                    starts[buckets] = filled
                    for j in range(first, i):
                        members[filled + j - first] = np.uint32(packed[j] & low)
                buckets += 1
                filled += i - first
            first = i
    return buckets, filled


@numba.njit(nogil=True, cache=True)
def _split(starts, members, band, new_starts, new_members):  # type: ignore[no-untyped-def]
    """Splits buckets by the trailing 32 bits of 64-bit keys; returns the (buckets, members) that are left."""
    buckets, filled = 0, 0
    for b in range(len(starts) - 1):
        packed = np.empty(starts[b + 1] - starts[b], np.uint64)
        for i in range(len(packed)):
            document = members[starts[b] + i]
            packed[i] = band[document] << _S32 | np.uint64(document)
        _put_in_order(packed)
        count, entries = _buckets(packed, _S32, new_starts[buckets:], new_members[filled:])
        new_starts[buckets : buckets + count] += filled
        buckets += count
        filled += entries
    return buckets, filled


def _leading(chunk: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The leading 32 bits of keys."""
    return (chunk if chunk.dtype == np.uint32 else chunk >> np.uint64(32)).astype(np.int64)


def _ranges(band: npt.NDArray[Any], memory_limit: int) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.uint32], int, int]]:
    """(leading keys, documents, least key, bits) in ranges of 2^bits keys that fit the limit; no documents stands for all."""
    bits = 32
    while len(band) * _COST >> (32 - bits) > memory_limit and bits > _GROUP_BITS:
        bits -= 1
    if bits == 32:
        whole = np.asarray(band) if band.dtype == np.uint32 else np.empty(len(band), np.uint32)
        if band.dtype != np.uint32:
            for at in range(0, len(band), _CHUNK):
                whole[at : at + _CHUNK] = _leading(band[at : at + _CHUNK])
        yield whole, np.empty(0, np.uint32), 0, bits
        return
    for low in range(0, 1 << 32, 1 << bits):
        keys, places = [], []
        for at in range(0, len(band), _CHUNK):
            chunk = _leading(band[at : at + _CHUNK])
            inside = np.flatnonzero(chunk >> bits == low >> bits)
            keys.append(chunk[inside].astype(np.uint32))
            places.append((inside + at).astype(np.uint32))
        yield np.concatenate(keys), np.concatenate(places), low, bits


def _group(keys: npt.NDArray[np.uint32], places: npt.NDArray[np.uint32], low: int, bits: int) -> tuple[Any, Any]:
    """Buckets of equal keys of one range: starts, the end included, and members."""
    packed, heads = np.empty(len(keys), np.uint64), np.empty((1 << _GROUP_BITS) + 1, np.int64)
    scatter(keys, places, low, bits - _GROUP_BITS, heads, packed)
    _order_groups(heads, low, bits - _GROUP_BITS, packed)
    return group_packed(packed)


def group_packed(packed: npt.NDArray[np.uint64], places: int = 32) -> tuple[Any, Any]:
    """Buckets of sorted words, equal but for `places` trailing bits: starts, the end included, and members, which are those bits."""
    low = np.uint64(places)
    count, entries = _buckets(packed, low, np.empty(0, np.int64), np.empty(0, np.uint32))
    starts, members = np.full(count + 1, entries, np.int64), np.empty(entries, np.uint32)
    _buckets(packed, low, starts, members)
    return starts, members


def join(bands: Sequence[npt.NDArray[Any]], memory_limit: int = 4 << 30) -> Buckets:
    """Buckets of all bands.

    Args:
        bands: A column of keys for each band, uint32 or uint64, in memory or memory-mapped; all of one length.
        memory_limit: Bytes of working memory for sorting, at least 1 MiB; the buckets themselves come on top.

    Returns:
        Buckets of two documents and more, by band, then by key.

    Raises:
        ValueError: For columns of unequal length, more than 2^32 documents, or a limit below 1 MiB.
    """
    if memory_limit < 1 << 20:
        raise ValueError(f"memory_limit = {memory_limit} bytes: the join needs at least {1 << 20}")
    if len({len(band) for band in bands}) > 1:
        raise ValueError(f"bands have unequal lengths {sorted({len(band) for band in bands})}")
    if bands and len(bands[0]) > 1 << 32:
        raise ValueError(f"{len(bands[0])} documents: one join takes at most 2^32")
    starts, members, filled = [np.empty(0, np.int64)], [np.empty(0, np.uint32)], 0
    for band in bands:
        for keys, places, low, bits in _ranges(band, memory_limit):
            begin, inside = _group(keys, places, low, bits)
            if band.dtype == np.uint64:
                new_begin, new_inside = np.zeros(len(inside) + 1, np.int64), np.empty(len(inside), np.uint32)
                count, entries = _split(begin, inside, band, new_begin, new_inside)
                new_begin[count] = entries
                begin, inside = new_begin[: count + 1], new_inside[:entries]
            starts.append(begin[:-1] + filled)
            members.append(inside)
            filled += len(inside)
    return Buckets(np.concatenate([*starts, [filled]]), np.concatenate(members))
