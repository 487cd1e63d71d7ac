"""Signs of damage in source code: blocks that nothing opens or fills, noise in names, an end without a line feed.

Counted over bytes, so any language whose blocks are indented works; what a parser would say is approximated by its indentation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numba import njit

from curate.families.counts import counted
from curate.signals.kernels import inlined, kernel, sources_digest

CODE_LINES, UNOPENED, UNFILLED, NAMES, ROUGH_NAMES, UNFINISHED = range(6)
ROUGH = 5
"""Consonants in a row from which a name is noise."""


@inlined
def letter(byte):  # type: ignore[no-untyped-def]
    """Whether a byte is an ASCII letter."""
    return 97 <= (byte | 32) <= 122


@inlined
def vowel(byte):  # type: ignore[no-untyped-def]
    """Whether a byte is a vowel of names."""
    low = byte | 32
    return low == 97 or low == 101 or low == 105 or low == 111 or low == 117 or low == 121


@inlined
def opens(byte):  # type: ignore[no-untyped-def]
    """Whether a line that ends in this byte goes on in a deeper one: brackets, colon, comma, operators, quotes and the backslash."""
    return (
        byte == 58 or byte == 123 or byte == 40 or byte == 91 or byte == 44 or byte == 92 or byte == 61 or byte == 43 or byte == 124
        or byte == 38 or byte == 34 or byte == 39 or byte == 62
    )  # fmt: skip


@kernel
def line_structure(data, start, end, out):  # type: ignore[no-untyped-def]
    """Adds the lines of data[start:end] whose depth the line before does not explain."""
    depth, last, k = 0, np.int64(58), start
    while k < end:
        first = k
        while k < end and data[k] != 10:
            k += 1
        a, b = first, k
        k += 1
        while a < b and (data[a] == 32 or data[a] == 9):
            a += 1
        while b > a and (data[b - 1] == 32 or data[b - 1] == 13):
            b -= 1
        if a == b:
            continue
        mine = a - first
        out[CODE_LINES] += 1
        out[UNOPENED] += int(mine > depth and not opens(last))
        out[UNFILLED] += int(mine <= depth and (last == 58 or last == 123) and out[CODE_LINES] > 1)
        depth, last = mine, np.int64(data[b - 1])


@kernel
def name_structure(data, start, end, out):  # type: ignore[no-untyped-def]
    """Adds the names of data[start:end], and those with many consonants in a row or a digit between letters."""
    k = start
    while k < end:
        if not letter(data[k]):
            k += 1
            continue
        run = 0
        rough = mixed = False
        while k < end and (letter(data[k]) or 48 <= data[k] <= 57 or data[k] == 95):
            if letter(data[k]):
                run = 0 if vowel(data[k]) else run + 1
                rough |= run >= ROUGH or mixed
            elif data[k] == 95:
                run, mixed = 0, False
            else:
                run, mixed = 0, True
            k += 1
        out[NAMES] += 1
        out[ROUGH_NAMES] += int(rough)


def _entry(digest: int) -> Callable[..., None]:
    """The compiled entry point; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def count(data, offsets, out):  # type: ignore[no-untyped-def]
        if digest >= 0:
            for row in range(len(out)):
                start, end = offsets[row], offsets[row + 1]
                line_structure(data, start, end, out[row])
                name_structure(data, start, end, out[row])
                out[row, UNFINISHED] = int(end > start and data[end - 1] != 10)

    return count  # type: ignore[no-any-return]


_count = _entry(sources_digest(__file__))


def structure_signals(texts: pa.LargeStringArray) -> pa.RecordBatch:
    """The signs of each text.

    Args:
        texts: Any Unicode texts, empty ones too; no nulls.

    Returns:
        One row a text in the order of the texts, columns of `schemas.families`.
    """
    return counted("structure", texts, _count)
