"""Adafactor with no first moment by default: about 0 bytes of state per parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from train.kernels import adafactor_step
from train.kernels.dispatch import Impl
from train.optim.factored import sum_of_squares
from train.optim.momentum import check_momentum, first_moment, move_momentum
from train.optim.normalised import Scalar, at_least, clipped_elements, normalise, root_mean, second_moment, takes_matrices
from train.optim.sharded import ShardedOptimizer, State, vector
from train.optim.shards import Place, Rule
from train.optim.weights import Part, cut, spread


class Adafactor(ShardedOptimizer):
    """Adafactor (Shazeer & Stern 2018, algorithms 4 to 6), sharded or whole.

    With t from 1 and RMS(x) = ||x|| / sqrt(numel): rho_t = min(lr, 1/sqrt(t)); alpha_t = max(eps2, RMS(p)) rho_t;
    beta2_t = 1 - t^decay_rate; V = EMA of G^2 + eps1, factored over the last two dimensions; U = G / sqrt(V);
    U = U / max(1, RMS(U) / clip); p = p - alpha_t U. Weight decay is decoupled: p = p (1 - lr weight_decay) first.

    Args:
        groups: parameter groups.
        lr: upper bound of the relative step; the paper's is 1e-2.
        weight_decay: decoupled weight decay.
        eps: eps1 (added to squared gradients) and eps2 (least parameter scale).
        clip: d, the RMS above which an update is scaled down.
        decay_rate: exponent of beta2_t.
        relative_step: bound the step by 1/sqrt(t); where False rho_t = lr.
        scale_parameter: multiply the step by max(eps2, RMS(p)).
        beta1: momentum of the clipped update; 0 keeps no first moment.
        momentum_dtype: float32 (4 bytes) or bfloat16 (2).
        rounding: see ``ShardedOptimizer``.
        seed: see ``ShardedOptimizer``.
        impl: see ``ShardedOptimizer``.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip: float = 1.0,
        decay_rate: float = -0.8,
        relative_step: bool = True,
        scale_parameter: bool = True,
        beta1: float = 0.0,
        momentum_dtype: str = "float32",
        rounding: str = "stochastic",
        seed: int = 0,
        impl: str = "auto",
    ) -> None:
        if not clip > 0 or not decay_rate < 0 or min(eps) < 0:
            raise ValueError(f"adafactor needs clip > 0, decay_rate < 0, eps >= 0; got {clip}, {decay_rate}, {tuple(eps)}")
        check_momentum(beta1, momentum_dtype)
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "eps": tuple(eps),
            "clip": clip,
            "decay_rate": decay_rate,
            "relative_step": relative_step,
            "scale_parameter": scale_parameter,
            "beta1": beta1,
            "momentum_dtype": momentum_dtype,
        }
        super().__init__(groups, defaults, rounding=rounding, seed=seed, impl=impl)

    def _start(self, parameter: torch.Tensor, group: dict[str, Any], place: Place) -> State:
        state = second_moment(parameter, place)
        return state | first_moment(parameter, group["momentum_dtype"]) if group["beta1"] else state

    def _rule(self, part: Part, group: dict[str, Any], state: State) -> Rule:
        step, lr, (eps1, eps2) = float(state["step"]), group["lr"], group["eps"]
        weights = [part.total(lambda block: sum_of_squares(part.weights32(block)))] if group["scale_parameter"] else []
        update = yield from normalise(part, state, beta=1 - step ** group["decay_rate"], eps=eps1, clip=group["clip"], also=weights)
        self._seen[part.name] = update.squares, update.shrink
        alpha: Scalar = min(lr, step**-0.5) if group["relative_step"] else lr
        if group["scale_parameter"]:
            alpha = at_least(root_mean(update.also[0], part.size), eps2) * alpha
        keep = 1 - lr * group["weight_decay"]
        rate, moment = update.rate * -alpha, state.get("exp_avg")
        for block in part.blocks:
            if moment is None:
                part.apply(block, update.direction(block), rate, keep)
            else:
                mine = cut(vector(moment), block)
                distance = (update.direction(block) * spread(update.rate, block)).sub_(mine)
                part.apply(block, move_momentum(mine, distance, 1 - group["beta1"]), rate.new_full((1,), -1.0) * alpha, keep)

    def _takes(self, part: Part, impl: str) -> bool:
        return takes_matrices(part, impl)

    def _together(
        self, parts: list[Part], states: list[State], group: dict[str, Any], step: int, seeds: list[int] | None, impl: Impl
    ) -> None:
        names = ("lr", "weight_decay", "eps", "clip", "decay_rate", "relative_step", "scale_parameter", "beta1")
        squares = adafactor_step(
            [part.truth for part in parts],
            [part.grad for part in parts],
            ([state["exp_avg_sq_row"] for state in states], [state["exp_avg_sq_col"] for state in states]),
            step=step,
            exp_avgs=[state["exp_avg"] for state in states] if group["beta1"] else None,
            seeds=seeds,
            impl=impl,
            **{name: group[name] for name in names},
        )
        shrink = 1 / (squares.sqrt() / group["clip"]).clamp(min=1)
        for part, square, factor in zip(parts, squares.unbind(), shrink.unbind(), strict=True):
            self._seen[part.name] = square * part.size, factor

    def _figures(self, part: Part, group: dict[str, Any], state: State) -> list[torch.Tensor]:
        squares, shrink = self._seen.get(part.name, (torch.zeros((), dtype=part.dtype, device=part.weights.device), 1.0))
        return [squares * shrink**2, clipped_elements(part, shrink)]
