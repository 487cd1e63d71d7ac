"""Sophia: a clipped step on a diagonal curvature that is estimated every few steps, from sampled labels (G) or by Hutchinson (H)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from train.kernels import sophia_step
from train.kernels.dispatch import Impl
from train.optim.factored import sum_of_squares
from train.optim.sharded import ShardedOptimizer, State, like, vector
from train.optim.shards import Place, Rule
from train.optim.weights import Block, Part, cut, noise_for

ESTIMATORS = ("gauss_newton", "hutchinson")


class Sophia(ShardedOptimizer):
    """Sophia (Liu et al. 2023, algorithm 3), sharded or whole.

    p = p (1 - lr weight_decay); m = EMA of G; p = p - lr clip(m / (rho max(h, 0) + eps), -1, 1), where h is an EMA of a diagonal
    curvature. G (algorithm 2, Gauss-Newton-Bartlett): B g^2, with g the gradient of the mean loss over B tokens whose labels were
    sampled from the model. H (algorithm 1, Hutchinson): z * (Hessian z), z normal. The rule does no estimating by itself: where
    ``curvature_due()``, before ``step``, either set the gradients to g and call ``update_curvature(tokens=B)``, or call
    ``update_curvature(loss=loss)`` with a graph that can be differentiated twice. No speed-up over AdamW is promised: later studies
    did not find the paper's factor of 2.

    Args:
        groups: parameter groups.
        lr: learning rate.
        weight_decay: decoupled weight decay.
        betas: of m and h.
        rho: scale of the curvature; the larger, the fewer elements are clipped.
        eps: least denominator.
        estimator: gauss_newton (G) or hutchinson (H).
        every: steps from one estimate to the next.
        rounding: see ``ShardedOptimizer``.
        seed: of stochastic rounding, and of Hutchinson's vectors.
        impl: see ``ShardedOptimizer``.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float = 3e-4,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.965, 0.99),
        rho: float = 0.04,
        eps: float = 1e-15,
        estimator: str = "gauss_newton",
        every: int = 10,
        rounding: str = "stochastic",
        seed: int = 0,
        impl: str = "auto",
    ) -> None:
        if estimator not in ESTIMATORS:
            raise ValueError(f"estimator must be one of {', '.join(ESTIMATORS)}, got {estimator!r}")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas) or not rho > 0 or not eps > 0 or every < 1:
            raise ValueError(f"sophia needs two betas in [0, 1), rho > 0, eps > 0, every >= 1; got {tuple(betas)}, {rho}, {eps}, {every}")
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": tuple(betas), "rho": rho, "eps": eps}
        defaults |= {"estimator": estimator, "every": every}
        super().__init__(groups, defaults, rounding=rounding, seed=seed, impl=impl)

    def curvature_due(self) -> bool:
        """Return whether the next step wants a fresh estimate: at the first, and then every ``every`` steps."""
        steps = max((int(state["step"]) for state in self.state.values() if "step" in state), default=0)
        return steps % int(self.param_groups[0]["every"]) == 0

    def update_curvature(
        self, *, tokens: int | None = None, loss: torch.Tensor | None = None, products: Sequence[torch.Tensor] | None = None
    ) -> None:
        """Move h towards a fresh estimate.

        Args:
            tokens: for G: the gradients are those of a mean loss over so many tokens with sampled labels (over all ranks).
            loss: for H: a scalar that can be differentiated twice.
            products: for H, in place of the loss: sums of ``products`` over its parts.

        Raises:
            ValueError: the argument of the other estimator, or sharded parameters with H (double backward is not had there).
        """
        estimator = self.param_groups[0]["estimator"]
        if estimator == "gauss_newton":
            if tokens is None or tokens < 1 or loss is not None or products is not None:
                raise ValueError(
                    "sophia with the Gauss-Newton estimator needs update_curvature(tokens=...), at least 1, and the gradients set"
                )
            self._from_gradients(float(tokens))
        else:
            if (loss is None) is (products is None) or tokens is not None:
                raise ValueError("sophia with the Hutchinson estimator needs update_curvature(loss=...), or products=...")
            self._from_products(self.products(loss) if products is None and loss is not None else products or ())

    @torch.no_grad()
    def _from_gradients(self, tokens: float) -> None:
        for parameter, name, group, place, _ in self._parameters():
            if parameter.grad is None:
                continue
            state = self.state[parameter] or self._begin(parameter, group, place)
            part, curvature, beta = self._part(parameter, name, group, place), vector(state["curvature"]), group["betas"][1]
            for block in part.blocks:
                cut(curvature, block).mul_(beta).add_(part.grad32(block).square(), alpha=(1 - beta) * tokens)

    def products(self, loss: torch.Tensor) -> list[torch.Tensor]:
        """Return z * (Hessian z) of a scalar that can be differentiated twice, by parameter; z is the same until the next step.

        Raises:
            ValueError: sharded parameters (double backward is not had there).
        """
        listed = [entry for entry in self._parameters() if entry[0].requires_grad]
        for _, name, _, place, _ in listed:
            if place.mesh is not None:
                raise ValueError(f"{name} is sharded, and sophia's Hutchinson estimator needs whole parameters: use gauss_newton")
        parameters = [entry[0] for entry in listed]
        grads = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True, materialize_grads=True)
        probes = []
        for parameter, name, group, place, _ in listed:
            step = int(self.state[parameter]["step"]) if self.state[parameter] else 0
            generator = torch.Generator(parameter.device)
            noise_for(generator, seed=group["seed"], name=f"hutchinson/{name}", step=step, offset=place.offset)
            probes.append(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype, device=parameter.device))
        found = torch.autograd.grad(grads, parameters, probes, allow_unused=True, materialize_grads=True)
        return [probe * product for probe, product in zip(probes, found, strict=True)]

    @torch.no_grad()
    def _from_products(self, products: Sequence[torch.Tensor]) -> None:
        listed = [entry for entry in self._parameters() if entry[0].requires_grad]
        for (parameter, _, group, place, _), product in zip(listed, products, strict=True):
            state = self.state[parameter] or self._begin(parameter, group, place)
            state["curvature"].lerp_(product.to(state["curvature"].dtype), 1 - group["betas"][1])

    def _start(self, parameter: torch.Tensor, group: dict[str, Any], place: Place) -> State:
        return {"exp_avg": like(parameter), "curvature": like(parameter)}

    def _rule(self, part: Part, group: dict[str, Any], state: State) -> Rule:
        moment = vector(state["exp_avg"])
        for block in part.blocks:
            cut(moment, block).lerp_(part.grad32(block), 1 - group["betas"][0])
            direction = self._ratio(state, group, block).clamp_(-1, 1)
            part.apply(block, direction, -group["lr"], 1 - group["lr"] * group["weight_decay"])
        yield from ()

    def _takes(self, part: Part, impl: str) -> bool:
        return impl != "native"

    def _together(
        self, parts: list[Part], states: list[State], group: dict[str, Any], step: int, seeds: list[int] | None, impl: Impl
    ) -> None:
        sophia_step(
            [part.truth for part in parts],
            [part.grad for part in parts],
            [vector(state["exp_avg"]) for state in states],
            [vector(state["curvature"]) for state in states],
            step=step,
            beta1=group["betas"][0],
            seeds=seeds,
            impl=impl,
            **{name: group[name] for name in ("lr", "rho", "eps", "weight_decay")},
        )

    @staticmethod
    def _ratio(state: State, group: dict[str, Any], block: Block) -> torch.Tensor:
        moment, curvature = cut(vector(state["exp_avg"]), block), cut(vector(state["curvature"]), block)
        return curvature.clamp(min=0).mul_(group["rho"]).add_(group["eps"]).reciprocal_().mul_(moment)

    def _figures(self, part: Part, group: dict[str, Any], state: State) -> list[torch.Tensor]:
        squares = part.total(lambda block: sum_of_squares(self._ratio(state, group, block).clamp_(-1, 1)))
        clipped = part.total(lambda block: (self._ratio(state, group, block).abs() >= 1).sum())
        return [squares, clipped]
