"""Optimizers of packages: 8-bit AdamW (torchao), Schedule-Free AdamW (schedulefree), SOAP (pytorch-optimizer); imported when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from train.optim.reporting import Reporting
from train.optim.sole import package, refuse_sharded


def adamw8bit(groups: list[dict[str, Any]], *, betas: Sequence[float] = (0.9, 0.95), eps: float = 1e-8, block_size: int = 256) -> Reporting:
    """Build torchao's AdamW with 8-bit moments (Dettmers et al. 2022): about 2.03 bytes per parameter; needs a C++ compiler on the CPU.

    Moments of tensors that have fewer than 4,096 elements, or are not a multiple of ``block_size``, stay FP32.
    """
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

    Call ``optimizer.eval()`` before evaluating or saving weights, and ``optimizer.train()`` before the next step.
    """
    refuse_sharded("schedule_free", groups)
    module = package("schedulefree", pip="schedulefree", optimizer="schedule_free")
    optimizer: Any = type("AdamWScheduleFree", (module.AdamWScheduleFree, Reporting), {})(groups, betas=tuple(betas), eps=eps)
    optimizer.train()
    return cast(Reporting, optimizer)


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
