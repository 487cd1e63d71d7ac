"""Triton: RMSNorm, add + RMSNorm and LayerNorm as one forward and one backward kernel."""

# Triton's decorator hides types, and a kernel's arguments are pointers and scalars of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from train.kernels.fused.launch import as_rows, sharers, warps, whole_row_tile


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See ``train.kernels.rms_norm``."""
    y: torch.Tensor = _op(x, None, weight, None, eps, False)[0]
    return y


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``train.kernels.add_rms_norm``."""
    y, total, _, _ = _op(x, residual, weight, None, eps, False)
    return y, total


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """See ``train.kernels.layer_norm``."""
    y: torch.Tensor = _op(x, None, weight, bias, eps, True)[0]
    return y


@triton.jit
def _norm_kernel(
    x, residual, weight, bias, y, total, mean, rstd, rows, columns, x_row, x_column, residual_row, residual_column, eps,
    CENTER: tl.constexpr, RESIDUAL: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, WIDTH).to(tl.int64)[None, :]
    inside = (row < rows) & (column < columns)
    values = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        values += tl.load(residual + row * residual_row + column * residual_column, mask=inside, other=0.0).to(tl.float32)
        stored = values.to(total.dtype.element_ty)
        tl.store(total + row * columns + column, stored, mask=inside)
        values = stored.to(tl.float32)
    if CENTER:
        average = tl.sum(values, axis=1)[:, None] / columns
        tl.store(mean + row, average, mask=row < rows)
        values = tl.where(inside, values - average, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(values * values, axis=1)[:, None] / columns + eps)
    tl.store(rstd + row, inverse, mask=row < rows)
    result = values * inverse * tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
    if BIAS:
        result += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward_kernel(
    dy, dtotal, x, weight, mean, rstd, dx, dweight, dbias, rows, columns, dy_row, dy_column, dtotal_row, dtotal_column, x_row, x_column,
    CENTER: tl.constexpr, RESIDUAL: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    step = tl.num_programs(0).to(tl.int64) * ROWS
    column = tl.arange(0, WIDTH).to(tl.int64)[None, :]
    scale = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
    weight_sum = tl.zeros((1, WIDTH), dtype=tl.float32)
    bias_sum = tl.zeros((1, WIDTH), dtype=tl.float32)
    for start in range(program * ROWS, rows, step):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & (column < columns)
        upstream = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(tl.float32)
        normed = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.load(rstd + row, mask=row < rows, other=0.0)
        if CENTER:
            normed = tl.where(inside, normed - tl.load(mean + row, mask=row < rows, other=0.0), 0.0)
        normed *= inverse
        weight_sum += tl.sum(upstream * normed, axis=0)[None, :]
        if BIAS:
            bias_sum += tl.sum(upstream, axis=0)[None, :]
        upstream *= scale
        result = upstream - normed * (tl.sum(upstream * normed, axis=1)[:, None] / columns)
        if CENTER:
            result -= tl.sum(upstream, axis=1)[:, None] / columns
        result *= inverse
        if RESIDUAL:
            result += tl.load(dtotal + row * dtotal_row + column * dtotal_column, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + row * columns + column, result.to(dx.dtype.element_ty), mask=inside)
    tl.store(dweight + program * columns + column, weight_sum, mask=column < columns)
    if BIAS:
        tl.store(dbias + program * columns + column, bias_sum, mask=column < columns)


@torch.library.custom_op("gristmill::norm", mutates_args=())
def _op(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, center: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the norm, x + residual (empty without a residual), and each row's mean (empty unless ``center``) and 1 / deviation."""
    y, total, mean, rstd = outputs = _outputs(x, residual, weight, bias, eps, center)
    source = as_rows(x)
    added = source if residual is None else as_rows(residual)
    rows, columns = source.shape
    height, width = whole_row_tile(columns)
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    with torch.cuda.device_of(x):
        if x.numel():
            _norm_kernel[(triton.cdiv(rows, height),)](
                source, added, weight, weight if bias is None else bias, y, total, mean, rstd, rows, columns,
                *source.stride(), *added.stride(), eps, CENTER=center, RESIDUAL=residual is not None, BIAS=bias is not None,
                ROWS=height, WIDTH=width, num_warps=warps(height * width),
            )  # fmt: skip
    return outputs


@_op.register_fake
def _outputs(x, residual, weight, bias, eps, center):
    rows = x.shape[:-1].numel()
    total = x.new_empty(0) if residual is None else x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, residual.dtype))
    mean = x.new_empty(rows if center else 0, dtype=torch.float32)
    return x.new_empty(x.shape), total, mean, x.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("gristmill::norm_backward", mutates_args=())
def _backward_op(
    dy: torch.Tensor,
    dtotal: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    center: bool,
    with_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x (that went into the norm), weight and bias (empty without one), the last two in FP32."""
    source, upstream = as_rows(x), as_rows(dy)
    added = upstream if dtotal is None else as_rows(dtotal)
    rows, columns = source.shape
    height, width = whole_row_tile(columns)
    programs = sharers(triton.cdiv(rows, height), x.device)
    dx = x.new_empty(x.shape)
    weight_parts = x.new_zeros((programs, columns), dtype=torch.float32)
    bias_parts = torch.zeros_like(weight_parts) if with_bias else weight_parts.new_empty((0, 0))
    with torch.cuda.device_of(x):
        if x.numel():
            _norm_backward_kernel[(programs,)](
                upstream, added, source, weight.contiguous(), mean, rstd, dx, weight_parts, bias_parts, rows, columns,
                *upstream.stride(), *added.stride(), *source.stride(),
                CENTER=center, RESIDUAL=dtotal is not None, BIAS=with_bias, ROWS=height, WIDTH=width, num_warps=warps(height * width),
            )  # fmt: skip
    return dx, weight_parts.sum(0), bias_parts.sum(0)


@_backward_op.register_fake
def _(dy, dtotal, x, weight, mean, rstd, center, with_bias):
    vector = x.new_empty(x.shape[-1], dtype=torch.float32)
    return x.new_empty(x.shape), vector, vector.new_empty(x.shape[-1] if with_bias else 0)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, residual, weight, bias, _, ctx.center = inputs
    _, total, mean, rstd = output
    ctx.x, ctx.bias = x.dtype, None if bias is None else bias.dtype
    ctx.residual = None if residual is None else residual.dtype
    ctx.mark_non_differentiable(mean, rstd)
    ctx.save_for_backward(x if residual is None else total, weight, mean, rstd)


def _backward(ctx: Any, dy: torch.Tensor, dtotal: torch.Tensor, *_: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    x, weight, mean, rstd = ctx.saved_tensors
    carried = None if ctx.residual is None else dtotal
    dx, dweight, dbias = _backward_op(dy, carried, x, weight, mean, rstd, ctx.center, ctx.bias is not None)
    dresidual = None if ctx.residual is None else dx.to(ctx.residual)
    return dx.to(ctx.x), dresidual, dweight.to(weight.dtype), None if ctx.bias is None else dbias.to(ctx.bias), None, None


_op.register_autograd(_backward, setup_context=_setup)
