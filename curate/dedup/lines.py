"""Repeated lines and paragraphs, within documents or across them: the first occurrence stays, later ones are cut out.

A unit is a line, or a paragraph: lines up to the next blank one. Blank lines are no units. Two units are equal when their bytes
are, white space folded. Cuts are spans of bytes, so that an edit can be told and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.corpus import mix64
from curate.dedup.exact import fold_hash, fold_room, text_buffers

LINES_VERSION = 1
"""Changes whenever equal texts give other units, hashes or cuts."""

PART_UNITS = 1 << 21
"""Units that are compared at once, about: parts of all hashes are sorted after one another, so that little is held beside the units."""

Int64 = npt.NDArray[np.int64]
Integers = npt.NDArray[np.signedinteger[Any]]
_LINE_END = 10


@dataclass(frozen=True)
class Units:
    """Lines or paragraphs of documents in text order; arrays of shape (units,) but for the hashes."""

    row: Integers
    """Row of the document, ascending."""
    start: Integers
    """First byte in the document."""
    stop: Integers
    """Byte after the unit: its line end, and the blank lines after a paragraph, belong to it."""
    size: Integers
    """Bytes without ASCII white space at the ends."""
    hashes: npt.NDArray[np.uint64]
    """128-bit hashes of the folded bytes, shape (units, 2)."""


@numba.njit(nogil=True, cache=True)
def _split(data, offsets, paragraphs, write, row, start, stop):  # type: ignore[no-untyped-def]
    """Finds the units, and writes them if told to; returns their number."""
    count = 0
    for document in range(len(offsets) - 1):
        base, end, at = offsets[document], offsets[document + 1], offsets[document]
        inside, before = False, count
        while at < end:
            first, blank = at, True
            while at < end and data[at] != _LINE_END:
                blank &= data[at] <= 32
                at += 1
            at = min(at + 1, end)
            if not blank and not (paragraphs and inside):
                if write:
                    row[count], start[count], stop[count] = document, first - base, (end if paragraphs else at) - base
                    if paragraphs and count > before:
                        stop[count - 1] = first - base
                count += 1
            inside = not blank
    return count


@numba.njit(nogil=True, cache=True)
def _hash(data, offsets, row, start, stop, size, hashes):  # type: ignore[no-untyped-def]
    most = np.int64(0)
    for i in range(len(row)):
        most = max(most, stop[i] - start[i])
    room = np.empty(fold_room(most), np.uint64)
    for i in range(len(row)):
        first, last = offsets[row[i]] + start[i], offsets[row[i]] + stop[i]
        hashes[i, 0], hashes[i, 1] = fold_hash(data, first, last, room)
        while data[first] <= 32:
            first += 1
        while data[last - 1] <= 32:
            last -= 1
        size[i] = last - first


@numba.njit(nogil=True, cache=True)
def _cut(data, offsets, row, start, stop, out, new_offsets):  # type: ignore[no-untyped-def]
    """Copies what lies outside the cuts, which may overlap."""
    cut, filled = 0, 0
    for document in range(len(offsets) - 1):
        at, end = offsets[document], offsets[document + 1]
        while cut < len(row) and row[cut] == document:
            first = max(at, offsets[document] + start[cut])
            out[filled : filled + first - at] = data[at:first]
            filled += first - at
            at = max(at, offsets[document] + stop[cut])
            cut += 1
        out[filled : filled + end - at] = data[at:end]
        filled += end - at
        new_offsets[document + 1] = filled
    return filled


def split_units(texts: pa.LargeStringArray, unit: Literal["line", "paragraph"] = "line") -> Units:
    """The lines or paragraphs of texts.

    Args:
        texts: Arrow strings without nulls.
        unit: line, or paragraph.

    Returns:
        Units that are not blank.

    Raises:
        ValueError: For another unit.
    """
    if unit not in ("line", "paragraph"):
        raise ValueError(f"unit = {unit!r}: it is line or paragraph")
    data, offsets = text_buffers(texts)
    none = np.empty(0, np.int64)
    count = _split(data, offsets, unit == "paragraph", False, none, none, none)
    row, start, stop, size = (np.empty(count, np.int64) for _ in range(4))
    hashes = np.empty((count, 2), np.uint64)
    _split(data, offsets, unit == "paragraph", True, row, start, stop)
    _hash(data, offsets, row, start, stop, size, hashes)
    return Units(row, start, stop, size, hashes)


@numba.njit(nogil=True, cache=True)
def _mark(order, high, low, places, apart, out):  # type: ignore[no-untyped-def]
    """Marks all but the first of equal hashes; whether some groups of equal `high`, left unmarked, need a closer look."""
    closer = False
    i = 0
    while i < len(order):
        k, first, same = i + 1, order[i], True
        while k < len(order) and high[order[k]] == high[order[i]]:
            same &= low[order[k]] == low[order[i]]
            first = min(first, order[k])
            k += 1
        for j in range(i, k):
            out[order[j]] = same and places[order[j]] - places[first] >= apart
        closer |= not same
        i = k
    return closer


@numba.njit(nogil=True, cache=True)
def _members(high, shift, part):  # type: ignore[no-untyped-def]
    """Units whose hash has these leading bits."""
    count = 0
    for unit in range(len(high)):
        count += high[unit] >> shift == part
    out = np.empty(count, np.int64)
    count = 0
    for unit in range(len(high)):
        if high[unit] >> shift == part:
            out[count] = unit
            count += 1
    return out


def repeats(
    hashes: npt.NDArray[np.uint64], group: Int64 | None = None, apart: int = 1, places: npt.NDArray[np.integer[Any]] | None = None
) -> npt.NDArray[np.bool_]:
    """Which units have an equal one before them.

    Args:
        hashes: Shape (units, 2), in the order that decides which occurrence is the first: over all shards of a corpus.
        group: Only units of equal group are compared: the document's number, for repeats within documents; None for all.
        apart: Places by which a unit must be after its first occurrence: how many units overlap.
        places: Ascending place of each unit; None for its number.

    Returns:
        True for each unit but the first of its kind (and what overlaps that), shape (units,).
    """
    high, low = hashes[:, 0], hashes[:, 1]
    places = np.arange(len(high)) if places is None else places
    if group is not None:
        high = high ^ mix64(group.astype(np.uint64))
        low = low + mix64(~group.astype(np.uint64))
    out = np.zeros(len(high), np.bool_)
    bits = (len(high) // PART_UNITS).bit_length()
    for part in range(1 << bits):
        mine = _members(high, np.uint64(64 - bits), np.uint64(part)) if bits else np.arange(len(high))
        out[mine] = _repeats(high[mine], low[mine], places[mine], apart)
    return out


def _repeats(
    high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64], places: npt.NDArray[np.integer[Any]], apart: int
) -> npt.NDArray[np.bool_]:
    """Which of some units have an equal one among them before them."""
    out = np.zeros(len(high), np.bool_)
    if _mark(np.argsort(high), high, low, places, apart, out):
        order = np.lexsort((low, high))  # stable: equal units stay in their order
        new = np.ones(len(order), np.bool_)
        new[1:] = (high[order[1:]] != high[order[:-1]]) | (low[order[1:]] != low[order[:-1]])
        first = order[np.flatnonzero(new)[np.cumsum(new) - 1]]
        out[order] = places[order] - places[first] >= apart
    return out


def cut_units(texts: pa.LargeStringArray, units: Units, drop: npt.NDArray[np.bool_]) -> tuple[pa.LargeStringArray, Int64]:
    """Texts without some of their units.

    Args:
        texts: The texts that the units are of.
        units: From `split_units`.
        drop: Units to cut, shape (units,).

    Returns:
        (texts, removed): the new texts, and the bytes cut from each, shape (texts,). A text without cuts is what it was; one
        whose last unit is cut ends with the line end of the unit before.
    """
    data, offsets = text_buffers(texts)
    row, start, stop = units.row[drop], units.start[drop], units.stop[drop]
    out = np.empty(int(offsets[-1] - offsets[0]), np.uint8)
    new_offsets = np.zeros(len(offsets), np.int64)
    filled = _cut(data, offsets, row, start, stop, out, new_offsets)
    cut = pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(new_offsets), pa.py_buffer(out[:filled]))
    return cut, np.diff(offsets) - np.diff(new_offsets)
