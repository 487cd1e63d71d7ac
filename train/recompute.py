"""Activation recomputation: groups of blocks that keep only their input in the forward pass and run again in the backward one.

Memory of L blocks in groups of k is about (L/k) b + k i, for b bytes of a block's input and i of what it saves inside: least near
k = sqrt(L b / i), which is sqrt(L) where the two are alike (Chen et al. 2016). Loss and gradients are the same bits, dropout included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

from schemas.errors import RecipeError

_EVERY = re.compile(r"every_([1-9][0-9]*)")
_Shared = TypeVar("_Shared")


def group_size(recompute: str, layers: int) -> int:
    """Return how many blocks are recomputed together; 0 is no recomputation.

    Args:
        recompute: ``none``, ``full`` (each block alone), ``sqrt`` (ceil(sqrt(layers)) blocks), or ``every_<k>``.
        layers: blocks of the model.

    Raises:
        RecipeError: another name.
    """
    if (match := _EVERY.fullmatch(recompute)) is not None:
        return int(match[1])
    sizes = {"none": 0, "full": 1, "sqrt": math.isqrt(layers - 1) + 1}
    if recompute not in sizes:
        raise RecipeError(f"{recompute!r} is not one of none, full, sqrt, every_<number of blocks>", where="training.recompute")
    return sizes[recompute]


def run_blocks(
    blocks: Sequence[Callable[[torch.Tensor, _Shared], torch.Tensor]], x: torch.Tensor, shared: _Shared, group: int
) -> torch.Tensor:
    """Pass ``x`` through all blocks, in groups that are recomputed in the backward pass; group 0, or no gradients, recomputes nothing."""

    def run(first: int, end: int, x: torch.Tensor) -> torch.Tensor:
        for block in blocks[first:end]:
            x = block(x, shared)
        return x

    if not group or not torch.is_grad_enabled():
        return run(0, len(blocks), x)
    for first in range(0, len(blocks), group):
        y: torch.Tensor = checkpoint(run, first, first + group, x, use_reentrant=False)
        x = y
    return x
