"""L-BFGS for full-batch fine-tuning of small models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from train.optim.reporting import Reporting
from train.optim.sole import refuse_sharded


class LBFGS(torch.optim.LBFGS, Reporting):
    """Torch's L-BFGS with a strong Wolfe line search, which refuses a loss that changes without the parameters.

    ``step`` needs a closure that computes loss and gradients. L-BFGS takes differences of gradients for curvature: between two batches they
    are noise, and it diverges. So each step compares its first loss with the last loss of the step before, at the same parameters.

    Args:
        groups: named parameter groups; they must agree in learning rate and have no weight decay.
        max_iter: iterations of one step.
        history_size: pairs of vectors kept: 8 bytes per parameter each in FP32.
        line_search: use the strong Wolfe line search.
        allow_stochastic: accept a loss that changes between steps.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        max_iter: int = 20,
        history_size: int = 10,
        line_search: bool = True,
        allow_stochastic: bool = False,
    ) -> None:
        refuse_sharded("lbfgs", groups)
        rates = {group["lr"] for group in groups}
        if len(rates) > 1 or any(group["weight_decay"] for group in groups):
            raise ValueError("lbfgs has one learning rate and no weight decay: leave embedding_lr out and set weight_decay to 0")
        (rate,) = rates
        named = [entry for group in groups for entry in group["params"]]
        search = "strong_wolfe" if line_search else None
        super().__init__(named, lr=rate, max_iter=max_iter, history_size=history_size, line_search_fn=search)
        self.param_groups[0]["initial_lr"] = rate
        self._allow_stochastic = allow_stochastic
        self._last_loss: float | None = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take up to ``max_iter`` iterations; returns the loss before them.

        Raises:
            ValueError: no closure, or a loss that differs at the same parameters from one call to the next.
        """
        if closure is None:
            raise ValueError(
                "lbfgs evaluates the loss several times a step: call step(closure), where closure returns the loss after backward()"
            )
        if self._allow_stochastic:
            return super().step(closure)  # type: ignore[no-untyped-call]
        with torch.enable_grad():
            first = float(closure())
        if self._last_loss is not None and not math.isclose(first, self._last_loss, rel_tol=1e-5, abs_tol=1e-7):
            raise ValueError(
                f"lbfgs was given a loss that changed from {self._last_loss:.6g} to {first:.6g} at the same parameters, so batches or "
                "dropout vary: give it the whole batch every time, or set allow_stochastic"
            )
        loss = super().step(closure)  # type: ignore[no-untyped-call]
        with torch.enable_grad():
            self._last_loss = float(closure())
        return loss
