"""Lion: the sign of an interpolated momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from train.optim.momentum import check_momentum, first_moment
from train.optim.sharded import ShardedOptimizer, State, vector
from train.optim.shards import Place, Rule
from train.optim.weights import Part, cut


class Lion(ShardedOptimizer):
    """Lion (Chen et al. 2023, algorithm 2), sharded or whole.

    c = beta1 m + (1 - beta1) G; p = p (1 - lr weight_decay) - lr sign(c); m = beta2 m + (1 - beta2) G. Every element moves by ``lr``, so it
    wants a third to a tenth of AdamW's learning rate and as many times its decay.

    Args:
        groups: parameter groups.
        lr: learning rate.
        weight_decay: decoupled weight decay.
        betas: of the interpolation and of the momentum.
        momentum_dtype: float32 (4 bytes per parameter) or bfloat16 (2).
        rounding: see ``ShardedOptimizer``.
        seed: see ``ShardedOptimizer``.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float = 1e-4,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.99),
        momentum_dtype: str = "float32",
        rounding: str = "stochastic",
        seed: int = 0,
    ) -> None:
        for beta in betas:
            check_momentum(beta, momentum_dtype)
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": tuple(betas), "momentum_dtype": momentum_dtype}
        super().__init__(groups, defaults, rounding=rounding, seed=seed)

    def _start(self, parameter: torch.Tensor, group: dict[str, Any], place: Place) -> State:
        return first_moment(parameter, group["momentum_dtype"])

    def _rule(self, part: Part, group: dict[str, Any], state: State) -> Rule:
        beta1, beta2 = group["betas"]
        moved = []
        for block in part.blocks:
            moment, grad = cut(vector(state["exp_avg"]), block), part.grad32(block)
            held = moment.to(part.dtype)
            direction = held.lerp(grad, 1 - beta1).sign_()
            moment.copy_(held.lerp(grad, 1 - beta2))
            moved.append(direction.count_nonzero())
            part.apply(block, direction, -group["lr"], 1 - group["lr"] * group["weight_decay"])
        self._seen[part.name] = moved
        yield from ()

    def _figures(self, part: Part, group: dict[str, Any], state: State) -> list[torch.Tensor]:
        zero = torch.zeros((), dtype=part.dtype, device=part.weights.device)
        return [sum(self._seen.get(part.name, []), start=zero), zero]
