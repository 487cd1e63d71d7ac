"""First moments held in FP32 or BF16."""

from __future__ import annotations

import torch

from train.optim.sharded import State, like
from train.optim.weights import arithmetic

MOMENTUM_DTYPES = ("float32", "bfloat16")


def check_momentum(beta: float, dtype: str) -> None:
    """Refuse a momentum outside [0, 1) or a dtype that is not offered.

    Raises:
        ValueError: with the value and what is allowed.
    """
    if not 0 <= beta < 1:
        raise ValueError(f"momentum must be in [0, 1), got {beta}")
    if dtype not in MOMENTUM_DTYPES:
        raise ValueError(f"momentum_dtype must be one of {', '.join(MOMENTUM_DTYPES)}, got {dtype!r}")


def first_moment(parameter: torch.Tensor, dtype: str) -> State:
    """Return the state of a first moment before the first step: zeros in BF16 where asked, else in the dtype of the arithmetic."""
    return {"exp_avg": like(parameter, torch.bfloat16 if dtype == "bfloat16" else arithmetic(parameter))}


def move_momentum(moment: torch.Tensor, distance: torch.Tensor, weight: float) -> torch.Tensor:
    """Move a moment in place by ``weight`` times ``distance`` (update - moment); returns it as it is held, in the distance's dtype."""
    if moment.dtype == distance.dtype:
        return moment.add_(distance, alpha=weight)
    return moment.copy_(moment.to(distance.dtype).add_(distance, alpha=weight)).to(distance.dtype)
