"""Triton: AdamW and Sophia steps and the gradients' norm, each over all tensors in one launch.

The rules are those of ``train.optim``; these are their bytes and launches on a GPU. Weights, gradients and states are contiguous; the
states are FP32. A gradient scale (of clipping, or of a loss scaler) is read on the device, so that nothing waits for the host.
"""

# Triton's decorator hides types, and a kernel's arguments are pointers and scalars of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from train.kernels.fused.rounding import store_weights
from train.kernels.fused.tables import dtype_of, table

_BLOCK = 4096
_WARPS = 8


@triton.jit
def _pointer(entries, tensor, FIELDS: tl.constexpr, FIELD: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    address = tl.load(entries + tensor * FIELDS + FIELD)
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address.to(tl.pointer_type(DTYPE))


@triton.jit
def _adamw_kernel(
    entries, work, grad_scale, lr, decay, beta1, beta2, eps, root2, correction1, seed, step,
    SCALED: tl.constexpr, STOCHASTIC: tl.constexpr, ALIGNED: tl.constexpr, WEIGHT: tl.constexpr, GRAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    element = tl.load(work + 2 * tl.program_id(0) + 1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < tl.load(entries + tensor * 5 + 4)
    weights = _pointer(entries, tensor, 5, 0, WEIGHT, ALIGNED) + element
    first = _pointer(entries, tensor, 5, 2, tl.float32, ALIGNED) + element
    second = _pointer(entries, tensor, 5, 3, tl.float32, ALIGNED) + element
    gradient = tl.load(_pointer(entries, tensor, 5, 1, GRAD, ALIGNED) + element, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        gradient *= tl.load(grad_scale)
    moment = tl.load(first, mask=inside, other=0.0)
    moment += (1.0 - beta1) * (gradient - moment)
    square = tl.load(second, mask=inside, other=0.0) * beta2 + (1.0 - beta2) * gradient * gradient
    update = moment / (tl.sqrt(square) / root2 + eps)
    values = tl.load(weights, mask=inside, other=0.0).to(tl.float32) * decay - lr / correction1 * update
    tl.store(first, moment, mask=inside)
    tl.store(second, square, mask=inside)
    store_weights(weights, values, element, inside, seed, tensor, step, STOCHASTIC, WEIGHT)


def adamw_step(
    weights: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    exp_avg_sqs: Sequence[torch.Tensor],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    grad_scale: torch.Tensor | None = None,
    seed: int | None = None,
) -> None:
    """Take one AdamW step in place (Loshchilov & Hutter 2019, algorithm 2; torch's convention for eps).

    Bytes moved per FP32 parameter: 28 (read weight, gradient and two moments, write all but the gradient), which is the floor.

    Args:
        weights: of one dtype.
        grads: of one dtype.
        exp_avgs: FP32.
        exp_avg_sqs: FP32.
        step: this step's number, from 1.
        lr: learning rate.
        betas: of the moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled.
        grad_scale: FP32 tensor of one element that multiplies the gradients, or None.
        seed: where given, BF16 weights are rounded stochastically.
    """
    dtypes = _dtypes(weights, grads, (exp_avgs, exp_avg_sqs))
    if dtypes is None:
        return
    sizes = [weight.numel() for weight in weights]
    made = table((weights, grads, exp_avgs, exp_avg_sqs), [[size] for size in sizes], [triton.cdiv(size, _BLOCK) for size in sizes])
    with torch.cuda.device_of(weights[0]):
        _adamw_kernel[(len(made.work),)](
            made.entries, made.work, made.entries if grad_scale is None else grad_scale, lr, 1 - lr * weight_decay, *betas, eps,
            (1 - betas[1] ** step) ** 0.5, 1 - betas[0] ** step, seed or 0, step, SCALED=grad_scale is not None,
            STOCHASTIC=_stochastic(dtypes[0], seed), ALIGNED=made.aligned, WEIGHT=dtypes[0], GRAD=dtypes[1], BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip


@triton.jit
def _sophia_kernel(
    entries, work, grad_scale, lr, decay, beta1, rho, eps, seed, step,
    SCALED: tl.constexpr, STOCHASTIC: tl.constexpr, ALIGNED: tl.constexpr, WEIGHT: tl.constexpr, GRAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    element = tl.load(work + 2 * tl.program_id(0) + 1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < tl.load(entries + tensor * 5 + 4)
    weights = _pointer(entries, tensor, 5, 0, WEIGHT, ALIGNED) + element
    first = _pointer(entries, tensor, 5, 2, tl.float32, ALIGNED) + element
    gradient = tl.load(_pointer(entries, tensor, 5, 1, GRAD, ALIGNED) + element, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        gradient *= tl.load(grad_scale)
    moment = tl.load(first, mask=inside, other=0.0)
    moment += (1.0 - beta1) * (gradient - moment)
    curvature = tl.load(_pointer(entries, tensor, 5, 3, tl.float32, ALIGNED) + element, mask=inside, other=0.0)
    update = moment / (rho * tl.maximum(curvature, 0.0) + eps)
    update = tl.minimum(tl.maximum(update, -1.0), 1.0)
    values = tl.load(weights, mask=inside, other=0.0).to(tl.float32) * decay - lr * update
    tl.store(first, moment, mask=inside)
    store_weights(weights, values, element, inside, seed, tensor, step, STOCHASTIC, WEIGHT)


def sophia_step(
    weights: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    curvatures: Sequence[torch.Tensor],
    *,
    step: int,
    lr: float,
    beta1: float = 0.965,
    rho: float = 0.04,
    eps: float = 1e-15,
    weight_decay: float = 0.1,
    grad_scale: torch.Tensor | None = None,
    seed: int | None = None,
) -> None:
    """Take one Sophia step in place (Liu et al. 2023, algorithm 3); the curvature's own moving average is made elsewhere.

    Bytes moved per FP32 parameter: 24 (read weight, gradient, moment and curvature, write weight and moment), which is the floor.

    Args:
        weights: of one dtype.
        grads: of one dtype.
        exp_avgs: FP32.
        curvatures: FP32, h; in units of the loss over a batch's tokens.
        step: this step's number; it only seeds rounding.
        lr: learning rate.
        beta1: of the moment.
        rho: scale of the curvature.
        eps: least denominator.
        weight_decay: decoupled.
        grad_scale: FP32 tensor of one element that multiplies the gradients, or None.
        seed: where given, BF16 weights are rounded stochastically.
    """
    dtypes = _dtypes(weights, grads, (exp_avgs, curvatures))
    if dtypes is None:
        return
    sizes = [weight.numel() for weight in weights]
    made = table((weights, grads, exp_avgs, curvatures), [[size] for size in sizes], [triton.cdiv(size, _BLOCK) for size in sizes])
    with torch.cuda.device_of(weights[0]):
        _sophia_kernel[(len(made.work),)](
            made.entries, made.work, made.entries if grad_scale is None else grad_scale, lr, 1 - lr * weight_decay, beta1, rho, eps,
            seed or 0, step, SCALED=grad_scale is not None, STOCHASTIC=_stochastic(dtypes[0], seed), ALIGNED=made.aligned,
            WEIGHT=dtypes[0], GRAD=dtypes[1], BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip


@triton.jit
def _square_sum_kernel(entries, work, parts, ALIGNED: tl.constexpr, GRAD: tl.constexpr, BLOCK: tl.constexpr):
    tensor = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    element = tl.load(work + 2 * tl.program_id(0) + 1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < tl.load(entries + tensor * 2 + 1)
    values = tl.load(_pointer(entries, tensor, 2, 0, GRAD, ALIGNED) + element, mask=inside, other=0.0).to(tl.float32)
    tl.store(parts + tl.program_id(0), tl.sum(values * values, axis=0))


def grad_norm(grads: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norm of all gradients together, FP32, on their device; sums are FP32 in an order that is always the same.

    Bytes moved per element: those of one read, which is the floor. Gradients of several dtypes take one launch for each.

    Raises:
        ValueError: no gradient at all.
    """
    if not grads:
        raise ValueError("grad_norm needs at least one gradient")
    parts = [grads[0].new_zeros(1, dtype=torch.float32)]
    for dtype in sorted({grad.dtype for grad in grads}, key=str):
        same = [grad.contiguous() for grad in grads if grad.dtype == dtype and grad.numel()]
        if same:
            sizes = [grad.numel() for grad in same]
            made = table((same,), [[size] for size in sizes], [triton.cdiv(size, _BLOCK) for size in sizes])
            part = same[0].new_empty(len(made.work), dtype=torch.float32)
            with torch.cuda.device_of(part):
                _square_sum_kernel[(len(made.work),)](
                    made.entries, made.work, part, ALIGNED=made.aligned, GRAD=dtype_of(same), BLOCK=_BLOCK, num_warps=_WARPS
                )
            parts.append(part)
    return torch.cat(parts).sum().sqrt()


def _dtypes(
    weights: Sequence[torch.Tensor], grads: Sequence[torch.Tensor], states: Sequence[Sequence[torch.Tensor]]
) -> tuple[tl.dtype, tl.dtype] | None:
    """Return the dtypes of weights and gradients; None where there is nothing to do."""
    if not sum(weight.numel() for weight in weights):
        return None
    for state in states:
        if dtype_of(state) != tl.float32:
            raise ValueError("a multi-tensor step keeps its states in float32")
    return dtype_of(weights), dtype_of(grads)


def _stochastic(dtype: tl.dtype, seed: int | None) -> bool:
    return dtype == tl.bfloat16 and seed is not None
