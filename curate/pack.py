"""Packing: whole documents into rows of one length by best-fit decreasing, with the fewest cuts that keep padding within its limit.

A document longer than a row fills whole rows, and its tail is packed like a short document. Each piece goes, the longest first, into the
row whose free space it fills best (Johnson 1973; for language models Ding et al. 2024, "Fewer truncations improve language modeling").
Where that leaves more padding than allowed (documents of just over half a row cannot share one), the rows of which the fewest pieces
must be cut are dissolved into the largest gaps of the others.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import partial

import numba
import numpy as np
from numpy.typing import NDArray

kernel = partial(numba.njit, nogil=True, cache=True)

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Packing:
    """Pieces of documents in rows, ordered by row, then position.

    Attributes:
        document: index of each piece's document, ``(pieces,)``.
        offset: first token of the piece within its document.
        length: tokens of the piece.
        row: its row.
        start: its first position in the row.
        rows: number of rows.
        discarded: tokens of tails shorter than the least tail.
        cut: documents in more than one piece although they fit into one row.
    """

    document: Integers
    offset: Integers
    length: Integers
    row: Integers
    start: Integers
    rows: int
    discarded: int
    cut: int


def pack(lengths: Integers, row_length: int, min_tail: int = 1, max_padding: float = 0.005) -> Packing:
    """Pack documents into rows.

    Args:
        lengths: tokens of each document, BOS and EOS included, ``(documents,)``; a document of 0 tokens has no piece.
        row_length: positions of a row.
        min_tail: shorter tails of documents longer than a row are discarded, and no piece is cut shorter.
        max_padding: share of empty positions above which documents that fit into a row are cut, too; 1 never cuts them. One row's
            worth of padding is always allowed, since the tokens need not fill the last row.

    Returns:
        The packing, a function of the arguments alone.
    """
    lengths = np.ascontiguousarray(lengths, dtype=np.int64)
    document, offset, length, discarded = _split(lengths, row_length, min_tail)
    row, rows = _best_fit(np.argsort(-length, kind="stable"), length, row_length)
    dissolve = _rows_to_save(int(length.sum()), rows, row_length, max_padding)
    if dissolve:
        (document, offset, length, row), rows = _dissolve((document, offset, length, row), rows, row_length, min_tail, dissolve)
    order = np.lexsort((np.arange(len(row)), row))
    document, offset, length, row = document[order], offset[order], length[order], row[order]
    ends = np.cumsum(length)
    first = np.searchsorted(row, np.arange(rows))
    start = ends - length - (ends - length)[first][row] if rows else ends
    pieces = np.bincount(document[lengths[document] <= row_length], minlength=len(lengths))
    return Packing(document, offset, length, row, start, rows, discarded, int(np.sum(pieces > 1)))


def _rows_to_save(tokens: int, rows: int, row_length: int, max_padding: float) -> int:
    """Rows to dissolve so that padding is at most ``max_padding`` of all positions, or less than one row's."""
    least = -(-tokens // row_length)
    allowed = int(tokens / (1 - max_padding) / row_length) if max_padding < 1 else rows
    return max(0, rows - max(least, allowed))


def _dissolve(
    pieces: tuple[Integers, Integers, Integers, Integers], rows: int, row_length: int, min_tail: int, count: int
) -> tuple[tuple[Integers, Integers, Integers, Integers], int]:
    """Cut the pieces of ``count`` rows into the gaps of the others: rows of few pieces first, so that few documents are cut."""
    document, offset, length, row = pieces
    gap = row_length - np.bincount(row, weights=length, minlength=rows).astype(np.int64)
    open_rows = np.flatnonzero(gap > 0)
    gone = open_rows[np.lexsort((open_rows, -gap[open_rows], np.bincount(row, minlength=rows)[open_rows]))][:count]
    stays = np.ones(rows, dtype=bool)
    stays[gone] = False
    loose = np.flatnonzero(~stays[row])
    loose = loose[np.argsort(-length[loose], kind="stable")]
    gaps = [(-int(gap[r]), int(r)) for r in open_rows if stays[r]]
    heapq.heapify(gaps)
    cut: list[tuple[int, int, int, int]] = []
    for piece in loose:
        cut += _fill(int(document[piece]), int(offset[piece]), int(length[piece]), gaps, min_tail)
    new = np.array(cut, dtype=np.int64).reshape(-1, 4).T
    unplaced = new[3] < 0
    number = np.cumsum(stays) - 1
    new[3, ~unplaced] = number[new[3, ~unplaced]]
    row_more, rows_more = _best_fit(np.argsort(-new[2, unplaced], kind="stable"), new[2, unplaced], row_length)
    new[3, unplaced] = row_more + rows - len(gone)
    kept = stays[row]
    old = np.stack([document[kept], offset[kept], length[kept], number[row[kept]]])
    done = np.concatenate([old, new], axis=1)
    return (done[0], done[1], done[2], done[3]), rows - len(gone) + rows_more


def _fill(document: int, offset: int, length: int, gaps: list[tuple[int, int]], min_tail: int) -> list[tuple[int, int, int, int]]:
    """Cut one piece over the largest gaps (a heap of (-space, row)); what finds no gap has row -1. No cut is shorter than ``min_tail``."""
    cut = []
    while gaps:
        space = -gaps[0][0]
        size = length if length <= space else min(space, length - min_tail)
        if size < min(length, min_tail):
            break
        row = gaps[0][1]
        cut.append((document, offset, size, row))
        if space > size:
            heapq.heapreplace(gaps, (size - space, row))
        else:
            heapq.heappop(gaps)
        offset, length = offset + size, length - size
        if not length:
            return cut
    return [*cut, (document, offset, length, -1)]


@kernel()
def _split(lengths: Integers, row_length: int, min_tail: int) -> tuple[Integers, Integers, Integers, int]:
    """Pieces of documents: whole rows and a tail; tails shorter than the least are counted and left out."""
    count = 0
    for n in lengths:
        count += n // row_length + 1
    document = np.empty(count, dtype=np.int64)
    offset = np.empty(count, dtype=np.int64)
    length = np.empty(count, dtype=np.int64)
    piece, discarded = 0, 0
    for d in range(len(lengths)):
        for begin in range(0, lengths[d], row_length):
            size = min(row_length, lengths[d] - begin)
            if begin > 0 and size < min_tail:
                discarded += size
                continue
            document[piece], offset[piece], length[piece] = d, begin, size
            piece += 1
    return document[:piece], offset[:piece], length[:piece], discarded


@kernel()
def _best_fit(order: Integers, length: Integers, row_length: int) -> tuple[Integers, int]:
    """Row of each piece. Open rows of equal free space form a stack; a bit tree over free space finds the least that is enough."""
    row = np.empty(len(length), dtype=np.int64)
    top = np.full(row_length + 1, -1, dtype=np.int64)
    below = np.empty(len(length), dtype=np.int64)
    levels = 1
    while 64**levels <= row_length:
        levels += 1
    tree = np.zeros((levels, (row_length >> 6) + 1), dtype=np.uint64)
    rows = 0
    for piece in order:
        size = length[piece]
        space = _next_space(tree, size)
        if space < 0:
            space, chosen = row_length, rows
            rows += 1
        else:
            chosen = top[space]
            top[space] = below[chosen]
            if top[space] < 0:
                _clear(tree, space)
        row[piece] = chosen
        rest = space - size
        if rest > 0:
            if top[rest] < 0:
                _set(tree, rest)
            below[chosen] = top[rest]
            top[rest] = chosen
    return row, rows


@kernel()
def _set(tree: NDArray[np.uint64], value: int) -> None:
    for level in range(len(tree)):
        tree[level, value >> 6] |= np.uint64(1) << np.uint64(value & 63)
        value >>= 6


@kernel()
def _clear(tree: NDArray[np.uint64], value: int) -> None:
    for level in range(len(tree)):
        tree[level, value >> 6] &= ~(np.uint64(1) << np.uint64(value & 63))
        if tree[level, value >> 6] != 0:
            return
        value >>= 6


@kernel()
def _next_space(tree: NDArray[np.uint64], least: int) -> int:
    """The smallest member that is at least ``least``, or -1."""
    value = least
    for level in range(len(tree)):
        if value >> 6 >= tree.shape[1]:
            return -1
        word = tree[level, value >> 6] >> np.uint64(value & 63)
        if word != 0:
            value += _lowest(word)
            for down in range(level - 1, -1, -1):
                value = (value << 6) + _lowest(tree[down, value])
            return value
        value = (value >> 6) + 1
    return -1


@kernel()
def _lowest(word: np.uint64) -> int:
    """Index of the lowest set bit."""
    index = 0
    for shift in (32, 16, 8, 4, 2, 1):
        if word & ((np.uint64(1) << np.uint64(shift)) - np.uint64(1)) == 0:
            word >>= np.uint64(shift)
            index += shift
    return index
