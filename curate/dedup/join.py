"""LSH join: band keys to buckets of candidate documents, one band at a time, within a memory limit.

A band's 32-bit keys are packed with the document index into one 64-bit word and sorted; equal keys then lie side by side. A
band too large for the limit is read again for each range of keys. Buckets, not pairs, are what the join gives: a bucket of k
documents takes k entries, never k^2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from curate.dedup.sketch import SketchSettings

_CHUNK = 1 << 22
"""Keys read at a time from a band that takes more than one range."""


@dataclass(frozen=True)
class Buckets:
    """Documents that share a band key, for keys that at least two share."""

    starts: npt.NDArray[np.int64]
    """Bucket b is members[starts[b]:starts[b + 1]]; shape (buckets + 1,)."""
    members: npt.NDArray[Any]
    """Document indices, ascending in a bucket, uint32 (int64 with 64-bit keys)."""

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
def _runs(keys, shift):  # type: ignore[no-untyped-def]
    """(buckets, members) in sorted keys, two keys being equal when they are after the shift."""
    buckets, members, first = 0, 0, 0
    for i in range(1, len(keys) + 1):
        if i == len(keys) or keys[i] >> shift != keys[first] >> shift:
            if i - first > 1:
                buckets += 1
                members += i - first
            first = i
    return buckets, members


@numba.njit(nogil=True, cache=True)
def _fill(keys, shift, indices, starts, members):  # type: ignore[no-untyped-def]
    """Fills the buckets' starts (from 0, without the last end) and members; indices[i] is the document of keys[i]."""
    bucket, filled, first = 0, 0, 0
    for i in range(1, len(keys) + 1):
        if i == len(keys) or keys[i] >> shift != keys[first] >> shift:
            if i - first > 1:
                starts[bucket] = filled
                bucket += 1
                for j in range(first, i):
                    members[filled] = indices[j]
                    filled += 1
            first = i


def _ranges(band: npt.NDArray[Any], memory_limit: int) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
    """Keys with their documents, in ranges of keys that fit the limit."""
    cost = 32
    passes = max(1, -(-len(band) * cost // memory_limit))
    if passes == 1:
        yield np.asarray(band), np.arange(len(band))
        return
    width = -(-(1 << 8 * band.dtype.itemsize) // passes)
    for low in range(0, passes * width, width):
        keys, places = [], []
        for at in range(0, len(band), _CHUNK):
            chunk = np.asarray(band[at : at + _CHUNK])
            inside = np.flatnonzero((chunk >= low) & (chunk <= min(low + width - 1, (1 << 8 * band.dtype.itemsize) - 1)))
            keys.append(chunk[inside])
            places.append(inside + at)
        yield np.concatenate(keys), np.concatenate(places)


def _sorted(keys: npt.NDArray[Any], places: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint64], np.uint64, npt.NDArray[Any]]:
    """Keys in order, the shift that leaves the key, and the documents; equal keys in the order of documents."""
    if keys.dtype == np.uint32:
        packed = keys.astype(np.uint64)
        packed <<= np.uint64(32)
        packed |= places.view(np.uint64)
        packed.sort()
        return packed, np.uint64(32), packed.view(np.uint32)[0 if np.little_endian else 1 :: 2]
    order = np.argsort(keys, kind="stable")
    return keys[order], np.uint64(0), places[order]


def join(bands: Sequence[npt.NDArray[Any]], memory_limit: int = 4 << 30) -> Buckets:
    """Buckets of all bands.

    Args:
        bands: A column of keys for each band, uint32 or uint64, in memory or memory-mapped; all of one length.
        memory_limit: Bytes of working memory for sorting, at least 1 MiB; the buckets themselves come on top.

    Returns:
        Buckets of two documents and more, by band, then by key.

    Raises:
        ValueError: For columns of unequal length, 2^32 documents with 32-bit keys, or a limit below 1 MiB.
    """
    if memory_limit < 1 << 20:
        raise ValueError(f"memory_limit = {memory_limit} bytes: the join needs at least {1 << 20}")
    if len({len(band) for band in bands}) > 1:
        raise ValueError(f"bands have unequal lengths {sorted({len(band) for band in bands})}")
    wide = bool(bands) and bands[0].dtype == np.uint64
    if bands and not wide and len(bands[0]) >= 1 << 32:
        raise ValueError(f"{len(bands[0])} documents need 64-bit band keys: set key_bits = 64")
    starts, members, filled = [], [], 0
    for band in bands:
        for keys, places in _ranges(band, memory_limit):
            ordered, shift, indices = _sorted(keys, places)
            buckets, entries = _runs(ordered, shift)
            begin, inside = np.empty(buckets, np.int64), np.empty(entries, np.int64 if wide else np.uint32)
            _fill(ordered, shift, indices, begin, inside)
            starts.append(begin + filled)
            members.append(inside)
            filled += entries
    starts.append(np.array([filled], np.int64))
    empty = np.empty(0, np.int64 if wide else np.uint32)
    return Buckets(np.concatenate(starts), np.concatenate([empty, *members]))
