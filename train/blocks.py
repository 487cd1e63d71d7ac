"""The blocks of both kinds of decoder: attention and feed-forward, each normed before and added to the residual stream.

Llama-style: RMSNorm (Zhang & Sennrich 2019), rotary positions that restart in each document (Su et al. 2021), grouped-query attention
(Ainslie et al. 2023), SwiGLU (Shazeer 2020). GPT-2-style (Radford et al. 2019): LayerNorm, biases, GELU. Norms, softmax and the residual
stream are FP32 whatever the precision of the products.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import dropout, gelu

from schemas.settings import ModelSettings
from train.attention import Kept, Packing, attend
from train.kernels import bias_gelu_dropout, layer_norm, rms_norm, rope, swiglu
from train.policy import NONE
from train.recompute import dropout_kept, run_halves, run_selectively
from train.tensor_split import own


class RMSNorm(nn.Module):
    """Root-mean-square norm with a gain.

    Attributes:
        in_part: it sees a part of the positions, so that its gradients are parts of a sum (``train.tensor_parallel``).
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.in_part = False
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise (..., d)."""
        return rms_norm(x, own(self.weight, self.in_part), self.eps)


class LayerNorm(nn.Module):
    """Layer norm with a gain and a bias; ``in_part`` as of ``RMSNorm``."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.in_part = False
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise (..., d)."""
        return layer_norm(x, own(self.weight, self.in_part), own(self.bias, self.in_part), self.eps)


def norm(settings: ModelSettings) -> RMSNorm | LayerNorm:
    """The kind's norm."""
    return (LayerNorm if settings.kind == "gpt2" else RMSNorm)(settings.width, settings.norm_eps)


class Attention(nn.Module):
    """Grouped-query attention; with rotary positions where the packing has angles. Under tensor parallel it sees its rank's heads."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.head_width = settings.width // settings.heads
        self.scale = settings.attention_scale if settings.mup_base_width else None
        width, biased = settings.all_kv_heads * self.head_width, settings.kind == "gpt2"
        self.q = nn.Linear(settings.width, settings.width, bias=biased)
        self.k = nn.Linear(settings.width, width, bias=biased)
        self.v = nn.Linear(settings.width, width, bias=biased)
        self.out = nn.Linear(settings.width, settings.width, bias=biased)

    def forward(self, x: torch.Tensor, packing: Packing, kept: Kept | None = None) -> torch.Tensor:
        """Attend over (B, L, d), ``kept`` as ``attend`` has it."""
        batch, length, _ = x.shape
        q, k, v = (project(x).view(batch, length, -1, self.head_width) for project in (self.q, self.k, self.v))
        if packing.cos is not None and packing.sin is not None:
            q, k = rope(q, k, packing.cos, packing.sin)
        out: torch.Tensor = self.out(attend(q, k, v, packing.mask, self.scale, kept).reshape(batch, length, -1))
        return out


class SwiGLU(nn.Module):
    """The feed-forward of Llama."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        inner = settings.inner_width
        self.gate = nn.Linear(settings.width, inner, bias=False)
        self.up = nn.Linear(settings.width, inner, bias=False)
        self.down = nn.Linear(inner, settings.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform (B, L, d)."""
        y: torch.Tensor = self.down(swiglu(self.gate(x), self.up(x)))
        return y


class BiasGELU(nn.Module):
    """The feed-forward of GPT-2; its first bias is the activation's, which adds it in the same pass."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.up = nn.Linear(settings.width, settings.inner_width, bias=False)
        self.up_bias = nn.Parameter(torch.zeros(settings.inner_width))
        self.down = nn.Linear(settings.inner_width, settings.width)
        self.approximate = settings.gelu == "tanh"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform (B, L, d)."""
        x, bias = self.up(x), own(self.up_bias)
        if self.approximate:
            x = gelu((x + bias).float(), approximate="tanh").to(x.dtype)
        else:
            x = bias_gelu_dropout(x, bias, 0.0, 0, 0)
        y: torch.Tensor = self.down(x)
        return y


class Block(nn.Module):
    """Attention and feed-forward, each normed before and added to the residual stream."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.attention_norm = norm(settings)
        self.attention = Attention(settings)
        self.feed_forward_norm = norm(settings)
        self.feed_forward = (BiasGELU if settings.kind == "gpt2" else SwiGLU)(settings)
        self.dropout = settings.dropout
        self.recompute = NONE

    def forward(self, x: torch.Tensor, packing: Packing) -> torch.Tensor:
        """Transform (B, L, d)."""
        if torch.is_grad_enabled() and self.recompute.selective:
            return run_selectively(self._whole, x, packing)
        if torch.is_grad_enabled() and self.recompute.halves:
            return run_halves(self._attended, self._fed, x, packing)
        return self._whole(x, packing)

    @property
    def halves(self) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
        """Attention and feed-forward, each with its norm and the stream that it is added to."""
        return self._attended, self._fed

    def _whole(self, x: torch.Tensor, packing: Packing) -> torch.Tensor:
        return self._fed(self._attended(x, packing))

    def _attended(self, x: torch.Tensor, packing: Packing, kept: Kept | None = None) -> torch.Tensor:
        return x + self._dropped(self.attention(self.attention_norm(x), packing, kept=kept))

    def _fed(self, x: torch.Tensor, packing: Packing | None = None) -> torch.Tensor:
        return x + self._dropped(self.feed_forward(self.feed_forward_norm(x)))

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        return (dropout_kept if self.recompute.halves else dropout)(x, self.dropout, self.training)
