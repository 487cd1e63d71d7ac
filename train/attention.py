"""Attention within documents: one mask and one function for every device.

A query sees the keys before it in its own document. On CUDA the mask is a block mask of flex attention (Dong et al. 2024), which skips
whole blocks between documents; elsewhere, and where a second derivative is wanted, it is boolean and scaled_dot_product_attention takes it.
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


@dataclass(frozen=True)
class Packing:
    """What the blocks share for one batch: which positions see each other, and their rotary angles.

    Attributes:
        mask: of flex attention, or (B, 1, L, L) bool, true where the query (third) may see the key (fourth).
        cos: (B, L, D/2) of the position within the document; of learned positions None.
        sin: the same.
    """

    mask: Mask
    cos: torch.Tensor | None
    sin: torch.Tensor | None


def document_mask(documents: torch.Tensor, *, flex: bool) -> Mask:
    """Mask of a batch from (B, L) numbers of documents."""
    length = documents.shape[1]

    def sees(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & (documents[batch, query] == documents[batch, key])

    if flex:
        return create_block_mask(sees, len(documents), None, length, length, device=documents.device)
    same = documents[:, :, None] == documents[:, None, :]
    return (same & torch.ones(same.shape[1:], dtype=torch.bool, device=same.device).tril())[:, None]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, scale: float | None = None) -> torch.Tensor:
    """Attend with (B, L, H, D) queries to (B, L, K, D) keys and values, H a multiple of K; returns (B, L, H, D).

    Products are multiplied by ``scale``, by default 1 / sqrt(D).
    """
    heads, kv_heads = q.shape[2], k.shape[2]
    if isinstance(mask, BlockMask):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = _flex(q, k, v, mask, kv_heads < heads, scale)
        return y.transpose(1, 2)
    if kv_heads < heads:
        k, v = (t.repeat_interleave(heads // kv_heads, dim=2) for t in (k, v))
    dtype, wide = q.dtype, q.device.type == "cpu" and q.dtype.itemsize == 2 and q.shape[1] <= _WIDE_TO
    q, k, v = (t.float().transpose(1, 2) if wide else t.transpose(1, 2) for t in (q, k, v))
    with torch.autocast(q.device.type, enabled=False) if wide else nullcontext():
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2).to(dtype)


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
