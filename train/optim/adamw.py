"""AdamW: torch's fused step, with the figures every optimizer here reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from train.optim.figures import mean_square, state_bytes

_FUSED_DEVICES = {"cpu", "cuda", "xpu", "mps"}


class AdamW(torch.optim.AdamW):
    """Torch's AdamW (Loshchilov & Hutter 2019) that can report on itself."""

    def report(self) -> dict[str, float]:
        """Return ``update_rms`` (of the step's direction, before the learning rate) and state bytes, whole and per parameter."""
        return {"update_rms": mean_square(self._directions()) ** 0.5, **state_bytes(self)}

    def _directions(self) -> Any:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                state = self.state.get(parameter)
                if state:
                    step = float(state["step"])
                    moment = state["exp_avg"] / (1 - beta1**step)
                    yield moment / ((state["exp_avg_sq"] / (1 - beta2**step)).sqrt() + group["eps"])


def adamw(
    groups: list[dict[str, Any]],
    *,
    betas: Sequence[float] = (0.9, 0.95),
    eps: float = 1e-8,
    fused: bool | None = None,
) -> AdamW:
    """Build AdamW: 8 bytes of state per FP32 parameter; fused where the device has it, unless told otherwise."""
    if fused is None:
        fused = all(p.device.type in _FUSED_DEVICES and p.is_floating_point() for g in groups for _, p in g["params"])
    beta1, beta2 = betas
    return AdamW(groups, betas=(beta1, beta2), eps=eps, fused=fused)
