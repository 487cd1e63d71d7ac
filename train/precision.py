"""Formats of numbers: what the products are computed in, what the weights are kept in, and FP16's loss scale.

Whatever the format, norms, softmax, the residual stream, losses, gradients and optimizer states are FP32. ``bf16`` and ``fp16`` keep FP32
weights and round them for each product (autocast). ``bf16_weights`` keeps the matrices themselves in BF16; the optimizer writes them from
an FP32 master, or rounds stochastically.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

PRODUCTS = {"bf16": torch.bfloat16, "bf16_weights": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""What the products of each precision are computed in."""


def precision_context(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """Autocast to the precision's products; nothing for FP32."""
    dtype = PRODUCTS[precision]
    enabled = dtype != torch.float32
    return torch.autocast(device.type, dtype=dtype if enabled else None, enabled=enabled)


def store_weights(parameters: Iterable[torch.nn.Parameter], precision: str) -> None:
    """Round matrices to what they are stored in; the gradients of BF16 ones are FP32, so that accumulation loses nothing."""
    if precision == "bf16_weights":
        for parameter in parameters:
            if parameter.ndim > 1:
                parameter.data = parameter.data.to(torch.bfloat16)
                parameter.grad_dtype = torch.float32


def allow_tf32(allowed: bool) -> None:
    """Let FP32 products on CUDA use TF32 (10 bits of mantissa), or not."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


class LossScale:
    """FP16's dynamic loss scale (Micikevicius et al. 2018, section 3.2); stays 1 for other precisions.

    It halves, down to ``floor``, at each step whose gradient is not finite, and doubles after ``interval`` finite ones in a row. The
    gradient it judges is already summed over ranks, so all ranks decide alike.

    Attributes:
        value: what the loss is multiplied by before the backward pass.
        finite: finite steps since it last changed.
        overflows: steps that were not finite, in all.
    """

    def __init__(self, precision: str, *, start: float = 65536.0, interval: int = 2000, floor: float = 1.0) -> None:
        self.dynamic, self.interval, self.floor = precision == "fp16", interval, floor
        self.value, self.finite, self.overflows = (start if self.dynamic else 1.0), 0, 0

    def update(self, finite: bool) -> None:
        """Take in whether a step's gradient was finite."""
        if not self.dynamic:
            return
        if not finite:
            self.value, self.finite, self.overflows = max(self.floor, self.value / 2), 0, self.overflows + 1
        elif self.finite + 1 < self.interval:
            self.finite += 1
        else:
            self.value, self.finite = self.value * 2, 0

    def state(self) -> dict[str, Any]:
        """Everything that changes, for a checkpoint."""
        return {"value": self.value, "finite": self.finite, "overflows": self.overflows}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self.value, self.finite, self.overflows = state["value"], state["finite"], state["overflows"]
