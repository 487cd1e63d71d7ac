"""CAME: Adafactor's memory with Adam's behaviour, by a factored measure of how far updates stray from their mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from train.kernels import came_step
from train.kernels.dispatch import Impl
from train.optim.factored import inverse_root, is_factored, square_sums, sum_of_squares, update_means, zero_means
from train.optim.momentum import check_momentum, first_moment, move_momentum
from train.optim.normalised import clipped_elements, normalise, second_moment, takes_matrices
from train.optim.sharded import ShardedOptimizer, State, vector
from train.optim.shards import Place, Rule
from train.optim.weights import Block, Part, arithmetic, cut, spread


class CAME(ShardedOptimizer):
    """CAME (Luo et al. 2023, algorithm 2, as the authors' code has it: decoupled decay, no bias correction), sharded or whole.

    u = G / sqrt(V), V = EMA of G^2 + eps1 factored over the last two dimensions; u = u / max(1, RMS(u) / clip); m = EMA of u;
    S = EMA of (u - m)^2 + eps2, factored; p = p (1 - lr weight_decay) - lr m / sqrt(S). Vectors have V whole and no S: p = p - lr m.
    Without bias correction the first directions have an RMS of about 10, so a warm-up is demanded.

    Args:
        groups: parameter groups.
        lr: learning rate.
        warmup_steps: steps of the schedule's warm-up; at least 1.
        weight_decay: decoupled weight decay.
        betas: of m, V and S.
        eps: eps1 and eps2.
        clip: RMS above which u is scaled down.
        momentum_dtype: float32 (4 bytes per parameter) or bfloat16 (2).
        rounding: see ``ShardedOptimizer``.
        seed: see ``ShardedOptimizer``.
        impl: see ``ShardedOptimizer``.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float = 2e-4,
        warmup_steps: int | None = None,
        weight_decay: float = 0.0,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        eps: tuple[float, float] = (1e-30, 1e-16),
        clip: float = 1.0,
        momentum_dtype: str = "float32",
        rounding: str = "stochastic",
        seed: int = 0,
        impl: str = "auto",
    ) -> None:
        if not warmup_steps or warmup_steps < 1:
            raise ValueError(
                "came needs a warm-up: it has no bias correction, and its first updates are about 10 times the learning rate; "
                f"set the schedule's warmup_steps to at least 1 (100 or more is usual), got {warmup_steps}"
            )
        if len(betas) != 3 or not all(0 <= beta < 1 for beta in betas) or not clip > 0 or min(eps) < 0:
            raise ValueError(f"came needs three betas in [0, 1), clip > 0, eps >= 0; got {tuple(betas)}, {clip}, {tuple(eps)}")
        check_momentum(betas[0], momentum_dtype)
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "betas": tuple(betas),
            "eps": tuple(eps),
            "clip": clip,
            "momentum_dtype": momentum_dtype,
        }
        super().__init__(groups, defaults, rounding=rounding, seed=seed, impl=impl)

    def _start(self, parameter: torch.Tensor, group: dict[str, Any], place: Place) -> State:
        state = first_moment(parameter, group["momentum_dtype"]) | second_moment(parameter, place)
        if is_factored(place):
            state["exp_avg_res_row"], state["exp_avg_res_col"] = zero_means(place, parameter.device, arithmetic(parameter))
        return state

    def _rule(self, part: Part, group: dict[str, Any], state: State) -> Rule:
        beta1, beta2, beta3 = group["betas"]
        eps1, eps2 = group["eps"]
        update = yield from normalise(part, state, beta=beta2, eps=eps1, clip=group["clip"], also=[])
        self._seen[part.name] = update.shrink
        moment, toward = vector(state["exp_avg"]), -update.rate

        def stray(block: Block) -> torch.Tensor:
            # u - m_new = beta1 (u - m_old): one distance serves the momentum and its instability.
            mine = cut(moment, block)
            distance = torch.addcmul(mine.to(part.dtype), update.direction(block), spread(toward, block))
            move_momentum(mine, distance, beta1 - 1)
            return distance.square_()

        if is_factored(part.place):
            sums = yield square_sums(part, stray)
            residuals = state["exp_avg_res_row"], state["exp_avg_res_col"]
            update_means(residuals, sums, place=part.place, beta=beta3, scale=beta1**2, eps=eps2)
        else:
            for block in part.blocks:
                stray(block)
        direction, rate = self._direction(part, state)
        rate.mul_(-group["lr"])
        for block in part.blocks:
            part.apply(block, direction(block), rate, 1 - group["lr"] * group["weight_decay"])

    def _takes(self, part: Part, impl: str) -> bool:
        return takes_matrices(part, impl)

    def _together(
        self, parts: list[Part], states: list[State], group: dict[str, Any], step: int, seeds: list[int] | None, impl: Impl
    ) -> None:
        moments, rows, columns, residual_rows, residual_columns = (
            [state[name] for state in states]
            for name in ("exp_avg", "exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_res_row", "exp_avg_res_col")
        )
        squares = came_step(
            [part.truth for part in parts],
            [part.grad for part in parts],
            moments,
            (rows, columns),
            (residual_rows, residual_columns),
            step=step,
            seeds=seeds,
            impl=impl,
            **{name: group[name] for name in ("lr", "betas", "eps", "clip", "weight_decay")},
        )
        shrink = 1 / (squares.sqrt() / group["clip"]).clamp(min=1)
        self._seen.update(zip((part.name for part in parts), shrink.unbind(), strict=True))

    @staticmethod
    def _direction(part: Part, state: State) -> tuple[Callable[[Block], torch.Tensor], torch.Tensor]:
        moment = vector(state["exp_avg"])
        if not is_factored(part.place):
            return lambda block: cut(moment, block).to(part.dtype), torch.ones(1, dtype=part.dtype, device=moment.device)
        rows, columns = inverse_root((state["exp_avg_res_row"], state["exp_avg_res_col"]), part.place)
        return lambda block: cut(moment, block) * spread(columns, block), rows

    def _figures(self, part: Part, group: dict[str, Any], state: State) -> list[torch.Tensor]:
        direction, rate = self._direction(part, state)
        squares = part.total(lambda block: sum_of_squares(direction(block) * spread(rate, block)))
        return [squares, clipped_elements(part, self._seen.get(part.name, 1.0))]
