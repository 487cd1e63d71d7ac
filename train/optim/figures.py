"""Figures every optimizer reports: the mean square of its update over all shards, and the bytes of its state."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor

from train.optim.shards import local_of


def mean_square(tensors: Iterable[torch.Tensor]) -> float:
    """Return the mean square over the elements of all tensors (over all shards: every rank must call); 0 for none."""
    total, count = 0.0, 0
    for tensor in tensors:
        squares = tensor.float().square().sum()
        total += float(squares.full_tensor() if isinstance(squares, DTensor) else squares)
        count += tensor.numel()
    return total / count if count else 0.0


def state_bytes(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return ``state_bytes`` held by this rank, and ``state_bytes_per_parameter`` of this rank's parameters.

    Counts every tensor of the optimizer's state that has more than one element, so step counters do not blur small models.
    """
    held = sum(
        local_of(value).nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )
    parameters = sum(local_of(p).numel() for group in optimizer.param_groups for p in group["params"])
    return {"state_bytes": float(held), "state_bytes_per_parameter": held / max(1, parameters)}
