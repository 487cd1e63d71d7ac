"""Attention within documents: one mask and one function for every device.

A query sees the keys before it in its own document. On CUDA the mask is a block mask of flex attention (Dong et al. 2024), which skips
whole blocks between documents; elsewhere, and where a second derivative is wanted, it is added to scaled_dot_product_attention's scores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from schemas.settings import ModelSettings

Mask = torch.Tensor | BlockMask
_WIDE_TO = 0 if torch.cpu._is_amx_tile_supported() else 512
"""Longest row that a CPU attends over in FP32: without a unit for BF16 matrices (AMX) torch's kernel is up to 3 times slower in BF16."""


_LEAST_WIDTH = 16
"""Least width of a head that flex attention's kernels multiply."""


@dataclass(frozen=True)
class Packing:
    """What the blocks share for one batch: which positions see each other, and their rotary angles.

    Attributes:
        mask: of flex attention, or (B, 1, L, L), 0 where the query (third) may see the key (fourth), else -inf.
        cos: (B, L, D/2) of the position within the document; of learned positions None.
        sin: the same.
    """

    mask: Mask
    cos: torch.Tensor | None
    sin: torch.Tensor | None


class Kept:
    """What attention gave in a block's first run, for a second run that computes its inputs alone again (``train.recompute``).

    Attributes:
        found: result and log-sums; None before the first run.
    """

    found: tuple[torch.Tensor, ...] | None = None


def flex_runs(tensor: torch.Tensor, settings: ModelSettings) -> bool:
    """Whether flex attention can train on a tensor's device: on CUDA, with heads of the width that its products need."""
    return tensor.is_cuda and settings.width // settings.heads >= _LEAST_WIDTH


def document_mask(documents: torch.Tensor, *, flex: bool) -> Mask:
    """Mask of a batch from (B, L) numbers of documents, in what attention computes in, so that no block converts it."""
    length = documents.shape[1]

    def sees(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & (documents[batch, query] == documents[batch, key])

    if flex:
        return create_block_mask(sees, len(documents), None, length, length, device=documents.device)
    same = documents[:, :, None] == documents[:, None, :]
    seen = (same & torch.ones(same.shape[1:], dtype=torch.bool, device=same.device).tril())[:, None]
    device = documents.device.type
    narrow = torch.is_autocast_enabled(device) and not _attends_wide(device, length)
    dtype = torch.get_autocast_dtype(device) if narrow else None
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -math.inf)


def _attends_wide(device: str, length: int) -> bool:
    return device == "cpu" and length <= _WIDE_TO


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, scale: float | None = None, kept: Kept | None = None
) -> torch.Tensor:
    """Attend with (B, L, H, D) queries to (B, L, K, D) keys and values, H a multiple of K; returns (B, L, H, D).

    Products are multiplied by ``scale``, by default 1 / sqrt(D). With ``kept`` the result is taken from there, or put there.
    """
    heads, kv_heads = q.shape[2], k.shape[2]
    if isinstance(mask, BlockMask):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = _flex(q, k, v, mask, kv_heads < heads, scale)
        return y.transpose(1, 2)
    if kv_heads < heads:
        k, v = (t.repeat_interleave(heads // kv_heads, dim=2) for t in (k, v))
    dtype, wide = q.dtype, q.dtype.itemsize == 2 and _attends_wide(q.device.type, q.shape[1])
    q, k, v = (t.float().transpose(1, 2) if wide else t.transpose(1, 2) for t in (q, k, v))
    with torch.autocast(q.device.type, enabled=False) if wide else nullcontext():
        mask = mask.to(q.dtype)
        if kept is None:
            y = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        else:
            y = cast(torch.Tensor, _KeptAttention.apply(q, k, v, mask, scale, kept))  # type: ignore[no-untyped-call]
        return y.transpose(1, 2).to(dtype)


class _KeptAttention(torch.autograd.Function):
    """scaled_dot_product_attention on a CPU whose second run takes the first one's result: its own are the inputs that backward needs."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float | None, kept: Kept
    ) -> torch.Tensor:
        if kept.found is None:
            kept.found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
        out, logsum = (tensor.detach() for tensor in kept.found)  # what is kept has no part in the graph, which would keep the graph
        ctx.save_for_backward(q, k, v, mask, out, logsum)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        q, k, v, mask, out, logsum = ctx.saved_tensors
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, logsum, 0.0, False, attn_mask=mask, scale=ctx.scale
        )
        return *grads, None, None, None


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: BlockMask, grouped: bool, scale: float | None) -> torch.Tensor:
    # Only compiled is it one kernel; inside a compiled block it is traced with its surroundings.
    plain = torch.compiler.is_compiling() or not q.is_cuda
    y: torch.Tensor = cast(Any, flex_attention if plain else _compiled())(q, k, v, block_mask=mask, enable_gqa=grouped, scale=scale)
    return y


@functools.cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)


def rotary_frequencies(settings: ModelSettings) -> torch.Tensor:
    """(D/2,) radians per position of each pair of a head (Su et al. 2021), stretched as the settings say.

    llama3's ramp is that of Llama 3.1: a wave of n turns within ``original_length`` keeps its frequency from ``high_freq_factor`` turns
    on, has it over ``factor`` below ``low_freq_factor``, and between the two a mean of both, linear in n.
    """
    half = settings.width // settings.heads // 2
    plain = settings.rope_theta ** (-torch.arange(half).float() / half)
    scaling = settings.rope_scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    turns = scaling.original_length * plain / (2 * math.pi)
    kept = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return kept * plain + (1 - kept) * plain / scaling.factor
