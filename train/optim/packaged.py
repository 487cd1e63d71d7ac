"""Optimizers of packages: 8-bit AdamW (torchao), Schedule-Free AdamW (schedulefree), SOAP (pytorch-optimizer); imported when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch

from train.optim.reporting import Reporting
from train.optim.sole import package, refuse_sharded


def adamw8bit(groups: list[dict[str, Any]], *, betas: Sequence[float] = (0.9, 0.95), eps: float = 1e-8, block_size: int = 256) -> Reporting:
    """Build torchao's AdamW with 8-bit moments (Dettmers et al. 2022): about 2.03 bytes per parameter; needs a C++ compiler on the CPU.

    Whole parameters only: shards are quantised in blocks of their own, so sharded is not what unsharded is. Moments of tensors that have
    fewer than 4,096 elements, or are not a multiple of ``block_size``, stay FP32.
    """
    refuse_sharded("adamw8bit", groups)
    module = package("torchao.optim", pip="torchao", optimizer="adamw8bit")

    class AdamW8bit(module.AdamW8bit, Reporting):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> Any:
            # torchao refuses a learning rate that is a number, which is what a schedule sets.
            for group in self.param_groups:
                group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32)
            return super().step(closure)

    built: Any = AdamW8bit
    return cast(Reporting, built(groups, betas=tuple(betas), eps=eps, block_size=block_size))


def schedule_free(groups: list[dict[str, Any]], *, betas: Sequence[float] = (0.9, 0.95), eps: float = 1e-8) -> Reporting:
    """Build Schedule-Free AdamW (Defazio et al. 2024): 8 bytes; a constant schedule after warm-up; whole parameters only.

    While training the parameters are where gradients are taken; the weights to use are an average, which they hold within
    ``weights_in_use(optimizer)``. A saved state has both, so that training goes on from exactly where it was.
    """
    refuse_sharded("schedule_free", groups)
    module = package("schedulefree", pip="schedulefree", optimizer="schedule_free")

    class AdamWScheduleFree(module.AdamWScheduleFree, Reporting):  # type: ignore[misc, name-defined]
        @contextmanager
        def averaged(self) -> Iterator[None]:
            held = self._held = [p.detach().clone() for p in self._listed()]
            self.eval()
            for group in self.param_groups:
                group["train_mode"] = True
            try:
                yield
            finally:
                self._held = []
                with torch.no_grad():
                    torch._foreach_copy_(self._listed(), held)

        def state_dict(self) -> dict[str, Any]:
            state: dict[str, Any] = super().state_dict()
            held = getattr(self, "_held", []) or [p.detach().clone() for p in self._listed()]
            return {**state, "state": {i: {**entry, "weights": held[i]} for i, entry in state["state"].items()}}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            with torch.no_grad():
                for p in self._listed():
                    if "weights" in self.state[p]:
                        p.copy_(self.state[p].pop("weights"))

        def _listed(self) -> list[torch.Tensor]:
            return [p for group in self.param_groups for p in group["params"]]

    built: Any = AdamWScheduleFree
    optimizer: Any = built(groups, betas=tuple(betas), eps=eps)
    optimizer.train()
    return cast(Reporting, optimizer)


def weights_in_use(optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
    """Within it the parameters hold the weights to evaluate and to save: an average under schedule_free, themselves elsewhere."""
    averaged: Callable[[], AbstractContextManager[None]] = getattr(optimizer, "averaged", nullcontext)
    return averaged()


def soap(
    groups: list[dict[str, Any]],
    *,
    betas: Sequence[float] = (0.95, 0.95),
    eps: float = 1e-8,
    precondition_frequency: int = 10,
    max_precondition_dim: int = 10_000,
) -> Reporting:
    """Build pytorch-optimizer's SOAP (Vyas et al. 2024): 24 bytes on square matrices; whole parameters only (it fails on DTensors)."""
    refuse_sharded("soap", groups)
    module = package("pytorch_optimizer", pip="pytorch-optimizer>=4.1", optimizer="soap")
    built: Any = type("SOAP", (module.SOAP, Reporting), {})
    options: dict[str, Any] = {"precondition_frequency": precondition_frequency, "max_precondition_dim": max_precondition_dim}
    return cast(Reporting, built(groups, betas=tuple(betas), eps=eps, **options))
