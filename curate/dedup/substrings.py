"""Repeated runs of tokens: every window of n tokens is a unit, and a byte is cut when a window over it has an equal one before it.

A run of n tokens or more occurs twice exactly when each of its windows does, so the union of repeated windows is the union of all
repeated runs, as a suffix array would find them (Lee et al. 2022). A window that overlaps its own first occurrence stays, or periodic
text would lose that, too. A token is a run of ASCII letters, digits and characters beyond ASCII
that are no white space and below U+2E80, or any other visible character; white space is not compared.
"""

from __future__ import annotations

import numba
import numpy as np
import pyarrow as pa

from curate.dedup.exact import text_buffers
from curate.dedup.lines import Units

SUBSTRINGS_VERSION = 1
"""Changes whenever equal texts give other tokens or hashes."""

_FIRST = np.uint64(0x9E6C63D0876A9A63)
_SECOND = np.uint64(0xD1342543DE82EF95)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_S33 = np.uint64(33)

_SPACE, _ALONE, _WORD = 0, 1, 2


@numba.njit(nogil=True, cache=True, inline="always")
def _kind(data, at, end):  # type: ignore[no-untyped-def]
    """Kind of the character at `at`, and its bytes."""
    byte = data[at]
    if byte < 0x80:
        word = (48 <= byte <= 57) or (65 <= byte <= 90) or (97 <= byte <= 122)
        return (_WORD if word else (_SPACE if byte <= 32 else _ALONE)), 1
    if byte < 0xE0:
        space = byte == 0xC2 and at + 1 < end and (data[at + 1] == 0x85 or data[at + 1] == 0xA0)
        return (_SPACE if space else _WORD), 2
    if byte >= 0xF0:
        return _ALONE, 4
    if byte > 0xE2:
        space = byte == 0xE3 and at + 2 < end and data[at + 1] == 0x80 and data[at + 2] == 0x80
        return (_SPACE if space else _ALONE), 3
    if byte == 0xE2 and at + 2 < end:
        second, third = data[at + 1], data[at + 2]
        if (second == 0x80 and (third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF)) or (second == 0x81 and third == 0x9F):
            return _SPACE, 3
        return (_ALONE if second >= 0x80 and (second < 0x82 or second >= 0xBA) else _WORD), 3
    return _WORD, 3


@numba.njit(nogil=True, cache=True, inline="always")
def _token(data, at, end):  # type: ignore[no-untyped-def]
    """Start, end and hash of the next token; start is `end` when there is none."""
    kind, width = _SPACE, 1
    while at < end:
        kind, width = _kind(data, at, end)
        if kind != _SPACE:
            break
        at += width
    start, value = at, np.uint64(0)
    while at < end:
        for i in range(at, min(at + width, end)):
            value = (value ^ np.uint64(data[i])) * _FIRST
            value ^= value >> _S33
        at = min(at + width, end)
        if kind == _ALONE or at >= end:
            break
        kind, width = _kind(data, at, end)
        if kind != _WORD:
            break
    value = (value ^ (value >> _S33)) * _MIX_1
    return start, at, value ^ (value >> _S33)


@numba.njit(nogil=True, cache=True)
def _count(data, offsets, n):  # type: ignore[no-untyped-def]
    windows = 0
    for row in range(len(offsets) - 1):
        at, end, tokens = offsets[row], offsets[row + 1], 0
        while at < end:
            start, at, _ = _token(data, at, end)
            tokens += int(start < end)
        windows += max(0, tokens - n + 1)
    return windows


@numba.njit(nogil=True, cache=True)
def _windows(data, offsets, n, row_of, first, last, hashes):  # type: ignore[no-untyped-def]
    """Rolling hashes: sums of token hashes times powers of two odd bases; the oldest token is taken out when one comes in."""
    top_1, top_2 = np.uint64(1), np.uint64(1)
    for _ in range(n):
        top_1, top_2 = top_1 * _FIRST, top_2 * _SECOND
    values, starts = np.empty(n, np.uint64), np.empty(n, np.int64)
    unit = 0
    for row in range(len(offsets) - 1):
        base, end = offsets[row], offsets[row + 1]
        at, tokens, sum_1, sum_2 = base, 0, np.uint64(0), np.uint64(0)
        while at < end:
            start, at, value = _token(data, at, end)
            if start >= end:
                break
            slot = tokens % n
            sum_1, sum_2 = sum_1 * _FIRST + value, sum_2 * _SECOND + value * _MIX_2
            if tokens >= n:
                sum_1 -= values[slot] * top_1
                sum_2 -= values[slot] * _MIX_2 * top_2
            values[slot], starts[slot] = value, start - base
            tokens += 1
            if tokens >= n:
                row_of[unit], first[unit], last[unit] = row, starts[tokens % n], at - base
                high = (sum_1 ^ (sum_1 >> _S33)) * _MIX_1
                low = (sum_2 ^ (sum_2 >> _S33)) * _MIX_2
                hashes[unit, 0], hashes[unit, 1] = high ^ (high >> _S33), low ^ (low >> _S33)
                unit += 1


def split_windows(texts: pa.LargeStringArray, tokens: int) -> Units:
    """Every window of some tokens, in text order.

    Args:
        texts: Arrow strings without nulls, each below 2 GiB.
        tokens: Tokens in a window.

    Returns:
        Windows; size is the end of the window, which no threshold is for.
    """
    data, offsets = text_buffers(texts)
    count = _count(data, offsets, tokens)
    row, start, stop = (np.empty(count, np.int32) for _ in range(3))
    hashes = np.empty((count, 2), np.uint64)
    _windows(data, offsets, tokens, row, start, stop, hashes)
    return Units(row, start, stop, stop, hashes)
