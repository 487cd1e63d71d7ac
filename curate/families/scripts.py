"""Code points by script group, counted over Arrow buffers; groups are blocks of Unicode, which never change."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from curate.signals.batch import buffers
from curate.signals.code_points import ALPHA, class_table
from curate.signals.kernels import kernel, sources_digest
from schemas.families import FAMILIES

_BLOCKS: tuple[tuple[tuple[int, int], ...], ...] = (
    # Latin letters
    ((0x41, 0x5A), (0x61, 0x7A), (0xAA, 0xAA), (0xBA, 0xBA), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x2B8), (0x1D00, 0x1D25), (0x1D2C, 0x1D5C),
     (0x1D62, 0x1D65), (0x1D6B, 0x1D77), (0x1D79, 0x1DBE), (0x1E00, 0x1EFF), (0x2071, 0x2071), (0x207F, 0x207F), (0x2090, 0x209C),
     (0x212A, 0x212B), (0x2132, 0x2132), (0x214E, 0x214E), (0x2160, 0x2188), (0x2C60, 0x2C7F), (0xA722, 0xA787), (0xA78B, 0xA7FF),
     (0xAB30, 0xAB64), (0xAB66, 0xAB6B), (0xFB00, 0xFB06), (0xFF21, 0xFF3A), (0xFF41, 0xFF5A), (0x10780, 0x107BA), (0x1DF00, 0x1DFFF)),
    ((0x400, 0x52F), (0x1C80, 0x1C8F), (0x1D2B, 0x1D2B), (0x1D78, 0x1D78), (0x2DE0, 0x2DFF), (0xA640, 0xA69F), (0x1E030, 0x1E08F)),
    ((0x370, 0x3E1), (0x3F0, 0x3FF), (0x1D26, 0x1D2A), (0x1D5D, 0x1D61), (0x1D66, 0x1D6A), (0x1DBF, 0x1DBF), (0x1F00, 0x1FFF),
     (0x2126, 0x2126), (0xAB65, 0xAB65)),
    ((0x600, 0x6FF), (0x750, 0x77F), (0x870, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC), (0x10EC0, 0x10EFF), (0x1EE00, 0x1EEFF)),
    ((0x590, 0x5FF), (0xFB1D, 0xFB4F)),
    ((0x900, 0x963), (0x966, 0x97F), (0xA8E0, 0xA8FF), (0x11B00, 0x11B5F)),
    ((0xE00, 0xE7F),),
    ((0x2E80, 0x2FDF), (0x3005, 0x3005), (0x3007, 0x3007), (0x3021, 0x3029), (0x3038, 0x303B), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
     (0xF900, 0xFAFF), (0x20000, 0x3FFFD)),
    ((0x3041, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F)),
    ((0x1100, 0x11FF), (0x302E, 0x302F), (0x3131, 0x318E), (0xA960, 0xA97C), (0xAC00, 0xD7FB), (0xFFA0, 0xFFDC)),
)  # fmt: skip
NONE, OTHER = 11, 10
GROUPS = 12


@lru_cache(maxsize=1)
def group_table() -> npt.NDArray[np.uint8]:
    """The group of each code point: the place of its column, or NONE for what is no script's (spaces, digits, marks)."""
    table = np.full(0x110000, NONE, np.uint8)
    classes = class_table()
    table[: len(classes)][(classes & ALPHA) != 0] = OTHER
    for group, blocks in enumerate(_BLOCKS):
        for first, last in blocks:
            table[first : last + 1] = group
    return table


@kernel
def count_groups(groups, data, start, end, counts):  # type: ignore[no-untyped-def]
    """Adds to `counts` the code points of each group in the valid UTF-8 data[start:end]."""
    k = start
    while k < end:
        code = np.int64(data[k])
        k += 1
        if code >= 0xF0:
            code = (code & 7) << 18 | (np.int64(data[k]) & 63) << 12 | (np.int64(data[k + 1]) & 63) << 6 | (np.int64(data[k + 2]) & 63)
            k += 3
        elif code >= 0xE0:
            code = (code & 15) << 12 | (np.int64(data[k]) & 63) << 6 | (np.int64(data[k + 1]) & 63)
            k += 2
        elif code >= 0xC0:
            code = (code & 31) << 6 | (np.int64(data[k]) & 63)
            k += 1
        counts[groups[code]] += 1


def _entry(digest: int) -> Callable[..., None]:
    """The compiled entry point; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def count(groups, data, offsets, out):  # type: ignore[no-untyped-def]
        if digest >= 0:
            for row in range(len(offsets) - 1):
                count_groups(groups, data, offsets[row], offsets[row + 1], out[row])

    return count  # type: ignore[no-any-return]


_count = _entry(sources_digest(__file__))


def script_signals(texts: pa.LargeStringArray) -> pa.RecordBatch:
    """Code points of each text by script group.

    Args:
        texts: Any Unicode texts, empty ones too; no nulls.

    Returns:
        One row a text in the order of the texts, columns of `schemas.families`.
    """
    data, offsets = buffers(texts)
    out = np.zeros((len(texts), GROUPS), np.int64)
    _count(group_table(), data, offsets, out)
    return pa.record_batch([pa.array(np.ascontiguousarray(column)) for column in out.T[:NONE]], schema=FAMILIES["scripts"])
