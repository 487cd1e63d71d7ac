"""Size of a text after a greedy LZ77 pass, estimated: low for repetitive text, near the text's own for noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numba import njit

from curate.signals import hashing
from curate.signals.batch import buffers
from curate.signals.hashing import load_half
from curate.signals.kernels import kernel, sources_digest
from schemas.families import FAMILIES

TABLE_BITS = 13
WINDOW = 1 << 16
MATCH_COST = 3
"""Bytes a match is charged: two for the distance, one for the token."""
MULTIPLIER = np.uint32(2654435761)
SHIFT = np.uint32(32 - TABLE_BITS)


@kernel
def lz_bytes(data, start, end, table):  # type: ignore[no-untyped-def]
    """Estimated compressed size of data[start:end].

    `table` holds where a hash of four bytes was seen last, counted from the start of the batch; entries from before `start` are ignored,
    so one table serves all texts of a batch in order.
    """
    cost = 0
    k = start
    misses = 0
    while k + 4 <= end:
        word = load_half(data, k)
        # Compiled code widens 32-bit products: cut them back before the shift.
        slot = np.int64(np.uint32(word * MULTIPLIER) >> SHIFT)
        seen = table[slot]
        table[slot] = k
        if seen < start or k - seen >= WINDOW or load_half(data, seen) != word:
            # Stretches without a match are scanned in growing steps, as fast compressors do.
            step = min(1 + (misses >> 5), end - k)
            misses += 1
            cost += step
            k += step
            continue
        misses = 0
        length = 4
        while k + length + 4 <= end and load_half(data, seen + length) == load_half(data, k + length):
            length += 4
        while k + length < end and data[seen + length] == data[k + length]:
            length += 1
        cost += MATCH_COST + length // 255
        k += length
    return cost + (end - k)


def _entry(digest: int) -> Callable[..., None]:
    """The compiled entry point; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def count(data, offsets, out):  # type: ignore[no-untyped-def]
        if digest >= 0:
            table = np.full(1 << TABLE_BITS, -WINDOW - 1, np.int64)
            for row in range(len(out)):
                out[row] = lz_bytes(data, offsets[row], offsets[row + 1], table)

    return count  # type: ignore[no-any-return]


_count = _entry(sources_digest(__file__, hashing.__file__))


def compression_signals(texts: pa.LargeStringArray) -> pa.RecordBatch:
    """The estimate for each text.

    Args:
        texts: Any Unicode texts, empty ones too; no nulls.

    Returns:
        One row a text in the order of the texts, columns of `schemas.families`.
    """
    data, offsets = buffers(texts)
    out = np.zeros(len(texts), np.int64)
    _count(data, offsets, out)
    return pa.record_batch([pa.array(out)], schema=FAMILIES["compression"])
