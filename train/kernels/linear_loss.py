"""Linear + cross-entropy whose logits are never whole: rows pass through in chunks, and their gradients are made in the same pass.

A row's gradient is its upstream gradient times a unit one, so the forward pass can make unit gradients before the upstream is known: that
of ``hidden`` row by row, exact for any upstream, and that of ``weight`` summed in FP32, exact where the upstream is one number for all
valid rows (a sum or a mean over any count). That is three products, as many as without chunks. Where the upstream differs between rows,
the backward pass recomputes the logits by chunks for the weight's gradient: two products more.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from train.kernels.dispatch import Impl, arithmetic, choose
from train.kernels.row_loss import row_loss_

# Elements of a chunk's logits: enough rows for the products to run at full speed (measured on a CPU: 512 rows of 32,000 beat 256).
_CHUNK_ELEMENTS = {"cpu": 1 << 24}
_CHUNK_ELEMENTS_ACCELERATOR = 1 << 27
# Elements of FP32 that stay in a CPU core's cache between the passes of the loss.
_CACHED_ELEMENTS = 1 << 19

Reduction = Literal["none", "sum", "mean"]


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    ignore_index: int = -100,
    z_loss: float = 0.0,
    chunk: int | None = None,
    reduction: Reduction = "none",
    impl: Impl = "auto",
) -> torch.Tensor:
    """Return cross-entropy of ``hidden @ weight.T`` against targets, plus z_loss * lse^2, without ever holding the logits.

    The products run in the dtype of ``hidden`` (under autocast in autocast's); losses and the weight's gradient are summed in FP32 (FP64
    for FP64), and the weight's gradient is rounded to the weight's dtype once. Each row's upstream gradient is honoured. A second
    derivative holds the logits whole.

    Memory beside the inputs: one chunk of logits in FP32 (and in the dtype of ``hidden``), and the two gradients. Bytes moved are those of
    three products; per chunk of C rows the weight is read twice and its FP32 gradient read and written once, and the C x V logits are
    written, read and written by the loss, and read twice: floor 4 + 8 + 2 * 2 bytes per logit for BF16.

    Args:
        hidden: (N, d).
        weight: (V, d).
        targets: (N,) of int64 in [0, V) or ``ignore_index``.
        ignore_index: target of rows without loss or gradient.
        z_loss: weight of the squared log-partition (Chowdhery et al. 2022, section 5).
        chunk: rows at a time; by default as many as keep a chunk of logits at 16 M elements on a CPU and 128 M elsewhere.
        reduction: ``"none"``, ``"sum"``, or ``"mean"`` over the rows that are not ignored (0 where all are).
        impl: see ``train.kernels.dispatch``; ``"compile"`` is ``"eager"``, whose products and in-place passes leave nothing to fuse.

    Returns:
        (N,) losses of FP32 (FP64 for FP64), 0 in ignored rows; or their sum or mean.

    Raises:
        ValueError: for shapes that do not fit, or an unknown reduction.
    """
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1] or targets.shape != hidden.shape[:1]:
        raise ValueError(
            "linear_cross_entropy: hidden must be (N, d), weight (V, d), targets (N,); "
            f"got {tuple(hidden.shape)}, {tuple(weight.shape)}, {tuple(targets.shape)}"
        )
    if reduction not in ("none", "sum", "mean") or (chunk is not None and chunk < 1):
        raise ValueError(f"linear_cross_entropy: reduction is none, sum or mean and chunk at least 1; got {reduction!r}, {chunk}")
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        hidden = hidden.to(torch.get_autocast_dtype(device))
    grads = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    fused = choose(impl, hidden) == "triton"
    rows = chunk or default_chunk(device, weight.shape[0])
    losses: torch.Tensor = _op(hidden, weight, targets, ignore_index, z_loss, rows, grads, fused)[0]
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / (targets != ignore_index).sum().clamp(min=1)


def default_chunk(device: str, vocabulary: int) -> int:
    """Return how many rows at a time keep a chunk of logits within the device's bound."""
    return max(1, _CHUNK_ELEMENTS.get(device, _CHUNK_ELEMENTS_ACCELERATOR) // vocabulary)


def product(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``left @ right`` in ``dtype``: straight from the accumulators where the device can, else rounded to the operands' first."""
    if left.dtype == dtype:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)


def accumulate_(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add ``left @ right`` to a total of the arithmetic's dtype."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total.add_(product(left, right, total.dtype))


@torch.library.custom_op("gristmill::linear_cross_entropy", mutates_args=())
def _op(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    ignore_index: int,
    z_loss: float,
    chunk: int,
    grads: bool,
    fused: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return losses (N,), and unit gradients of hidden and weight (empty without ``grads``)."""
    losses, (hidden_grad, weight_grad) = _pass(hidden, weight, targets, None, ignore_index, z_loss, chunk, (grads, grads), fused)
    return losses, hidden_grad, weight_grad


@_op.register_fake
def _(hidden, weight, targets, ignore_index, z_loss, chunk, grads, fused):  # type: ignore[no-untyped-def]
    dtype = arithmetic(hidden)
    hidden_grad = hidden.new_empty(hidden.shape if grads else (0,))
    return hidden.new_empty(hidden.shape[:1], dtype=dtype), hidden_grad, weight.new_empty(weight.shape if grads else (0,), dtype=dtype)


@torch.library.custom_op("gristmill::linear_cross_entropy_backward", mutates_args=())
def _backward_op(
    upstream: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    hidden_grad: torch.Tensor,
    weight_grad: torch.Tensor,
    ignore_index: int,
    z_loss: float,
    chunk: int,
    fused: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of hidden and weight for one upstream gradient per row, from the unit ones."""
    valid = targets != ignore_index
    common = common_factor(upstream, valid)
    upstream = torch.where(valid, upstream, 0)
    scaled = (hidden_grad * upstream.unsqueeze(-1)).to(hidden.dtype)
    if common is not None:
        return scaled, (weight_grad * common).to(weight.dtype)
    _, (_, exact) = _pass(hidden, weight, targets, upstream, ignore_index, z_loss, chunk, (False, True), fused)
    return scaled, exact.to(weight.dtype)


@_backward_op.register_fake
def _(upstream, hidden, weight, targets, hidden_grad, weight_grad, ignore_index, z_loss, chunk, fused):  # type: ignore[no-untyped-def]
    return hidden.new_empty(hidden.shape), weight.new_empty(weight.shape)


def common_factor(upstream: torch.Tensor, valid: torch.Tensor) -> torch.Tensor | None:
    """Return the upstream gradient that all valid rows share (of an ignored one where none is valid), or None where they differ.

    That of a sum is one number expanded, which is seen without waiting for the device.
    """
    if upstream.numel() and not any(upstream.stride()):
        return upstream[0]
    chosen = upstream[valid]
    if not chosen.numel():
        return upstream.new_zeros(())
    return chosen[0] if bool((chosen == chosen[0]).all()) else None


def _pass(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    scale: torch.Tensor | None,
    ignore_index: int,
    z_loss: float,
    chunk: int,
    wanted: tuple[bool, bool],
    fused: bool,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Go through all rows once: losses, and the gradients that are wanted (of hidden, of weight) of sum(scale * loss)."""
    dtype = arithmetic(hidden)
    if fused:
        from train.kernels.fused.row_loss import row_loss_ as loss_of
    else:
        loss_of = row_loss_
    losses = hidden.new_empty(hidden.shape[:1], dtype=dtype)
    hidden_grad = torch.empty_like(hidden, memory_format=torch.contiguous_format) if wanted[0] else hidden.new_empty(0)
    weight_grad = weight.new_zeros(weight.shape if wanted[1] else (0,), dtype=dtype)
    matrix = weight.to(hidden.dtype)
    room = None if hidden.is_cuda else hidden.new_empty(min(chunk, hidden.shape[0]), weight.shape[0])
    for start in range(0, hidden.shape[0], chunk):
        rows = slice(start, start + chunk)
        given, settings = hidden[rows], (ignore_index, z_loss, None if scale is None else scale[rows], any(wanted))
        if room is None or fused:
            logits = product(given, matrix.t(), dtype)
            losses[rows] = loss_of(logits, targets[rows], *settings)
            gradient = logits.to(hidden.dtype)
            del logits
        else:
            gradient = torch.mm(given, matrix.t(), out=room[: len(given)])
            losses[rows] = _in_cache_(gradient, targets[rows], *settings)
        if wanted[0]:
            torch.mm(gradient, matrix, out=hidden_grad[rows])
        if wanted[1]:
            accumulate_(weight_grad, gradient.t(), given)
    return losses, (hidden_grad, weight_grad)


def _in_cache_(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int, z_loss: float, scale: torch.Tensor | None, grads: bool
) -> torch.Tensor:
    """``row_loss_`` on a CPU, so few rows at a time that its passes in the arithmetic's dtype stay in cache; logits keep their dtype."""
    losses, few = [], max(1, _CACHED_ELEMENTS // logits.shape[1])
    for start in range(0, len(logits), few):
        rows = slice(start, start + few)
        wide = logits[rows].to(arithmetic(logits))
        losses.append(row_loss_(wide, targets[rows], ignore_index, z_loss, None if scale is None else scale[rows], grads))
        if grads and wide.dtype != logits.dtype:
            logits[rows] = wide
    return torch.cat(losses)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    hidden, weight, targets, *ctx.settings, _, ctx.fused = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(hidden, weight, targets, *output[1:])


def _backward(ctx: Any, upstream: torch.Tensor | None, *_: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    hidden, weight, targets, *unit = ctx.saved_tensors
    if upstream is None:
        return (None,) * 8
    if torch.is_grad_enabled():
        return (*_differentiable(upstream, hidden, weight, targets, *ctx.settings[:2]), *(None,) * 6)
    return (*_backward_op(upstream, hidden, weight, targets, *unit, *ctx.settings, ctx.fused), *(None,) * 6)


_op.register_autograd(_backward, setup_context=_setup)


def _differentiable(
    upstream: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, ignore_index: int, z_loss: float
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients as a graph of their own, for a second derivative; the logits are whole here."""
    logits = (hidden @ weight.to(hidden.dtype).t()).to(arithmetic(hidden))
    losses = torch.nn.functional.cross_entropy(logits, targets, ignore_index=ignore_index, reduction="none")
    if z_loss:
        losses = losses + z_loss * torch.where(targets != ignore_index, logits.logsumexp(-1).square(), 0)
    wanted = [tensor for tensor in (hidden, weight) if tensor.requires_grad]
    found = iter(torch.autograd.grad(losses, wanted, upstream, create_graph=True))
    return tuple(next(found) if tensor.requires_grad else None for tensor in (hidden, weight))
