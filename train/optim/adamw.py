"""AdamW and SGD: torch's fused steps, with the figures every optimizer here reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from train.optim.reporting import Reporting

_FUSED_DEVICES = {"cpu", "cuda", "xpu", "mps"}


class AdamW(torch.optim.AdamW, Reporting):
    """Torch's AdamW (Loshchilov & Hutter 2019) that can report on itself."""

    def _directions(self) -> Iterator[torch.Tensor]:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if state := self.state.get(parameter):
                    step = float(state["step"])
                    moment = state["exp_avg"] / (1 - beta1**step)
                    yield moment / ((state["exp_avg_sq"] / (1 - beta2**step)).sqrt() + group["eps"])


class SGD(torch.optim.SGD, Reporting):
    """Torch's SGD that can report on itself."""

    def _directions(self) -> Iterator[torch.Tensor]:
        for state in self.state.values():
            if state.get("momentum_buffer") is not None:
                yield state["momentum_buffer"]


def adamw(
    groups: list[dict[str, Any]],
    *,
    betas: Sequence[float] = (0.9, 0.95),
    eps: float = 1e-8,
    fused: bool | None = None,
) -> AdamW:
    """Build AdamW: 8 bytes of state per FP32 parameter; fused where the device has it, unless told otherwise."""
    beta1, beta2 = betas
    return AdamW(groups, betas=(beta1, beta2), eps=eps, fused=_can_fuse(groups) if fused is None else fused)


def sgd(groups: list[dict[str, Any]], *, momentum: float = 0.9, nesterov: bool = True, fused: bool | None = None) -> SGD:
    """Build SGD with Nesterov momentum: 4 bytes. Its weight decay is torch's, added to the gradient (L2), not decoupled."""
    return SGD(groups, lr=1e-3, momentum=momentum, nesterov=nesterov, fused=_can_fuse(groups) if fused is None else fused)


def _can_fuse(groups: list[dict[str, Any]]) -> bool:
    return all(p.device.type in _FUSED_DEVICES and p.is_floating_point() for g in groups for _, p in g["params"])
