"""Exact Jaccard similarity of pairs of documents, whose texts are read again in batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.dedup.shingles import shingle_sets

Int64 = npt.NDArray[np.int64]
FetchTexts = Callable[[Int64], pa.LargeStringArray]
"""Texts of documents, by ascending index; any way of batching gives the same result."""

BATCH_SHINGLES = 1 << 24
"""Shingles of the documents of one batch: about 16 bytes each with the text."""


@numba.njit(nogil=True, cache=True)
def common(a, b):  # type: ignore[no-untyped-def]
    """Number of hashes that two sorted sets share."""
    i, j, shared = np.int64(0), np.int64(0), np.int64(0)
    while i < len(a) and j < len(b):
        x, y = a[i], b[j]
        shared += np.int64(x == y)
        i += np.int64(x <= y)
        j += np.int64(y <= x)
    return shared


@numba.njit(nogil=True, cache=True)
def _jaccards(hashes, offsets, left, right, out):  # type: ignore[no-untyped-def]
    for p in range(len(left)):
        a = hashes[offsets[left[p]] : offsets[left[p] + 1]]
        b = hashes[offsets[right[p]] : offsets[right[p] + 1]]
        shared = common(a, b)
        out[p] = shared / (len(a) + len(b) - shared)


@numba.njit(nogil=True, cache=True)
def _cut(left, right, sizes, first, budget, stamp, number):  # type: ignore[no-untyped-def]
    """End of the batch of pairs from `first`: its documents have at most `budget` shingles, unless it is a single pair."""
    total = 0
    for p in range(first, len(left)):
        for d in (left[p], right[p]):
            if stamp[d] != number:
                stamp[d] = number
                total += sizes[d]
        if total > budget and p > first:
            return p
    return len(left)


def read_sets(documents: Int64, fetch_texts: FetchTexts, shingle: int, threads: int) -> tuple[npt.NDArray[np.uint64], Int64]:
    """Shingle sets of documents, whose texts are read; see `shingle_sets`.

    Raises:
        ValueError: Other than one text a document was given.
    """
    texts = fetch_texts(documents)
    if len(texts) != len(documents):
        raise ValueError(f"fetch_texts gave {len(texts)} texts for {len(documents)} documents")
    return shingle_sets(texts, shingle, threads)


def jaccards(hashes: npt.NDArray[np.uint64], offsets: Int64, left: Int64, right: Int64) -> npt.NDArray[np.float64]:
    """Jaccard similarity of pairs of sets, rows of what `shingle_sets` gives."""
    out = np.empty(len(left))
    _jaccards(hashes, offsets, left, right, out)
    return out


def _batches(left: Int64, right: Int64, sizes: Int64, budget: int) -> Iterator[tuple[int, int]]:
    stamp = np.full(len(sizes), -1, np.int64)
    first = 0
    while first < len(left):
        last = _cut(left, right, sizes, first, budget, stamp, first)
        yield first, last
        first = last


def exact_jaccard(
    left: Int64,
    right: Int64,
    shingles: Int64,
    fetch_texts: FetchTexts,
    shingle: int,
    budget: int = BATCH_SHINGLES,
    threads: int = 1,
) -> npt.NDArray[np.float64]:
    """Jaccard similarity of the shingle sets of pairs of documents.

    Args:
        left: Document indices, shape (pairs,).
        right: Their partners.
        shingles: Shingles of each document, from its signature; batches are cut by it.
        fetch_texts: Reads texts again, by ascending document index.
        shingle: Words per shingle.
        budget: Shingles of one batch's documents; memory is about 16 bytes for each.
        threads: Threads for shingling; the result does not depend on it.

    Returns:
        float64, shape (pairs,).
    """
    documents, numbers = np.unique(np.concatenate([left, right]), return_inverse=True)
    first_of, second_of = numbers[: len(left)].astype(np.int64), numbers[len(left) :].astype(np.int64)
    order = np.lexsort((second_of, first_of))
    first_of, second_of = first_of[order], second_of[order]
    out = np.empty(len(left))
    for start, end in _batches(first_of, second_of, np.asarray(shingles[documents], np.int64), budget):
        a, b = first_of[start:end], second_of[start:end]
        wanted, places = np.unique(np.concatenate([a, b]), return_inverse=True)
        hashes, offsets = read_sets(documents[wanted], fetch_texts, shingle, threads)
        out[start:end] = jaccards(hashes, offsets, places[: len(a)], places[len(a) :])
    result = np.empty_like(out)
    result[order] = out
    return result
