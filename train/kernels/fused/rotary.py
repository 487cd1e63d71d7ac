"""Triton: rotary embedding of q and k in one launch; the backward pass is the forward by the opposite angle."""

# Triton's decorator hides types, and a kernel's arguments are pointers and scalars of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_TILE = 2048


def rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``train.kernels.rope``."""
    rotated: tuple[torch.Tensor, torch.Tensor] = _op(q, k, cos.detach(), sin.detach(), False)
    return rotated


@triton.jit
def _rotate_heads(
    x, y, cosine, sine, batch, position, token, inside, heads, x_batch, x_token, x_head, x_column,
    HALF: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    pair = tl.arange(0, WIDTH).to(tl.int64)[None, None, :]
    for start in range(0, heads, HEADS):
        head = (start + tl.arange(0, HEADS)).to(tl.int64)[None, :, None]
        mask = inside & (head < heads) & (pair < HALF)
        source = x + batch * x_batch + position * x_token + head * x_head + pair * x_column
        target = y + (token * heads + head) * (2 * HALF) + pair
        first = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(source + HALF * x_column, mask=mask, other=0.0).to(tl.float32)
        tl.store(target, (first * cosine - second * sine).to(y.dtype.element_ty), mask=mask)
        tl.store(target + HALF, (second * cosine + first * sine).to(y.dtype.element_ty), mask=mask)


@triton.jit
def _rope_kernel(
    q, k, cos, sin, q_out, k_out, tokens, length, q_heads, k_heads,
    q_batch, q_token, q_head, q_column, k_batch, k_token, k_head, k_column,
    cos_batch, cos_token, cos_column, sin_batch, sin_token, sin_column,
    INVERSE: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS))[:, None, None]
    batch, position = token // length, token % length
    pair = tl.arange(0, WIDTH).to(tl.int64)[None, None, :]
    inside = token < tokens
    mask = inside & (pair < HALF)
    cosine = tl.load(cos + batch * cos_batch + position * cos_token + pair * cos_column, mask=mask, other=0.0).to(tl.float32)
    sine = tl.load(sin + batch * sin_batch + position * sin_token + pair * sin_column, mask=mask, other=0.0).to(tl.float32)
    if INVERSE:
        sine = -sine
    _rotate_heads(
        q, q_out, cosine, sine, batch, position, token, inside, q_heads, q_batch, q_token, q_head, q_column, HALF, WIDTH, Q_HEADS
    )  # fmt: skip
    _rotate_heads(
        k, k_out, cosine, sine, batch, position, token, inside, k_heads, k_batch, k_token, k_head, k_column, HALF, WIDTH, K_HEADS
    )  # fmt: skip


@torch.library.custom_op("gristmill::rope", mutates_args=())
def _op(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, inverse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return q and k rotated by the angles, or by their opposites."""
    q_out, k_out = _outputs(q, k, cos, sin, inverse)
    batch, length, q_heads, width = q.shape
    half, k_heads = width // 2, k.shape[2]
    block = triton.next_power_of_2(half)
    most = max(1, _TILE // block)
    q_tile, k_tile = (min(most, triton.next_power_of_2(heads)) for heads in (q_heads, k_heads))
    tokens = max(1, most // q_tile)
    # A batch stride of 0 lets rows share their angles.
    strides = [(0, *table.stride()) if table.ndim == 2 else table.stride() for table in (cos, sin)]
    with torch.cuda.device_of(q):
        if batch * length:
            _rope_kernel[(triton.cdiv(batch * length, tokens),)](
                q, k, cos, sin, q_out, k_out, batch * length, length, q_heads, k_heads, *q.stride(), *k.stride(), *strides[0], *strides[1],
                INVERSE=inverse, HALF=half, WIDTH=block, TOKENS=tokens, Q_HEADS=q_tile, K_HEADS=k_tile, num_warps=4,
            )  # fmt: skip
    return q_out, k_out


@_op.register_fake
def _outputs(q, k, cos, sin, inverse):
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, _, cos, sin, ctx.inverse = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx: Any, dq: torch.Tensor, dk: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return (*_op(dq, dk, *ctx.saved_tensors, not ctx.inverse), None, None, None)


_op.register_autograd(_backward, setup_context=_setup)
