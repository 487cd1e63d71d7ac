"""Triton: cross-entropy of a block of logits, whose gradient takes the logits' place."""

# Triton's decorator hides types, and a kernel's arguments are pointers and scalars of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from train.kernels.fused.launch import warps

_WIDTH = 4096


@triton.jit
def _row_loss_kernel(
    logits, targets, scale, losses, vocabulary, stride, target_stride, scale_stride, ignore_index, z_loss,
    GRADS: tl.constexpr, SCALED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row * target_stride)
    line = logits + row * stride
    column = tl.arange(0, WIDTH).to(tl.int64)
    # Every lane keeps a maximum and a sum of its own, so that a row is read once before its lanes meet.
    # The lowest number, not -inf, whose difference from itself would be NaN.
    largest = tl.full((WIDTH,), -3.4028234663852886e38, dtype=tl.float32)
    total = tl.zeros((WIDTH,), dtype=tl.float32)
    chosen = tl.zeros((WIDTH,), dtype=tl.float32)
    for start in range(0, vocabulary, WIDTH):
        inside = start + column < vocabulary
        values = tl.load(line + start + column, mask=inside, other=float("-inf"))
        higher = tl.maximum(largest, values)
        total = total * tl.exp(largest - higher) + tl.exp(values - higher)
        largest = higher
        chosen += tl.where(start + column == target, values, 0.0)
    top = tl.max(largest, axis=0)
    lse = top + tl.log(tl.sum(total * tl.exp(largest - top), axis=0))
    valid = target != ignore_index
    tl.store(losses + row, tl.where(valid, lse - tl.sum(chosen, axis=0) + z_loss * lse * lse, 0.0))
    if GRADS:
        factor = tl.where(valid, 1.0, 0.0)
        if SCALED:
            factor = tl.where(valid, tl.load(scale + row * scale_stride).to(tl.float32), 0.0)
        share = factor * (1.0 + 2.0 * z_loss * lse)
        for start in range(0, vocabulary, WIDTH):
            inside = start + column < vocabulary
            values = tl.load(line + start + column, mask=inside, other=float("-inf"))
            gradient = share * tl.exp(values - lse) - tl.where(start + column == target, factor, 0.0)
            # An ignored row is 0 even where its logits are not finite.
            tl.store(line + start + column, tl.where(valid, gradient, 0.0), mask=inside)


def row_loss_(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int, z_loss: float, scale: torch.Tensor | None, grads: bool
) -> torch.Tensor:
    """See ``train.kernels.row_loss.row_loss_``; logits FP32 with rows of stride-1 elements.

    Bytes moved per logit: 12 (read for the sum; read again, from L2 while a row fits there, and written); the floor is 8.
    """
    losses = logits.new_empty(logits.shape[0])
    width = min(_WIDTH, triton.next_power_of_2(logits.shape[1]))
    factors = losses if scale is None else scale
    with torch.cuda.device_of(logits):
        if logits.numel():
            _row_loss_kernel[(logits.shape[0],)](
                logits, targets, factors, losses, logits.shape[1], logits.stride(0), targets.stride(0), factors.stride(0),
                ignore_index, z_loss, GRADS=grads, SCALED=scale is not None, WIDTH=width, num_warps=warps(width),
            )  # fmt: skip
    return losses
