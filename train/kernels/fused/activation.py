"""Triton: SwiGLU, and bias + GELU + dropout with its mask recomputed."""

# Triton's decorator hides types, and a kernel's arguments are pointers and scalars of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from train.kernels.fused.launch import as_rows, sharers, tile, warps
from train.kernels.philox import keep_scale, threshold

_LOW = 0xFFFFFFFF


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """See ``train.kernels.swiglu``."""
    result: torch.Tensor = _swiglu(gate, up)
    return result


def bias_gelu_dropout(x: torch.Tensor, bias: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    """See ``train.kernels.bias_gelu_dropout``."""
    result: torch.Tensor = _bias_gelu(x, bias, p, seed, offset)
    return result


@triton.jit
def _swiglu_kernel(
    gate, up, y, rows, columns, gate_row, gate_column, up_row, up_column, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH))[None, :]
    inside = (row < rows) & (column < columns)
    a = tl.load(gate + row * gate_row + column * gate_column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(up + row * up_row + column * up_column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, (a * tl.sigmoid(a) * b).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_backward_kernel(
    dy, gate, up, dgate, dup, rows, columns, dy_row, dy_column, gate_row, gate_column, up_row, up_column,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH))[None, :]
    inside = (row < rows) & (column < columns)
    upstream = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(gate + row * gate_row + column * gate_column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(up + row * up_row + column * up_column, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(a)
    da = upstream * b * sigmoid * (1.0 + a * (1.0 - sigmoid))
    tl.store(dgate + row * columns + column, da.to(dgate.dtype.element_ty), mask=inside)
    tl.store(dup + row * columns + column, (upstream * a * sigmoid).to(dup.dtype.element_ty), mask=inside)


@torch.library.custom_op("gristmill::swiglu", mutates_args=())
def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    y = gate.new_empty(gate.shape)
    left, right = as_rows(gate), as_rows(up)
    rows, columns = left.shape
    height, width = tile(columns)
    with torch.cuda.device_of(gate):
        if y.numel():
            _swiglu_kernel[(triton.cdiv(rows, height), triton.cdiv(columns, width))](
                left, right, y, rows, columns, *left.stride(), *right.stride(), ROWS=height, WIDTH=width, num_warps=warps(height * width)
            )
    return y


@_swiglu.register_fake
def _(gate, up):
    return gate.new_empty(gate.shape)


@torch.library.custom_op("gristmill::swiglu_backward", mutates_args=())
def _swiglu_gradients(dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dgate, dup = gate.new_empty(gate.shape), up.new_empty(up.shape)
    upstream, left, right = as_rows(dy), as_rows(gate), as_rows(up)
    rows, columns = left.shape
    height, width = tile(columns)
    with torch.cuda.device_of(gate):
        if gate.numel():
            _swiglu_backward_kernel[(triton.cdiv(rows, height), triton.cdiv(columns, width))](
                upstream, left, right, dgate, dup, rows, columns, *upstream.stride(), *left.stride(), *right.stride(),
                ROWS=height, WIDTH=width, num_warps=warps(height * width),
            )  # fmt: skip
    return dgate, dup


@_swiglu_gradients.register_fake
def _(dy, gate, up):
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


_swiglu.register_autograd(lambda ctx, dy: _swiglu_gradients(dy, *ctx.saved_tensors), setup_context=_save)


@triton.jit
def _keep(row, columns, first_column, seed, offset_low, offset_high, limit, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Draw a tile's mask: 16 bits an element, eight elements a counter, as ``train.kernels.philox.keep_mask`` does."""
    block = row * ((columns + 7) // 8) + (first_column // 8 + tl.arange(0, WIDTH // 8))[None, :]
    # Scalars are no tensors in the interpreter, so they are cast as part of a sum.
    low, high = (block * 0 + offset_low).to(tl.uint32), (block * 0 + offset_high).to(tl.uint32)
    words = tl.philox(seed, block.to(tl.uint32), (block >> 32).to(tl.uint32), low, high)
    # join() adds a last dimension, so the words are paired in the order that flattens to 0, 1, 2, 3.
    joined = tl.join(tl.join(words[0], words[2]), tl.join(words[1], words[3]))
    draws = tl.join(joined & 0xFFFF, joined >> 16).to(tl.int32)
    return tl.reshape(draws, (ROWS, WIDTH)) >= limit


@triton.jit(do_not_specialize=["seed", "offset_low", "offset_high", "limit"])
def _bias_gelu_kernel(
    x, bias, y, rows, columns, x_row, x_column, seed, offset_low, offset_high, limit, scale,
    DROP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    first_column = tl.program_id(1).to(tl.int64) * WIDTH
    column = (first_column + tl.arange(0, WIDTH))[None, :]
    inside = (row < rows) & (column < columns)
    z = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(tl.float32)
    z += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    result = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    if DROP:
        result = tl.where(_keep(row, columns, first_column, seed, offset_low, offset_high, limit, ROWS, WIDTH), result * scale, 0.0)
    tl.store(y + row * columns + column, result.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["seed", "offset_low", "offset_high", "limit"])
def _bias_gelu_backward_kernel(
    dy, x, bias, dx, dbias, rows, columns, dy_row, dy_column, x_row, x_column, seed, offset_low, offset_high, limit, scale,
    DROP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    step = tl.num_programs(0).to(tl.int64) * ROWS
    first_column = tl.program_id(1).to(tl.int64) * WIDTH
    column = (first_column + tl.arange(0, WIDTH))[None, :]
    shift = tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    total = tl.zeros((1, WIDTH), dtype=tl.float32)
    for start in range(program * ROWS, rows, step):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & (column < columns)
        upstream = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(tl.float32)
        z = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(tl.float32) + shift
        if DROP:
            keep = _keep(row, columns, first_column, seed, offset_low, offset_high, limit, ROWS, WIDTH)
            upstream = tl.where(keep, upstream * scale, 0.0)
        slope = 0.5 * (1.0 + tl.erf(z * 0.7071067811865476)) + z * 0.3989422804014327 * tl.exp(-0.5 * z * z)
        result = tl.where(inside, upstream * slope, 0.0)
        total += tl.sum(result, axis=0)[None, :]
        tl.store(dx + row * columns + column, result.to(dx.dtype.element_ty), mask=inside)
    tl.store(dbias + program * columns + column, total, mask=column < columns)


@torch.library.custom_op("gristmill::bias_gelu_dropout", mutates_args=())
def _bias_gelu(x: torch.Tensor, bias: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    y = x.new_empty(x.shape)
    source = as_rows(x)
    rows, columns = source.shape
    height, width = tile(columns)
    with torch.cuda.device_of(x):
        if y.numel():
            _bias_gelu_kernel[(triton.cdiv(rows, height), triton.cdiv(columns, width))](
                source, bias.contiguous(), y, rows, columns, *source.stride(), *_draw(p, seed, offset),
                DROP=threshold(p) > 0, ROWS=height, WIDTH=width, num_warps=warps(height * width),
            )  # fmt: skip
    return y


@_bias_gelu.register_fake
def _(x, bias, p, seed, offset):
    return x.new_empty(x.shape)


@torch.library.custom_op("gristmill::bias_gelu_dropout_backward", mutates_args=())
def _bias_gelu_gradients(
    dy: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, p: float, seed: int, offset: int
) -> tuple[torch.Tensor, torch.Tensor]:
    dx = x.new_empty(x.shape)
    upstream, source = as_rows(dy), as_rows(x)
    rows, columns = source.shape
    height, width = tile(columns)
    programs = sharers(triton.cdiv(rows, height), x.device)
    parts = x.new_zeros((programs, columns), dtype=torch.float32)
    with torch.cuda.device_of(x):
        if x.numel():
            _bias_gelu_backward_kernel[(programs, triton.cdiv(columns, width))](
                upstream, source, bias.contiguous(), dx, parts, rows, columns, *upstream.stride(), *source.stride(),
                *_draw(p, seed, offset), DROP=threshold(p) > 0, ROWS=height, WIDTH=width, num_warps=warps(height * width),
            )  # fmt: skip
    return dx, parts.sum(0).to(bias.dtype)


@_bias_gelu_gradients.register_fake
def _(dy, x, bias, p, seed, offset):
    return x.new_empty(x.shape), bias.new_empty(bias.shape)


def _draw(p: float, seed: int, offset: int) -> tuple[int, int, int, int, float]:
    """Return seed, both halves of the offset, threshold and scale, as the kernels take them."""
    return seed, offset & _LOW, (offset >> 32) & _LOW, threshold(p), keep_scale(p)


def _save_draw(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, bias, *ctx.draw = inputs
    ctx.save_for_backward(x, bias)


_bias_gelu.register_autograd(
    lambda ctx, dy: (*_bias_gelu_gradients(dy, *ctx.saved_tensors, *ctx.draw), None, None, None), setup_context=_save_draw
)
