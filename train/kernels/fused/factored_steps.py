"""Triton: Adafactor and CAME steps over many matrices, in as few passes over their elements as the rules allow.

What ``train.kernels.steps`` runs on CUDA. Each matrix is clipped and scaled by itself. Weights, gradients and moments are contiguous; row
and column means are FP32.
"""

# Triton's decorator hides types, and a kernel's arguments are pointers and scalars of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from train.kernels.fused.factored_sums import STRIP, WIDTH, Sums, move_means, move_moments, square_sums
from train.kernels.fused.rounding import store_weights
from train.kernels.fused.tables import dtype_of, extent, field, table

_WARPS = 8


@triton.jit
def _squares_kernel(
    entries, work, parts, most,
    WEIGHTS: tl.constexpr, VALUE: tl.constexpr, WIDE: tl.constexpr, STRIP: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    strip = tl.load(work + 2 * tl.program_id(0) + 1).to(tl.int64)
    rows, columns = tl.load(entries + tensor * 5 + 3), extent(entries, tensor, 5, 4, WIDE)
    values = field(entries, tensor, 5, 0, VALUE, WIDE)
    row = (strip * STRIP + tl.arange(0, STRIP))[:, None]
    total = tl.zeros((STRIP, 1), dtype=tl.float32)
    if not WEIGHTS:
        scale = tl.load(field(entries, tensor, 5, 1, tl.float32, WIDE) + row, mask=row < rows, other=0.0)
    for start in range(0, columns, WIDTH):
        column = (start + tl.arange(0, WIDTH)).to(tl.int64)[None, :]
        value = tl.load(values + row * columns + column, mask=(row < rows) & (column < columns), other=0.0).to(tl.float32)
        if not WEIGHTS:
            value *= scale * tl.load(field(entries, tensor, 5, 2, tl.float32, WIDE) + column, mask=column < columns, other=0.0)
        total += tl.sum(value * value, axis=1)[:, None]
    tl.store(parts + tensor * most + strip, tl.sum(tl.sum(total, axis=1), axis=0))


@triton.jit
def _apply_kernel(
    entries, work, rates, keep, step,
    FACTORED: tl.constexpr, STOCHASTIC: tl.constexpr, VALUE: tl.constexpr, WEIGHT: tl.constexpr, WIDE: tl.constexpr,
    STRIP: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    strip = tl.load(work + 2 * tl.program_id(0) + 1).to(tl.int64)
    rows, columns = tl.load(entries + tensor * 7 + 5), extent(entries, tensor, 7, 6, WIDE)
    values, weights = field(entries, tensor, 7, 0, VALUE, WIDE), field(entries, tensor, 7, 1, WEIGHT, WIDE)
    row = (strip * STRIP + tl.arange(0, STRIP))[:, None]
    scale = tl.load(rates + tensor)
    if FACTORED:
        scale *= tl.load(field(entries, tensor, 7, 2, tl.float32, WIDE) + row, mask=row < rows, other=0.0)
    for start in range(0, columns, WIDTH):
        column = (start + tl.arange(0, WIDTH)).to(tl.int64)[None, :]
        inside = (row < rows) & (column < columns)
        element = row * columns + column
        value = tl.load(values + element, mask=inside, other=0.0).to(tl.float32) * scale
        if FACTORED:
            value *= tl.load(field(entries, tensor, 7, 3, tl.float32, WIDE) + column, mask=column < columns, other=0.0)
        weight = tl.load(weights + element, mask=inside, other=0.0).to(tl.float32) * keep - value
        store_weights(weights + element, weight, element, inside, tl.load(entries + tensor * 7 + 4), step, STOCHASTIC, WEIGHT)


def mean_squares(values: Sequence[torch.Tensor], factors: Sums | None) -> torch.Tensor:
    """Return each matrix's mean square (n,) of values times factors, FP32. Bytes: one read of the values, the floor."""
    shapes = [tuple(value.shape) for value in values]
    rows, columns = factors or (values, values)
    made = table((values, rows, columns), shapes, [triton.cdiv(height, STRIP) for height, _ in shapes])
    parts = values[0].new_zeros((len(values), made.blocks), dtype=torch.float32)
    with torch.cuda.device_of(parts):
        _squares_kernel[(len(made.work),)](
            made.entries, made.work, parts, made.blocks, WEIGHTS=factors is None, VALUE=dtype_of(values), WIDE=made.wide,
            STRIP=STRIP, WIDTH=WIDTH, num_warps=_WARPS,
        )  # fmt: skip
    return parts.sum(1) / torch.tensor([value.numel() for value in values]).to(parts, non_blocking=True)


def subtract(
    weights: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    factors: Sums | None,
    rates: torch.Tensor,
    *,
    keep: float,
    step: int,
    seeds: Sequence[int] | None,
) -> None:
    """Set weights to ``keep * weights - rates[i] * values * factors``. Bytes per FP32 element: 12, the floor."""
    rows, columns = factors or (values, values)
    numbers = [(seed, *value.shape) for seed, value in zip(seeds or [0] * len(values), values, strict=True)]
    made = table((values, weights, rows, columns), numbers, [triton.cdiv(height, STRIP) for _, height, _ in numbers])
    dtype = dtype_of(weights)
    with torch.cuda.device_of(rates):
        _apply_kernel[(len(made.work),)](
            made.entries, made.work, rates, keep, step, FACTORED=factors is not None,
            STOCHASTIC=dtype == tl.bfloat16 and seeds is not None, VALUE=dtype_of(values), WEIGHT=dtype, WIDE=made.wide,
            STRIP=STRIP, WIDTH=WIDTH, num_warps=_WARPS,
        )  # fmt: skip


@torch.library.custom_op("gristmill::adafactor_step", mutates_args=("weights", "rows", "columns", "exp_avgs"))
def adafactor_step(
    weights: list[torch.Tensor],
    grads: list[torch.Tensor],
    rows: list[torch.Tensor],
    columns: list[torch.Tensor],
    exp_avgs: list[torch.Tensor],
    step: int,
    rate: float,
    least_scale: float,
    keep: float,
    eps: float,
    clip: float,
    beta1: float,
    beta2: float,
    seeds: list[int] | None,
) -> torch.Tensor:
    """Take one Adafactor step in place; returns each matrix's mean square of the update before clipping (n,)."""
    factors = move_means((rows, columns), square_sums(grads), beta=beta2, eps=eps)
    squares = mean_squares(grads, factors)
    shrink = _shrink(squares, clip)
    rates = torch.full_like(shrink, rate)
    if least_scale > 0:
        rates = rate * mean_squares(weights, None).sqrt().clamp_(min=least_scale)
    if exp_avgs:
        move_moments(grads, exp_avgs, factors, shrink, beta1)
        subtract(weights, exp_avgs, None, rates, keep=keep, step=step, seeds=seeds)
    else:
        subtract(weights, grads, factors, rates * shrink, keep=keep, step=step, seeds=seeds)
    return squares


@adafactor_step.register_fake
def _(weights, grads, rows, columns, exp_avgs, step, rate, least_scale, keep, eps, clip, beta1, beta2, seeds):
    return weights[0].new_empty(len(weights), dtype=torch.float32)


@torch.library.custom_op(
    "gristmill::came_step", mutates_args=("weights", "exp_avgs", "rows", "columns", "residual_rows", "residual_columns")
)
def came_step(
    weights: list[torch.Tensor],
    grads: list[torch.Tensor],
    exp_avgs: list[torch.Tensor],
    rows: list[torch.Tensor],
    columns: list[torch.Tensor],
    residual_rows: list[torch.Tensor],
    residual_columns: list[torch.Tensor],
    step: int,
    lr: float,
    keep: float,
    betas: list[float],
    eps: list[float],
    clip: float,
    seeds: list[int] | None,
) -> torch.Tensor:
    """Take one CAME step in place; returns each matrix's mean square of the update before clipping (n,)."""
    factors = move_means((rows, columns), square_sums(grads), beta=betas[1], eps=eps[0])
    squares = mean_squares(grads, factors)
    strays = move_moments(grads, exp_avgs, factors, _shrink(squares, clip), betas[0])
    confidence = move_means((residual_rows, residual_columns), strays, beta=betas[2], eps=eps[1])
    rates = weights[0].new_full((len(weights),), lr, dtype=torch.float32)
    subtract(weights, exp_avgs, confidence, rates, keep=keep, step=step, seeds=seeds)
    return squares


@came_step.register_fake
def _(weights, grads, exp_avgs, rows, columns, residual_rows, residual_columns, step, lr, keep, betas, eps, clip, seeds):
    return weights[0].new_empty(len(weights), dtype=torch.float32)


def _shrink(squares: torch.Tensor, clip: float) -> torch.Tensor:
    return (squares.sqrt() / clip).clamp_(min=1).reciprocal_()
