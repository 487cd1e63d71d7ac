"""Linear + cross-entropy over a vocabulary that is split between ranks: no rank holds logits of another's part, nor its own part whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from train.kernels.dispatch import arithmetic
from train.kernels.linear_loss import Reduction, accumulate_, common_factor, default_chunk, product


def vocabulary_parallel_linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    vocabulary: int,
    group: dist.ProcessGroup | None = None,
    ignore_index: int = -100,
    z_loss: float = 0.0,
    chunk: int | None = None,
    reduction: Reduction = "none",
) -> torch.Tensor:
    """Return ``linear_cross_entropy`` of the whole vocabulary, each rank of ``group`` holding its rows of the weight.

    It is for a model whose output matrix is split by rows under tensor parallel (``ColwiseParallel`` of the last Linear), called from the
    model's own loss with the local parts of its DTensors. The trainer's FSDP gathers that matrix whole, and has no use for it.

    Rank r holds rows [r s, min(V, (r + 1) s)) with s = ceil(V / ranks), as DTensor's ``Shard(0)`` does. Every rank passes the same hidden
    and targets and gets the same losses and the whole gradient of hidden; the weight's gradient is that of its own rows.

    Sent per chunk of C rows: C maxima, 2 C sums, and C x d for the gradient of hidden (FP32); in the backward pass nothing.

    Args:
        hidden: (N, d), the same on every rank.
        weight: this rank's rows of (V, d).
        targets: (N,) of int64 in [0, V) or ``ignore_index``, the same on every rank.
        vocabulary: V.
        group: the ranks that share the vocabulary; by default all.
        ignore_index: target of rows without loss or gradient.
        z_loss: weight of the squared log-partition.
        chunk: rows at a time, the same on every rank.
        reduction: ``"none"``, ``"sum"``, or ``"mean"`` over the rows that are not ignored.

    Raises:
        ValueError: if the weight is not this rank's part of the vocabulary.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    share = -(-vocabulary // ranks)
    first = min(vocabulary, rank * share)
    if weight.shape[0] != min(vocabulary, first + share) - first:
        raise ValueError(
            f"rank {rank} of {ranks} must hold rows {first} to {min(vocabulary, first + share)} of a vocabulary of {vocabulary}; "
            f"its weight is {tuple(weight.shape)}"
        )
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        hidden = hidden.to(torch.get_autocast_dtype(device))
    rows = chunk or default_chunk(device, share)
    grads = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    losses: torch.Tensor = _Loss.apply(hidden, weight, targets, first, group, ignore_index, z_loss, rows, grads)  # type: ignore[no-untyped-call]
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / (targets != ignore_index).sum().clamp(min=1)


class _Loss(torch.autograd.Function):
    """Unit gradients in the forward pass, as in ``train.kernels.linear_loss``; the saved lse spares the backward pass any collective."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        first: int,
        group: dist.ProcessGroup | None,
        ignore_index: int,
        z_loss: float,
        chunk: int,
        grads: bool,
    ) -> torch.Tensor:
        dtype, matrix = arithmetic(hidden), weight.to(hidden.dtype)
        lse, losses = (hidden.new_empty(hidden.shape[:1], dtype=dtype) for _ in range(2))
        hidden_grad = torch.empty_like(hidden) if grads else hidden.new_empty(0)
        weight_grad = weight.new_zeros(weight.shape if grads else (0,), dtype=dtype)
        valid = targets != ignore_index
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            logits = product(hidden[rows], matrix.t(), dtype)
            lse[rows], chosen = _partition(logits, targets[rows] - first, group)
            losses[rows] = torch.where(valid[rows], lse[rows] - chosen + z_loss * lse[rows].square(), 0)
            if grads:
                _gradient_(logits, lse[rows], targets[rows] - first, valid[rows].to(dtype), z_loss)
                gradient = logits.to(hidden.dtype)
                part = product(gradient, matrix, dtype)
                dist.all_reduce(part, group=group)
                hidden_grad[rows] = part.to(hidden.dtype)
                accumulate_(weight_grad, gradient.t(), hidden[rows])
        ctx.save_for_backward(hidden, weight, targets, lse, hidden_grad, weight_grad)
        ctx.settings = first, ignore_index, z_loss, chunk
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, lse, hidden_grad, weight_grad = ctx.saved_tensors
        first, ignore_index, z_loss, chunk = ctx.settings
        valid = targets != ignore_index
        common = common_factor(upstream, valid)
        upstream = torch.where(valid, upstream, 0)
        if common is None:
            matrix, weight_grad = weight.to(hidden.dtype), torch.zeros_like(weight_grad)
            for start in range(0, hidden.shape[0], chunk):
                rows = slice(start, start + chunk)
                logits = product(hidden[rows], matrix.t(), lse.dtype)
                _gradient_(logits, lse[rows], targets[rows] - first, upstream[rows], z_loss)
                accumulate_(weight_grad, logits.to(hidden.dtype).t(), hidden[rows])
        else:
            weight_grad = weight_grad * common
        return (hidden_grad * upstream.unsqueeze(-1)).to(hidden.dtype), weight_grad.to(weight.dtype), *(None,) * 7


def _partition(logits: torch.Tensor, index: torch.Tensor, group: dist.ProcessGroup | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return lse over all ranks' logits and the target's logit, wherever it is held; ``index`` counts from this rank's first row."""
    rows, columns = logits.shape
    largest = logits.amax(-1) if columns else logits.new_full((rows,), float("-inf"))
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    own = (index >= 0) & (index < columns)
    sums = logits.new_zeros((2, rows))
    if columns:
        sums[0] = (logits - largest.unsqueeze(-1)).exp_().sum(-1)
        sums[1] = torch.where(own, logits.gather(-1, torch.where(own, index, 0).unsqueeze(-1)).squeeze(-1), 0)
    dist.all_reduce(sums, group=group)
    return largest + sums[0].log(), sums[1]


def _gradient_(logits: torch.Tensor, lse: torch.Tensor, index: torch.Tensor, factor: torch.Tensor, z_loss: float) -> None:
    """Put the gradient of sum(factor * loss) over this rank's logits."""
    if not logits.shape[1]:
        return
    own = (index >= 0) & (index < logits.shape[1])
    logits.sub_(lse.unsqueeze(-1)).exp_().mul_((factor * (1 + 2 * z_loss * lse)).unsqueeze(-1))
    logits.scatter_add_(-1, torch.where(own, index, 0).unsqueeze(-1), torch.where(own, -factor, 0).unsqueeze(-1))
