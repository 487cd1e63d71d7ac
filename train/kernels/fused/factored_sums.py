"""Triton: sums over the rows and columns of many matrices, and the factors of 1/sqrt(V) from them, each in one launch.

A program owns a strip of rows: its row sums are whole when it ends; its column sums are a part, which a second launch adds up in a fixed
order. No atomics, so that a step gives the same bits every time.
"""

# Triton's decorator hides types, and a kernel's arguments are pointers and scalars of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from train.kernels.fused.tables import dtype_of, extent, field, table

STRIP = 16
WIDTH = 256
_WARPS = 8

Sums = tuple[list[torch.Tensor], list[torch.Tensor]]


@triton.jit
def _sums_kernel(
    entries, work, shrink, keep,
    MOVE: tl.constexpr, VALUE: tl.constexpr, MOMENT: tl.constexpr, WIDE: tl.constexpr, STRIP: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    strip = tl.load(work + 2 * tl.program_id(0) + 1).to(tl.int64)
    rows, columns = tl.load(entries + tensor * 8 + 6), extent(entries, tensor, 8, 7, WIDE)
    values, moments = field(entries, tensor, 8, 0, VALUE, WIDE), field(entries, tensor, 8, 1, MOMENT, WIDE)
    column_factors = field(entries, tensor, 8, 3, tl.float32, WIDE)
    parts = field(entries, tensor, 8, 5, tl.float32, WIDE) + strip * columns
    row = (strip * STRIP + tl.arange(0, STRIP))[:, None]
    if MOVE:
        scale = tl.load(field(entries, tensor, 8, 2, tl.float32, WIDE) + row, mask=row < rows, other=0.0) * tl.load(shrink + tensor)
    totals = tl.zeros((STRIP, 1), dtype=tl.float32)
    for start in range(0, columns, WIDTH):
        column = (start + tl.arange(0, WIDTH)).to(tl.int64)[None, :]
        inside = (row < rows) & (column < columns)
        value = tl.load(values + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        if MOVE:
            # u - m_new = keep (u - m_old): one distance serves the moment and its instability.
            value *= scale * tl.load(column_factors + column, mask=column < columns, other=0.0)
            old = tl.load(moments + row * columns + column, mask=inside, other=0.0).to(tl.float32)
            value -= old
            tl.store(moments + row * columns + column, (old + (1.0 - keep) * value).to(MOMENT), mask=inside)
            value = tl.where(inside, keep * value, 0.0)
        square = value * value
        totals += tl.sum(square, axis=1)[:, None]
        tl.store(parts + column, tl.sum(square, axis=0)[None, :], mask=column < columns)
    tl.store(field(entries, tensor, 8, 4, tl.float32, WIDE) + row, totals, mask=row < rows)


@triton.jit
def _column_kernel(entries, work, BLOCK: tl.constexpr):
    tensor = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    column = tl.load(work + 2 * tl.program_id(0) + 1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    strips, columns = tl.load(entries + tensor * 4 + 2), tl.load(entries + tensor * 4 + 3)
    parts = field(entries, tensor, 4, 0, tl.float32, False)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for strip in range(strips):
        total += tl.load(parts + strip * columns + column, mask=column < columns, other=0.0)
    tl.store(field(entries, tensor, 4, 1, tl.float32, False) + column, total, mask=column < columns)


@triton.jit
def _factors_kernel(entries, beta, eps, BLOCK: tl.constexpr):
    tensor = tl.program_id(0).to(tl.int64)
    rows, columns = tl.load(entries + tensor * 8 + 6), tl.load(entries + tensor * 8 + 7)
    mean = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, rows, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total = tl.load(field(entries, tensor, 8, 0, tl.float32, False) + at, mask=at < rows, other=0.0)
        old = tl.load(field(entries, tensor, 8, 2, tl.float32, False) + at, mask=at < rows, other=0.0)
        moved = beta * old + (1.0 - beta) * (total / columns + eps)
        tl.store(field(entries, tensor, 8, 2, tl.float32, False) + at, moved, mask=at < rows)
        tl.store(field(entries, tensor, 8, 4, tl.float32, False) + at, moved, mask=at < rows)
        mean += tl.where(at < rows, moved, 0.0)
    # The row means are read below as they were written above.
    tl.debug_barrier()
    average = tl.sum(mean, axis=0) / rows
    for start in range(0, rows, BLOCK):
        at = start + tl.arange(0, BLOCK)
        moved = tl.load(field(entries, tensor, 8, 4, tl.float32, False) + at, mask=at < rows, other=1.0)
        tl.store(field(entries, tensor, 8, 4, tl.float32, False) + at, 1.0 / tl.sqrt(moved / average), mask=at < rows)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total = tl.load(field(entries, tensor, 8, 1, tl.float32, False) + at, mask=at < columns, other=0.0)
        old = tl.load(field(entries, tensor, 8, 3, tl.float32, False) + at, mask=at < columns, other=0.0)
        moved = beta * old + (1.0 - beta) * (total / rows + eps)
        tl.store(field(entries, tensor, 8, 3, tl.float32, False) + at, moved, mask=at < columns)
        tl.store(field(entries, tensor, 8, 5, tl.float32, False) + at, 1.0 / tl.sqrt(moved), mask=at < columns)


def square_sums(grads: Sequence[torch.Tensor]) -> Sums:
    """Return the sums of squares along every matrix's rows (R,) and columns (C,), FP32. Bytes: one read of the gradients, the floor."""
    return _sums(grads, grads, None, None, 1.0)


def move_moments(grads: Sequence[torch.Tensor], moments: Sequence[torch.Tensor], factors: Sums, shrink: torch.Tensor, beta1: float) -> Sums:
    """Move moments towards u = gradient times factors times ``shrink`` (n,), and return the sums of (u - moment)^2.

    Bytes per FP32 element: 12 (read gradient and moment, write moment), the floor.
    """
    return _sums(grads, moments, factors, shrink, beta1)


def move_means(means: Sums, sums: Sums, *, beta: float, eps: float) -> Sums:
    """Move row and column means towards those of the squares plus ``eps``; return the factors rsqrt(R / mean R) and rsqrt(C)."""
    factors = tuple([torch.empty_like(tensor) for tensor in side] for side in means)
    made = table((*sums, *means, *factors), [(len(row), len(column)) for row, column in zip(*means, strict=True)], [1] * len(means[0]))
    with torch.cuda.device_of(means[0][0]):
        _factors_kernel[(len(made.entries),)](made.entries, beta, eps, BLOCK=1024, num_warps=4)
    return factors[0], factors[1]


def _sums(
    values: Sequence[torch.Tensor], moments: Sequence[torch.Tensor], factors: Sums | None, shrink: torch.Tensor | None, keep: float
) -> Sums:
    shapes = [tuple(value.shape) for value in values]
    strips = [triton.cdiv(rows, STRIP) for rows, _ in shapes]
    rows = [value.new_empty(value.shape[0], dtype=torch.float32) for value in values]
    columns = [value.new_empty(value.shape[1], dtype=torch.float32) for value in values]
    parts = [value.new_empty((strip, value.shape[1]), dtype=torch.float32) for value, strip in zip(values, strips, strict=True)]
    row_factors, column_factors = factors or (rows, columns)
    made = table((values, moments, row_factors, column_factors, rows, parts), shapes, strips)
    blocks = [triton.cdiv(width, WIDTH) for _, width in shapes]
    gather = table((parts, columns), [(strip, width) for strip, (_, width) in zip(strips, shapes, strict=True)], blocks)
    with torch.cuda.device_of(values[0]):
        _sums_kernel[(len(made.work),)](
            made.entries, made.work, made.entries if shrink is None else shrink, keep, MOVE=shrink is not None,
            VALUE=dtype_of(values), MOMENT=dtype_of(moments), WIDE=made.wide, STRIP=STRIP, WIDTH=WIDTH, num_warps=_WARPS,
        )  # fmt: skip
        _column_kernel[(len(gather.work),)](gather.entries, gather.work, BLOCK=WIDTH, num_warps=4)
    return rows, columns
