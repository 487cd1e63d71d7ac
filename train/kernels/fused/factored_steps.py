"""Triton: Adafactor and CAME steps over many matrices, in as few passes over their elements as the rules allow.

The rules are those of ``train.optim.adafactor`` and ``train.optim.came`` for parameters that are whole on their device. Each matrix is
clipped and scaled by itself; a stack of matrices enters as one per leading index (``matrices``), so a parameter of more than two dimensions
that is to be clipped as a whole stays with ``train.optim``, as do vectors, which have nothing to factor. Weights, gradients and moments are
contiguous; row and column means are FP32.
"""

# Triton's decorator hides types, and a kernel's arguments are pointers and scalars of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from train.kernels.fused.factored_sums import STRIP, WIDTH, Sums, extent, field, move_means, move_moments, square_sums
from train.kernels.fused.rounding import store_weights
from train.kernels.fused.tables import dtype_of, table

_WARPS = 8


def matrices(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return a tensor's matrices: views over its last two dimensions, one per leading index."""
    return list(tensor.reshape(-1, *tensor.shape[-2:]).unbind(0)) if tensor.ndim > 2 else [tensor]


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
    entries, work, rates, keep, seed, step,
    FACTORED: tl.constexpr, STOCHASTIC: tl.constexpr, VALUE: tl.constexpr, WEIGHT: tl.constexpr, WIDE: tl.constexpr,
    STRIP: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    strip = tl.load(work + 2 * tl.program_id(0) + 1).to(tl.int64)
    rows, columns = tl.load(entries + tensor * 6 + 4), extent(entries, tensor, 6, 5, WIDE)
    values, weights = field(entries, tensor, 6, 0, VALUE, WIDE), field(entries, tensor, 6, 1, WEIGHT, WIDE)
    row = (strip * STRIP + tl.arange(0, STRIP))[:, None]
    scale = tl.load(rates + tensor)
    if FACTORED:
        scale *= tl.load(field(entries, tensor, 6, 2, tl.float32, WIDE) + row, mask=row < rows, other=0.0)
    for start in range(0, columns, WIDTH):
        column = (start + tl.arange(0, WIDTH)).to(tl.int64)[None, :]
        inside = (row < rows) & (column < columns)
        element = row * columns + column
        value = tl.load(values + element, mask=inside, other=0.0).to(tl.float32) * scale
        if FACTORED:
            value *= tl.load(field(entries, tensor, 6, 3, tl.float32, WIDE) + column, mask=column < columns, other=0.0)
        weight = tl.load(weights + element, mask=inside, other=0.0).to(tl.float32) * keep - value
        store_weights(weights + element, weight, element, inside, seed, tensor, step, STOCHASTIC, WEIGHT)


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
    return parts.sum(1) / torch.tensor([value.numel() for value in values]).to(parts)


def subtract(
    weights: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    factors: Sums | None,
    rates: torch.Tensor,
    *,
    keep: float,
    step: int,
    seed: int | None,
) -> None:
    """Set weights to ``keep * weights - rates[i] * values * factors``. Bytes per FP32 element: 12, the floor."""
    shapes = [tuple(value.shape) for value in values]
    rows, columns = factors or (values, values)
    made = table((values, weights, rows, columns), shapes, [triton.cdiv(height, STRIP) for height, _ in shapes])
    dtype = dtype_of(weights)
    with torch.cuda.device_of(rates):
        _apply_kernel[(len(made.work),)](
            made.entries, made.work, rates, keep, seed or 0, step, FACTORED=factors is not None,
            STOCHASTIC=dtype == tl.bfloat16 and seed is not None, VALUE=dtype_of(values), WEIGHT=dtype, WIDE=made.wide,
            STRIP=STRIP, WIDTH=WIDTH, num_warps=_WARPS,
        )  # fmt: skip


def adafactor_step(
    weights: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    means: Sums,
    *,
    step: int,
    lr: float = 1e-2,
    relative_step: bool = True,
    scale_parameter: bool = True,
    eps: tuple[float, float] = (1e-30, 1e-3),
    clip: float = 1.0,
    decay_rate: float = -0.8,
    weight_decay: float = 0.0,
    exp_avgs: Sequence[torch.Tensor] | None = None,
    beta1: float = 0.0,
    seed: int | None = None,
) -> None:
    """Take one Adafactor step in place (Shazeer & Stern 2018, algorithms 4 to 6); settings as in ``train.optim.adafactor``.

    Bytes moved per FP32 element: 24 (the gradient three times, the weight twice, one write), with a first moment 36; the sums and the
    clipping must each end before the next pass, so the floor is that, or 12 where a matrix stays in L2.

    Args:
        weights: matrices of one dtype.
        grads: matrices of one dtype.
        means: row means (R,) and column means (C,) of every matrix, FP32.
        step: this step's number, from 1.
        lr: upper bound of the relative step, or the step where ``relative_step`` is False.
        relative_step: bound the step by 1/sqrt(step).
        scale_parameter: multiply the step by max(eps[1], RMS(weight)).
        eps: added to squared gradients; least scale of a parameter.
        clip: RMS above which an update is scaled down.
        decay_rate: exponent of beta2.
        weight_decay: decoupled.
        exp_avgs: first moments, FP32 or BF16, or None.
        beta1: of the first moment.
        seed: where given, BF16 weights are rounded stochastically.
    """
    if not weights:
        return
    factors = move_means(means, square_sums(grads), beta=1 - step**decay_rate, eps=eps[0])
    shrink = _shrink(grads, factors, clip)
    rate = min(lr, step**-0.5) if relative_step else lr
    rates = torch.full_like(shrink, rate)
    if scale_parameter:
        rates = rate * mean_squares(weights, None).sqrt().clamp_(min=eps[1])
    keep = 1 - lr * weight_decay
    if exp_avgs is None:
        subtract(weights, grads, factors, rates * shrink, keep=keep, step=step, seed=seed)
    else:
        move_moments(grads, exp_avgs, factors, shrink, beta1)
        subtract(weights, exp_avgs, None, rates, keep=keep, step=step, seed=seed)


def came_step(
    weights: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    means: Sums,
    residuals: Sums,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
    eps: tuple[float, float] = (1e-30, 1e-16),
    clip: float = 1.0,
    weight_decay: float = 0.0,
    seed: int | None = None,
) -> None:
    """Take one CAME step in place (Luo et al. 2023, algorithm 2); settings as in ``train.optim.came``.

    Bytes moved per FP32 element: 32 (gradient; gradient; gradient and moment in, moment out; moment and weight in, weight out). Three sums
    stand between the passes, so that is the floor, or 20 where a matrix stays in L2.

    Args:
        weights: matrices of one dtype.
        grads: matrices of one dtype.
        exp_avgs: first moments, FP32 or BF16.
        means: row and column means of squared gradients, FP32.
        residuals: row and column means of the instability, FP32.
        step: this step's number; it only seeds rounding.
        lr: learning rate.
        betas: of the moment, the means and the residuals.
        eps: added to squared gradients and to the instability.
        clip: RMS above which an update is scaled down.
        weight_decay: decoupled.
        seed: where given, BF16 weights are rounded stochastically.
    """
    if not weights:
        return
    factors = move_means(means, square_sums(grads), beta=betas[1], eps=eps[0])
    strays = move_moments(grads, exp_avgs, factors, _shrink(grads, factors, clip), betas[0])
    confidence = move_means(residuals, strays, beta=betas[2], eps=eps[1])
    rates = weights[0].new_full((len(weights),), lr, dtype=torch.float32)
    subtract(weights, exp_avgs, confidence, rates, keep=1 - lr * weight_decay, step=step, seed=seed)


def _shrink(grads: Sequence[torch.Tensor], factors: Sums, clip: float) -> torch.Tensor:
    return (mean_squares(grads, factors).sqrt() / clip).clamp_(min=1).reciprocal_()
