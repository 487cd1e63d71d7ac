"""The update that Adafactor and CAME share: the gradient over the root of its second moment, clipped by its RMS."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch

from train.optim.factored import inverse_root, is_factored, square_sums, sum_of_products, sum_of_squares, update_means, zero_means
from train.optim.sharded import State, like, vector
from train.optim.shards import Place
from train.optim.weights import Block, Part, arithmetic, cut, spread

Scalar = torch.Tensor | float


@dataclass
class Normalised:
    """A clipped update u of one part, as ``direction(block) * spread(rate, block)``.

    Attributes:
        direction: the gradient times what varies along the last dimension.
        rate: what varies along the others (row factors and clipping), broadcastable.
        squares: this part's sum of squares before clipping, 0-D.
        shrink: the clipping factor, at most 1.
        also: the sums over all shards of what the caller sent along.
    """

    direction: Callable[[Block], torch.Tensor]
    rate: torch.Tensor
    squares: torch.Tensor
    shrink: Scalar
    also: list[torch.Tensor]


def second_moment(parameter: torch.Tensor, place: Place) -> State:
    """Return the state of a second moment before the first step: row and column means, or the whole for a vector."""
    if not is_factored(place):
        return {"exp_avg_sq": like(parameter)}
    rows, columns = zero_means(place, parameter.device, arithmetic(parameter))
    return {"exp_avg_sq_row": rows, "exp_avg_sq_col": columns}


def takes_matrices(part: Part, impl: str) -> bool:
    """Return whether a factored rule's step over many tensors takes a part: matrices, and stacks of them where they are compiled."""
    return part.weights.ndim == 2 or (impl == "compile" and part.weights.ndim > 2)


def normalise(
    part: Part, state: State, *, beta: float, eps: float, clip: float, also: list[torch.Tensor]
) -> Generator[list[torch.Tensor], list[torch.Tensor], Normalised]:
    """Move the second moment V towards G^2 + eps and return u = G / sqrt(V) / max(1, RMS(u) / clip).

    A rule's part (``train.optim.shards``): sums over shards in two rounds, ``also`` in the last of them.
    """
    if is_factored(part.place):
        direction, rate, squares = yield from _factored(part, state, beta, eps)
    else:
        direction, rate, squares = _whole(part, state, beta, eps)
    total, *also = yield [squares, *also]
    shrink = 1 / at_least(root_mean(total, part.size) / clip, 1.0)
    return Normalised(direction, rate * shrink, squares, shrink, also)


def _factored(
    part: Part, state: State, beta: float, eps: float
) -> Generator[list[torch.Tensor], list[torch.Tensor], tuple[Callable[[Block], torch.Tensor], torch.Tensor, torch.Tensor]]:
    kept = part.grad32(None).square() if part.at_once else None

    def squares(block: Block) -> torch.Tensor:
        return part.grad32(block).square() if kept is None else kept

    means = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
    sums = yield square_sums(part, squares)
    update_means(means, sums, place=part.place, beta=beta, eps=eps)
    rows, columns = inverse_root(means, part.place)
    row_squares, column_squares = rows.square(), columns.square()

    def scaled(block: Block) -> torch.Tensor:
        # The sum of squares of u from G^2 by a product with the column factors: one pass, and u need not be formed.
        by_row = squares(block) @ spread(column_squares, block).mT
        return sum_of_products(by_row, spread(row_squares, block))

    return lambda block: part.grad32(block) * spread(columns, block), rows, part.total(scaled)


def _whole(part: Part, state: State, beta: float, eps: float) -> tuple[Callable[[Block], torch.Tensor], torch.Tensor, torch.Tensor]:
    moment = vector(state["exp_avg_sq"])
    for block in part.blocks:
        cut(moment, block).mul_(beta).add_(part.grad32(block).square().add_(eps), alpha=1 - beta)

    def direction(block: Block) -> torch.Tensor:
        return cut(moment, block).rsqrt().mul_(part.grad32(block))

    return direction, moment.new_ones(1), part.total(lambda block: sum_of_squares(direction(block)))


def clipped_elements(part: Part, shrink: Scalar) -> torch.Tensor:
    """Return how many of a part's elements were clipped, 0-D: all or none."""
    return torch.as_tensor(shrink, dtype=part.dtype, device=part.weights.device).lt(1) * part.weights.new_tensor(
        part.weights.numel(), dtype=part.dtype
    )


def root_mean(total: torch.Tensor, size: int) -> Scalar:
    """Return sqrt(total / size): a float on the CPU, where reading it costs nothing, else a tensor, which does not wait for the device."""
    return math.sqrt(total.item() / size) if total.device.type == "cpu" else (total / size).sqrt()


def at_least(value: Scalar, floor: float) -> Scalar:
    """Return the larger of a scalar and a number."""
    return value.clamp(min=floor) if isinstance(value, torch.Tensor) else max(value, floor)
