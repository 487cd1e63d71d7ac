"""Second moments kept as row and column means over the last two dimensions (Shazeer & Stern 2018, section 3).

Row and column means are held whole on every rank, since they are small: a sum over shards is one scatter into zeros and one reduction.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from train.optim.shards import Place
from train.optim.weights import Block, Part, cut

Means = tuple[torch.Tensor, torch.Tensor]


def is_factored(place: Place) -> bool:
    """Return whether a parameter has the two dimensions that factoring needs."""
    return len(place.shape) >= 2


def zero_means(place: Place, device: torch.device, dtype: torch.dtype) -> Means:
    """Return row means (shape without the last dimension) and column means (without the one before it), zero."""
    shape = place.shape
    return torch.zeros(shape[:-1], dtype=dtype, device=device), torch.zeros(shape[:-2] + shape[-1:], dtype=dtype, device=device)


def square_sums(part: Part, squares: Callable[[Block], torch.Tensor]) -> list[torch.Tensor]:
    """Return this part's sums of ``squares(block)`` along rows and along columns, in the shapes of the whole."""
    if part.place.mesh is None and part.blocks == [None]:
        values = squares(None)
        return [values.sum(-1), values.sum(-2)]
    rows, columns = zero_means(part.place, part.weights.device, part.dtype)
    my_rows, my_columns = part.place.part(rows, -1), part.place.part(columns, -2)
    for block in part.blocks:
        values = squares(block)
        cut(my_rows, block).copy_(values.sum(-1))
        if values.ndim == 2:
            my_columns += values.sum(-2)
        else:
            cut(my_columns, block).copy_(values.sum(-2))
    return [rows, columns]


def update_means(means: Means, sums: list[torch.Tensor], *, place: Place, beta: float, scale: float = 1.0, eps: float) -> None:
    """Move row and column means towards the means of ``scale`` times the squares plus ``eps``: EMA with weight ``beta`` on the old."""
    for mean, total, length in zip(means, sums, (place.shape[-1], place.shape[-2]), strict=True):
        mean.mul_(beta).add_(total, alpha=(1 - beta) * scale / length).add_((1 - beta) * eps)


def inverse_root(means: Means, place: Place) -> Means:
    """Return this rank's row and column factors of 1/sqrt(V), broadcastable against its part: rsqrt(R / mean R) and rsqrt(C)."""
    rows, columns = means
    row_factor = place.part(rows / rows.mean(-1, keepdim=True), -1).rsqrt_()
    return row_factor.unsqueeze(-1), place.part(columns, -2).rsqrt().unsqueeze(-2)


def sum_of_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the sum of elementwise products of equal shapes as a 0-D tensor."""
    return torch.dot(left.reshape(-1), right.reshape(-1))


def sum_of_squares(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares as a 0-D tensor."""
    return sum_of_products(values, values)
