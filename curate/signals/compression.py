"""Size of a text after a greedy LZ77 pass, estimated: low for repetitive text, near the text's own for noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from curate.signals.kernels import kernel

TABLE_BITS = 13
WINDOW = 1 << 16
MATCH_COST = 3
"""Bytes a match is charged: two for the distance, one for the token."""
MULTIPLIER = np.uint32(2654435761)
SHIFT = np.uint32(32 - TABLE_BITS)


def new_table() -> npt.NDArray[np.int64]:
    """Scratch for `lz_bytes`: where a hash of four bytes was seen last, counted from the start of the batch."""
    return np.full(1 << TABLE_BITS, -WINDOW - 1, np.int64)


@kernel
def lz_bytes(data, start, end, table):  # type: ignore[no-untyped-def]
    """Estimated compressed size of data[start:end].

    Entries of `table` from before `start` are ignored, so one table serves all texts of a batch in order.
    """
    cost = 0
    k = start
    misses = 0
    while k + 4 <= end:
        word = (
            np.uint32(data[k])
            | np.uint32(data[k + 1]) << np.uint32(8)
            | np.uint32(data[k + 2]) << np.uint32(16)
            | np.uint32(data[k + 3]) << np.uint32(24)
        )
        # Compiled code widens 32-bit products: cut them back before the shift.
        slot = np.int64(np.uint32(word * MULTIPLIER) >> SHIFT)
        seen = table[slot]
        table[slot] = k
        if (
            seen < start
            or k - seen >= WINDOW
            or data[seen] != data[k]
            or data[seen + 1] != data[k + 1]
            or data[seen + 2] != data[k + 2]
            or data[seen + 3] != data[k + 3]
        ):
            # Stretches without a match are scanned in growing steps, as fast compressors do.
            step = min(1 + (misses >> 5), end - k)
            misses += 1
            cost += step
            k += step
            continue
        misses = 0
        length = 4
        while k + length < end and data[seen + length] == data[k + length]:
            length += 1
        cost += MATCH_COST + length // 255
        k += length
    return cost + (end - k)
