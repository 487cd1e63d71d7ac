"""Triton: AdamW and Sophia steps and the gradients' norm, each over all tensors in one launch (see ``train.kernels.steps``).

Weights, gradients and states are contiguous; the states are FP32. A gradient scale (of clipping, or of a loss scaler) is read on the
device, so that nothing waits for the host.
"""

# Triton's decorator hides types, and a kernel's arguments are pointers and scalars of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from train.kernels.fused.rounding import store_weights
from train.kernels.fused.tables import Table, dtype_of, field, table

_BLOCK = 4096
_WARPS = 8


@triton.jit
def _adamw_kernel(
    entries, work, grad_scale, lr, decay, beta1, beta2, eps, root2, correction1, step,
    SCALED: tl.constexpr, STOCHASTIC: tl.constexpr, ALIGNED: tl.constexpr, WEIGHT: tl.constexpr, GRAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    element = tl.load(work + 2 * tl.program_id(0) + 1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < tl.load(entries + tensor * 6 + 5)
    weights = field(entries, tensor, 6, 0, WEIGHT, ALIGNED) + element
    first = field(entries, tensor, 6, 2, tl.float32, ALIGNED) + element
    second = field(entries, tensor, 6, 3, tl.float32, ALIGNED) + element
    gradient = tl.load(field(entries, tensor, 6, 1, GRAD, ALIGNED) + element, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        gradient *= tl.load(grad_scale)
    moment = tl.load(first, mask=inside, other=0.0)
    moment += (1.0 - beta1) * (gradient - moment)
    square = tl.load(second, mask=inside, other=0.0) * beta2 + (1.0 - beta2) * gradient * gradient
    update = moment / (tl.sqrt(square) / root2 + eps)
    values = tl.load(weights, mask=inside, other=0.0).to(tl.float32) * decay - lr / correction1 * update
    tl.store(first, moment, mask=inside)
    tl.store(second, square, mask=inside)
    store_weights(weights, values, element, inside, tl.load(entries + tensor * 6 + 4), step, STOCHASTIC, WEIGHT)


@torch.library.custom_op("gristmill::adamw_step", mutates_args=("weights", "exp_avgs", "exp_avg_sqs"))
def adamw_step(
    weights: list[torch.Tensor],
    grads: list[torch.Tensor],
    exp_avgs: list[torch.Tensor],
    exp_avg_sqs: list[torch.Tensor],
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    grad_scale: torch.Tensor | None,
    seeds: list[int] | None,
) -> None:
    """Take one AdamW step in place."""
    launch = _launch(weights, grads, (exp_avgs, exp_avg_sqs), grad_scale, seeds)
    if launch is None:
        return
    made, options = launch
    with torch.cuda.device_of(weights[0]):
        _adamw_kernel[(len(made.work),)](
            made.entries, made.work, made.entries if grad_scale is None else grad_scale, lr, 1 - lr * weight_decay, beta1, beta2, eps,
            (1 - beta2**step) ** 0.5, 1 - beta1**step, step, **options,
        )  # fmt: skip


@adamw_step.register_fake
def _(weights, grads, exp_avgs, exp_avg_sqs, step, lr, beta1, beta2, eps, weight_decay, grad_scale, seeds):
    return None


@triton.jit
def _sophia_kernel(
    entries, work, grad_scale, lr, decay, beta1, rho, eps, step,
    SCALED: tl.constexpr, STOCHASTIC: tl.constexpr, ALIGNED: tl.constexpr, WEIGHT: tl.constexpr, GRAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    element = tl.load(work + 2 * tl.program_id(0) + 1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < tl.load(entries + tensor * 6 + 5)
    weights = field(entries, tensor, 6, 0, WEIGHT, ALIGNED) + element
    first = field(entries, tensor, 6, 2, tl.float32, ALIGNED) + element
    gradient = tl.load(field(entries, tensor, 6, 1, GRAD, ALIGNED) + element, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        gradient *= tl.load(grad_scale)
    moment = tl.load(first, mask=inside, other=0.0)
    moment += (1.0 - beta1) * (gradient - moment)
    curvature = tl.load(field(entries, tensor, 6, 3, tl.float32, ALIGNED) + element, mask=inside, other=0.0)
    update = moment / (rho * tl.maximum(curvature, 0.0) + eps)
    update = tl.minimum(tl.maximum(update, -1.0), 1.0)
    values = tl.load(weights, mask=inside, other=0.0).to(tl.float32) * decay - lr * update
    tl.store(first, moment, mask=inside)
    store_weights(weights, values, element, inside, tl.load(entries + tensor * 6 + 4), step, STOCHASTIC, WEIGHT)


@torch.library.custom_op("gristmill::sophia_step", mutates_args=("weights", "exp_avgs"))
def sophia_step(
    weights: list[torch.Tensor],
    grads: list[torch.Tensor],
    exp_avgs: list[torch.Tensor],
    curvatures: list[torch.Tensor],
    step: int,
    lr: float,
    beta1: float,
    rho: float,
    eps: float,
    weight_decay: float,
    grad_scale: torch.Tensor | None,
    seeds: list[int] | None,
) -> None:
    """Take one Sophia step in place."""
    launch = _launch(weights, grads, (exp_avgs, curvatures), grad_scale, seeds)
    if launch is None:
        return
    made, options = launch
    with torch.cuda.device_of(weights[0]):
        _sophia_kernel[(len(made.work),)](
            made.entries, made.work, made.entries if grad_scale is None else grad_scale, lr, 1 - lr * weight_decay, beta1, rho, eps,
            step, **options,
        )  # fmt: skip


@sophia_step.register_fake
def _(weights, grads, exp_avgs, curvatures, step, lr, beta1, rho, eps, weight_decay, grad_scale, seeds):
    return None


@triton.jit
def _square_sum_kernel(entries, work, parts, ALIGNED: tl.constexpr, GRAD: tl.constexpr, BLOCK: tl.constexpr):
    tensor = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    element = tl.load(work + 2 * tl.program_id(0) + 1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < tl.load(entries + tensor * 2 + 1)
    values = tl.load(field(entries, tensor, 2, 0, GRAD, ALIGNED) + element, mask=inside, other=0.0).to(tl.float32)
    tl.store(parts + tl.program_id(0), tl.sum(values * values, axis=0))


@torch.library.custom_op("gristmill::grad_norm", mutates_args=())
def grad_norm(grads: list[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norm of all gradients together."""
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


@grad_norm.register_fake
def _(grads):
    return grads[0].new_empty((), dtype=torch.float32)


def _launch(
    weights: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    states: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
    grad_scale: torch.Tensor | None,
    seeds: Sequence[int] | None,
) -> tuple[Table, dict[str, Any]] | None:
    """Return an elementwise step's table and its kernel's compile-time arguments; None where there is nothing to do."""
    if not sum(weight.numel() for weight in weights):
        return None
    if any(dtype_of(state) != tl.float32 for state in states):
        raise ValueError("a multi-tensor step keeps its states in float32")
    sizes = [weight.numel() for weight in weights]
    numbers = [[seed, size] for seed, size in zip(seeds or [0] * len(sizes), sizes, strict=True)]
    made = table((weights, grads, *states), numbers, [triton.cdiv(size, _BLOCK) for size in sizes])
    weight = dtype_of(weights)
    options = {"SCALED": grad_scale is not None, "STOCHASTIC": weight == tl.bfloat16 and seeds is not None, "ALIGNED": made.aligned}
    return made, options | {"WEIGHT": weight, "GRAD": dtype_of(grads), "BLOCK": _BLOCK, "num_warps": _WARPS}
