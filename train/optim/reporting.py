"""What optimizers that are not our own report: the bytes of their state, and the size of their update where it can be told."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from train.optim.shards import local_of


class Reporting(torch.optim.Optimizer):
    """A mix-in for torch's and packages' optimizers."""

    def report(self) -> dict[str, float]:
        """Return state bytes, and where known ``update_rms`` (of the last direction, before the learning rate); every rank must call."""
        directions = mean_square(self._directions())
        return {**({} if directions is None else {"update_rms": directions**0.5}), **state_bytes(self)}

    def _directions(self) -> Iterator[torch.Tensor]:
        """Yield the last direction of each parameter; of none where the rule does not keep it."""
        return iter(())


def mean_square(tensors: Iterator[torch.Tensor]) -> float | None:
    """Return the mean square over the elements of all tensors and shards; None for no tensor."""
    total, count = 0.0, 0
    for tensor in tensors:
        squares = tensor.detach().float().square().sum()
        total += float(squares.full_tensor() if isinstance(squares, DTensor) else squares)
        count += tensor.numel()
    return total / count if count else None


def state_bytes(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return ``state_bytes`` held by this rank, and ``state_bytes_per_parameter`` of this rank's parameters.

    Counts every tensor of the state that has a dimension; the step counters have none.
    """
    states = [value for state in optimizer.state.values() for value in _tensors(state)]
    held = sum(_nbytes(local_of(value)) for value in states if value.ndim)
    parameters = sum(local_of(p).numel() for group in optimizer.param_groups for p in group["params"])
    return {"state_bytes": float(held), "state_bytes_per_parameter": held / max(1, parameters)}


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _nbytes(tensor: torch.Tensor) -> int:
    if is_traceable_wrapper_subclass(tensor):
        inner, _ = tensor.__tensor_flatten__()
        return sum(_nbytes(getattr(tensor, name)) for name in inner)
    return tensor.nbytes
