"""Exact similarity of a stream of texts to a small reference set, without LSH: every pair from the threshold on is found.

The reference's shingles lie in a hash table with the references that hold each. A text's shingles are looked up one by one,
first in a bit map that stays in cache; only a text that shares enough shingles with one reference is made a set.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.dedup.exact import longest, text_buffers
from curate.dedup.shingles import document_shingles, in_chunks, shingle_room, shingle_sets, sort_unique, word_table

OVERLAP_VERSION = 1
"""Changes whenever equal texts give other pairs."""

_MATCHES = 1 << 16
"""Matches that a call of the kernel has room for, beyond those of one text."""

_ONE = np.uint64(1)
_S6 = np.uint64(6)
_LOW6 = np.uint64(63)


@numba.njit(nogil=True, cache=True)
def _build(distinct, slots, bitmap):  # type: ignore[no-untyped-def]
    """Fills the open-addressing table (numbers of distinct hashes, -1 where free) and the bit map."""
    mask, bits = np.uint64(len(slots) - 1), np.uint64(len(bitmap) * 64 - 1)
    for i in range(len(distinct)):
        slot = np.int64(distinct[i] & mask)
        while slots[slot] >= 0:
            slot = (slot + 1) & np.int64(mask)
        slots[slot] = i
        bit = (distinct[i] >> np.uint64(20)) & bits
        bitmap[np.int64(bit >> _S6)] |= _ONE << (bit & _LOW6)


@numba.njit(nogil=True, cache=True)
def _look_up(hashes, count, distinct, slots, bitmap, hits):  # type: ignore[no-untyped-def]
    """Writes the numbers of known hashes, repeats included, to `hits`; returns how many."""
    mask, bits, found = np.uint64(len(slots) - 1), np.uint64(len(bitmap) * 64 - 1), 0
    for i in range(count):
        h = hashes[i]
        bit = (h >> np.uint64(20)) & bits
        if (bitmap[np.int64(bit >> _S6)] >> (bit & _LOW6)) & _ONE:
            slot = np.int64(h & mask)
            while slots[slot] >= 0:
                if distinct[slots[slot]] == h:
                    hits[found] = slots[slot]
                    found += 1
                    break
                slot = (slot + 1) & np.int64(mask)
    return found


@numba.njit(nogil=True, cache=True)
def _tally(hits, found, seen, mark, starts, postings, shared):  # type: ignore[no-untyped-def]
    """Adds each distinct hit to the counts of the references that hold it."""
    for i in range(found):
        number = hits[i]
        if seen[number] != mark:
            seen[number] = mark
            for p in range(starts[number], starts[number + 1]):
                shared[postings[p]] += 1


@numba.njit(nogil=True, cache=True)
def _similar(data, offsets, first, last, table, shingle, index, threshold, rows, references, jaccards):  # type: ignore[no-untyped-def]
    """Matches of texts from `first`; stops when room runs low. Returns (next text, matches)."""
    distinct, slots, bitmap, starts, postings, sizes = index
    room = np.empty(shingle_room(longest(offsets, first, last)), np.uint64)
    hits = np.empty(len(room), np.int32)
    seen = np.full(len(distinct), -1, np.int64)
    shared = np.zeros(len(sizes), np.int64)
    fewest = threshold * sizes.min()
    matches = 0
    for text in range(first, last):
        if matches + len(sizes) > len(rows):
            return text, matches
        count = document_shingles(data, offsets[text], offsets[text + 1], table, shingle, room)
        found = _look_up(room, count, distinct, slots, bitmap, hits)
        # J >= t means that the shared part is at least t times the larger set. Half a shingle of slack covers rounding.
        if found + 0.5 < fewest:
            continue
        shared[:] = 0
        _tally(hits, found, seen, text, starts, postings, shared)
        own = -1
        for reference in range(len(sizes)):
            both = shared[reference]
            if both == 0 or both + 0.5 < threshold * sizes[reference]:
                continue
            if own < 0:
                own = sort_unique(room, count, np.empty(count, np.uint64), np.empty(2 * count + 2, np.int64))
            jaccard = both / (own + sizes[reference] - both)
            if jaccard >= threshold:
                rows[matches], references[matches], jaccards[matches] = text, reference, jaccard
                matches += 1
    return last, matches


class ReferenceIndex:
    """Shingle sets of a small set of documents, to find what is similar to them in a stream."""

    def __init__(self, texts: pa.LargeStringArray, shingle: int = 5) -> None:
        """Builds the index.

        Args:
            texts: Reference texts, without nulls; memory is about 50 bytes for each of their distinct shingles.
            shingle: Words per shingle.
        """
        self.shingle = shingle
        hashes, offsets = shingle_sets(texts, shingle) if len(texts) else (np.empty(0, np.uint64), np.zeros(1, np.int64))
        sizes = np.diff(offsets)
        order = np.argsort(hashes, kind="stable")
        distinct, starts = np.unique(hashes[order], return_index=True)
        owners = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        slots = np.full(1 << max(4, (4 * len(distinct)).bit_length()), -1, np.int32)
        bitmap = np.zeros(1 << max(1, len(distinct).bit_length() - 2), np.uint64)
        _build(distinct, slots, bitmap)
        self._index = (distinct, slots, bitmap, np.append(starts, len(hashes)).astype(np.int64), owners[order], sizes)

    def __len__(self) -> int:
        """Reference documents."""
        return len(self._index[5])

    def similar(
        self, texts: pa.LargeStringArray, threshold: float, threads: int = 1
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """All pairs of a text and a reference with Jaccard similarity of at least the threshold.

        Args:
            texts: Arrow strings without nulls.
            threshold: Above 0, at most 1.
            threads: Threads to work with; the result does not depend on it.

        Returns:
            (row, reference, jaccard), by row, then by reference.

        Raises:
            ValueError: For a threshold outside (0, 1].
        """
        if not 0.0 < threshold <= 1.0:
            raise ValueError(f"threshold = {threshold}: a similarity above 0, at most 1")
        data, offsets = text_buffers(texts)
        if not len(self):
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)

        def part(first: int, last: int) -> list[tuple[Any, ...]]:
            found = []
            rows, references = np.empty(_MATCHES + len(self), np.int64), np.empty(_MATCHES + len(self), np.int64)
            jaccards = np.empty(len(rows))
            while first < last:
                first, count = _similar(
                    data, offsets, first, last, word_table(), self.shingle, self._index, threshold, rows, references, jaccards
                )
                found.append((rows[:count].copy(), references[:count].copy(), jaccards[:count].copy()))
            return found

        chunks = in_chunks(len(offsets) - 1, threads)
        if len(chunks) == 1:
            parts = part(*chunks[0])
        else:
            with ThreadPoolExecutor(len(chunks)) as pool:
                parts = [piece for pieces in pool.map(lambda chunk: part(*chunk), chunks) for piece in pieces]
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        rows, references, jaccards = (np.concatenate(column) for column in zip(*parts, strict=True))
        return rows, references, jaccards
