"""Dropout masks from a counter-based generator: Philox-4x32-10 (Salmon et al. 2011), eight elements to a counter.

An element's draw depends on (seed, offset, its index) alone, so a mask is recomputed instead of stored, whatever the block size or device.
"""

from __future__ import annotations

import torch

# Salmon et al. 2011, table 2: multipliers and Weyl increments.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF

DRAW_BITS = 16


def threshold(p: float) -> int:
    """Return the draw below which an element is dropped: p in steps of 2^-16.

    Raises:
        ValueError: for p outside [0, 1).
    """
    if not 0 <= p < 1:
        raise ValueError(f"dropout probability must be in [0, 1), got {p}")
    return min(round(p * (1 << DRAW_BITS)), (1 << DRAW_BITS) - 1)


def keep_scale(p: float) -> float:
    """Return 1 / (probability to keep), of the probability as it is drawn."""
    return 1 / (1 - threshold(p) / (1 << DRAW_BITS))


def philox(counter: tuple[torch.Tensor | int, ...], seed: int) -> tuple[torch.Tensor, ...]:
    """Return the four 32-bit words (in int64) of Philox-4x32-10 at a counter of four 32-bit words (at least the first a tensor)."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(_ROUNDS):
        # int64 products wrap modulo 2^64, so both halves are right once masked.
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = ((second >> 32) & _LOW) ^ c1 ^ k0, second & _LOW, ((first >> 32) & _LOW) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _INCREMENTS[0]) & _LOW, (k1 + _INCREMENTS[1]) & _LOW
    return tuple(torch.as_tensor(word) for word in (c0, c1, c2, c3))


def keep_mask(shape: torch.Size, p: float, seed: int, offset: int, device: torch.device) -> torch.Tensor:
    """Return a boolean tensor (..., d), True where an element is kept.

    Rows are padded to groups of eight, which share a counter: element (row, column) reads 16 bits, number column mod 8, of the block at
    counter (row * ceil(d / 8) + column // 8, offset) under the key ``seed``. Two offsets never share a draw.
    """
    groups = (shape[-1] + 7) // 8
    block = torch.arange(shape[:-1].numel() * groups, device=device)
    words = torch.stack(philox((block & _LOW, block >> 32, offset & _LOW, (offset >> 32) & _LOW), seed), dim=-1)
    draws = torch.stack((words & 0xFFFF, words >> 16), dim=-1).reshape(*shape[:-1], groups * 8)
    return draws[..., : shape[-1]] >= threshold(p)
