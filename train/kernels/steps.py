"""Optimizer steps over many tensors, and the norm of many gradients: each one function, its implementation chosen by device.

The rules are those of ``train.optim`` for parameters that are whole on their device, written plainly: the lines below are the reference,
``torch.compile`` of them per matrix is the compiled path, and ``train.kernels.fused`` has them as Triton kernels of a few launches for all
tensors. Adafactor and CAME are also in C++ (``train.kernels.native``), one call for all matrices. They take matrices (or, eager and
compiled, stacks of matrices that are clipped as one); weights, gradients and states come as lists of equal length, FP32 states, and
change in place. ``seeds``, one per tensor, asks for BF16 weights to be rounded
stochastically, which only Triton does here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from train.kernels.dispatch import Impl, arithmetic, choose, compiled_by_shape

Tensors = Sequence[torch.Tensor]
Sums = tuple[Tensors, Tensors]
Kept = tuple[torch.Tensor, ...]


def adamw_step(
    weights: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    grad_scale: torch.Tensor | None = None,
    seeds: Sequence[int] | None = None,
    impl: Impl = "auto",
) -> None:
    """Take one AdamW step in place (Loshchilov & Hutter 2019, algorithm 2; torch's convention for eps).

    Bytes moved per FP32 parameter: 28 (read weight, gradient and two moments, write all but the gradient), which is the floor.

    Args:
        weights: of one dtype.
        grads: of one dtype.
        exp_avgs: first moments.
        exp_avg_sqs: second moments.
        step: this step's number, from 1.
        lr: learning rate.
        betas: of the moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled.
        grad_scale: FP32 tensor of one element that multiplies the gradients, or None.
        seeds: see above.
        impl: see ``train.kernels.dispatch``.
    """
    if not weights:
        return
    if (chosen := _choose(impl, weights, seeds)) == "triton":
        from train.kernels.fused import steps

        steps.adamw_step(
            list(weights), list(grads), list(exp_avgs), list(exp_avg_sqs), step, lr, *betas, eps, weight_decay, grad_scale, _listed(seeds)
        )
        return
    corrections = (1 - betas[1] ** step) ** 0.5, 1 - betas[0] ** step
    numbers = (1 - lr * weight_decay, lr / corrections[1], 1 - betas[0], betas[1], 1 - betas[1], corrections[0], eps)
    _each(chosen, _adamw, numbers, weights, grads, exp_avgs, exp_avg_sqs, grad_scale=grad_scale)


def sophia_step(
    weights: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    curvatures: Tensors,
    *,
    step: int,
    lr: float,
    beta1: float = 0.965,
    rho: float = 0.04,
    eps: float = 1e-15,
    weight_decay: float = 0.1,
    grad_scale: torch.Tensor | None = None,
    seeds: Sequence[int] | None = None,
    impl: Impl = "auto",
) -> None:
    """Take one Sophia step in place (Liu et al. 2023, algorithm 3); the curvature's own moving average is made elsewhere.

    Bytes moved per FP32 parameter: 24 (read weight, gradient, moment and curvature, write weight and moment), which is the floor.

    Args:
        weights: of one dtype.
        grads: of one dtype.
        exp_avgs: moments.
        curvatures: h, in units of the loss over a batch's tokens.
        step: this step's number; it only seeds rounding.
        lr: learning rate.
        beta1: of the moment.
        rho: scale of the curvature.
        eps: least denominator.
        weight_decay: decoupled.
        grad_scale: FP32 tensor of one element that multiplies the gradients, or None.
        seeds: see above.
        impl: see ``train.kernels.dispatch``.
    """
    if not weights:
        return
    if (chosen := _choose(impl, weights, seeds)) == "triton":
        from train.kernels.fused import steps

        states = list(exp_avgs), list(curvatures)
        steps.sophia_step(list(weights), list(grads), *states, step, lr, beta1, rho, eps, weight_decay, grad_scale, _listed(seeds))
        return
    _each(chosen, _sophia, (1 - lr * weight_decay, lr, 1 - beta1, rho, eps), weights, grads, exp_avgs, curvatures, grad_scale=grad_scale)


def adafactor_step(
    weights: Tensors,
    grads: Tensors,
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
    exp_avgs: Tensors | None = None,
    beta1: float = 0.0,
    seeds: Sequence[int] | None = None,
    impl: Impl = "auto",
) -> torch.Tensor:
    """Take one Adafactor step in place (Shazeer & Stern 2018, algorithms 4 to 6); settings as in ``train.optim.adafactor``.

    Bytes moved per FP32 element: 24 (the gradient three times, the weight twice, one write), with a first moment 36; the sums and the
    clipping must each end before the next pass, so the floor is that, or 12 where a matrix stays in cache.

    Args:
        weights: matrices of one dtype.
        grads: matrices of one dtype.
        means: row means (R,) and column means (C,) of every matrix.
        step: this step's number, from 1.
        lr: upper bound of the relative step, or the step where ``relative_step`` is False.
        relative_step: bound the step by 1/sqrt(step).
        scale_parameter: multiply the step by max(eps[1], RMS(weight)).
        eps: added to squared gradients; least scale of a parameter.
        clip: RMS above which an update is scaled down.
        decay_rate: exponent of beta2.
        weight_decay: decoupled.
        exp_avgs: first moments, or None.
        beta1: of the first moment.
        seeds: see above.
        impl: see ``train.kernels.dispatch``.

    Returns:
        (n,) mean square of each matrix's update before clipping.
    """
    if not weights:
        return torch.zeros(0)
    rate, keep, beta2 = min(lr, step**-0.5) if relative_step else lr, 1 - lr * weight_decay, 1 - step**decay_rate
    least = eps[1] if scale_parameter else 0.0
    if (chosen := _choose(impl, weights, seeds, native=True)) == "triton":
        from train.kernels.fused import factored_steps

        states = list(means[0]), list(means[1]), list(exp_avgs or ())
        numbers = (rate, least, keep, eps[0], clip, beta1, beta2)
        found: torch.Tensor = factored_steps.adafactor_step(list(weights), list(grads), *states, step, *numbers, _listed(seeds))
        return found
    moving = (beta2, 1 - beta2, (1 - beta2) * eps[0])
    if chosen == "native":
        from train.kernels.native import factored_steps as native

        return native.adafactor_step(weights, grads, exp_avgs, *means, (rate, least, keep, clip, 1 - beta1, *moving))
    moments: Sequence[torch.Tensor | None] = exp_avgs or [None] * len(weights)
    tensors = weights, grads, *means, moments
    kept = _each(chosen, _adafactor, (rate, least, keep, clip, 1 - beta1, *moving), *tensors, scaled=scale_parameter)
    return torch.stack([mean_square for mean_square, *_ in kept])


def came_step(
    weights: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    means: Sums,
    residuals: Sums,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
    eps: tuple[float, float] = (1e-30, 1e-16),
    clip: float = 1.0,
    weight_decay: float = 0.0,
    seeds: Sequence[int] | None = None,
    impl: Impl = "auto",
) -> torch.Tensor:
    """Take one CAME step in place (Luo et al. 2023, algorithm 2); settings as in ``train.optim.came``.

    Bytes moved per FP32 element: 32 (gradient; gradient; gradient and moment in, moment out; moment and weight in, weight out). Three sums
    stand between the passes, so that is the floor, or 20 where a matrix stays in cache.

    Args:
        weights: matrices of one dtype.
        grads: matrices of one dtype.
        exp_avgs: first moments.
        means: row and column means of squared gradients.
        residuals: row and column means of the instability.
        step: this step's number; it only seeds rounding.
        lr: learning rate.
        betas: of the moment, the means and the residuals.
        eps: added to squared gradients and to the instability.
        clip: RMS above which an update is scaled down.
        weight_decay: decoupled.
        seeds: see above.
        impl: see ``train.kernels.dispatch``.

    Returns:
        (n,) mean square of each matrix's update before clipping.
    """
    if not weights:
        return torch.zeros(0)
    keep = 1 - lr * weight_decay
    if (chosen := _choose(impl, weights, seeds, native=True)) == "triton":
        from train.kernels.fused import factored_steps

        states = [list(side) for side in (exp_avgs, *means, *residuals)]
        numbers = (lr, keep, list(betas), list(eps), clip)
        found: torch.Tensor = factored_steps.came_step(list(weights), list(grads), *states, step, *numbers, _listed(seeds))
        return found
    beta1, beta2, beta3 = betas
    moving = (beta2, 1 - beta2, (1 - beta2) * eps[0], beta3, (1 - beta3) * beta1**2, (1 - beta3) * eps[1])
    if chosen == "native":
        from train.kernels.native import factored_steps as native

        return native.came_step(weights, grads, exp_avgs, means, residuals, (-lr, keep, clip, 1 - beta1, *moving))
    tensors = weights, grads, exp_avgs, *means, *residuals
    kept = _each(chosen, _came, (-lr, keep, clip, 1 - beta1, *moving), *tensors)
    return torch.stack([mean_square for mean_square, *_ in kept])


def grad_norm(grads: Tensors, *, impl: Impl = "auto") -> torch.Tensor:
    """Return the L2 norm of all gradients together, 0-D, on their device, summed in an order that is always the same.

    Bytes moved per element: those of one read, which is the floor. ``"compile"`` is ``"eager"``.

    Args:
        grads: on one device; of one dtype but for Triton, which takes one launch for each.
        impl: see ``train.kernels.dispatch``.

    Raises:
        ValueError: no gradient at all.
    """
    if not grads:
        raise ValueError("grad_norm needs at least one gradient")
    if choose(impl, grads[0]) == "triton":
        from train.kernels.fused import steps

        found: torch.Tensor = steps.grad_norm(list(grads))
        return found
    return torch.nn.utils.get_total_norm(grads, foreach=True)


def _choose(impl: Impl, weights: Tensors, seeds: Sequence[int] | None, *, native: bool = False) -> str:
    chosen = choose(impl, weights[0], native=native)
    if seeds is not None and chosen != "triton":
        raise ValueError(f"stochastic rounding is done by impl='triton' alone, this is {chosen!r}")
    return chosen


def _listed(seeds: Sequence[int] | None) -> list[int] | None:
    return None if seeds is None else list(seeds)


def _each(chosen: str, lines: Callable[..., Any], numbers: Sequence[float], *tensors: Sequence[Any], **options: Any) -> list[Any]:
    """Run a rule's lines on one tensor after another; the numbers come as one tensor, so that a new value compiles nothing anew."""
    run = compiled_by_shape(lines) if chosen == "compile" else lines
    given = torch.tensor(numbers, dtype=arithmetic(tensors[0][0]), device=tensors[0][0].device)
    with torch.no_grad():
        return [run(*(None if t is None else t.detach() for t in one), given, **options) for one in zip(*tensors, strict=True)]


def _adamw(
    weight: torch.Tensor,
    grad: torch.Tensor,
    moment: torch.Tensor,
    square: torch.Tensor,
    numbers: torch.Tensor,
    *,
    grad_scale: torch.Tensor | None,
) -> None:
    keep, rate, toward, beta2, rest2, root, eps = numbers.unbind()
    grad = grad.to(numbers.dtype) if grad_scale is None else grad.to(numbers.dtype) * grad_scale
    moment.add_((grad - moment) * toward)
    square.copy_(square * beta2 + grad.square() * rest2)
    weight.copy_(weight.to(numbers.dtype) * keep - moment / (square.sqrt() / root + eps) * rate)


def _sophia(
    weight: torch.Tensor,
    grad: torch.Tensor,
    moment: torch.Tensor,
    curvature: torch.Tensor,
    numbers: torch.Tensor,
    *,
    grad_scale: torch.Tensor | None,
) -> None:
    keep, rate, toward, rho, eps = numbers.unbind()
    grad = grad.to(numbers.dtype) if grad_scale is None else grad.to(numbers.dtype) * grad_scale
    moment.add_((grad - moment) * toward)
    update = (moment / (curvature.clamp(min=0) * rho + eps)).clamp(-1, 1)
    weight.copy_(weight.to(numbers.dtype) * keep - update * rate)


# Factors are returned besides what is asked for: torch.compile keeps what has two readers, and computes the rest again for every element.


def _adafactor(
    weight: torch.Tensor,
    grad: torch.Tensor,
    rows: torch.Tensor,
    columns: torch.Tensor,
    moment: torch.Tensor | None,
    numbers: torch.Tensor,
    *,
    scaled: bool,
) -> Kept:
    rate, least, keep, clip, toward, beta2, rest2, eps = numbers.unbind()
    grad, wide = grad.to(numbers.dtype), weight.to(numbers.dtype)
    row, column, mean_square = _factors(grad, rows, columns, beta2, rest2, eps)
    scale = row / (mean_square.sqrt() / clip).clamp(min=1)
    if scaled:
        rate = rate * wide.square().mean().sqrt().maximum(least)
    if moment is None:
        scale = scale * rate
        weight.copy_(wide * keep - grad * scale * column)
    else:
        moment.add_((grad * scale * column - moment.to(numbers.dtype)) * toward)
        weight.copy_(wide * keep - moment.to(numbers.dtype) * rate)
    return mean_square, scale, column, rate


def _came(
    weight: torch.Tensor,
    grad: torch.Tensor,
    moment: torch.Tensor,
    rows: torch.Tensor,
    columns: torch.Tensor,
    residual_rows: torch.Tensor,
    residual_columns: torch.Tensor,
    numbers: torch.Tensor,
) -> Kept:
    rate, keep, clip, toward, beta2, rest2, eps2, beta3, rest3, eps3 = numbers.unbind()
    grad = grad.to(numbers.dtype)
    row, column, mean_square = _factors(grad, rows, columns, beta2, rest2, eps2)
    scale = row / (mean_square.sqrt() / clip).clamp(min=1)
    # u - m_new = beta1 (u - m_old): one distance serves the momentum and its instability.
    distance = grad * scale * column - moment.to(numbers.dtype)
    moment.add_(distance * toward)
    _move(residual_rows, residual_columns, distance.square(), beta3, rest3, eps3)
    last_row, last_column = _inverse_roots(residual_rows, residual_columns)
    last_row = last_row * rate
    weight.copy_(weight.to(numbers.dtype) * keep + moment.to(numbers.dtype) * last_row * last_column)
    return mean_square, scale, column, last_row, last_column


def _factors(
    grad: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, beta: torch.Tensor, rest: torch.Tensor, eps: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Move the means, and return the factors of 1/sqrt(V) and the mean square of the gradient times them."""
    squares = grad.square()
    _move(rows, columns, squares, beta, rest, eps)
    row, column = _inverse_roots(rows, columns)
    by_row = (squares * column.square()).sum(-1, keepdim=True)
    return row, column, (by_row * row.square()).sum() / grad.numel()


def _move(
    rows: torch.Tensor, columns: torch.Tensor, squares: torch.Tensor, beta: torch.Tensor, rest: torch.Tensor, eps: torch.Tensor
) -> None:
    rows.copy_(rows * beta + squares.sum(-1) * (rest / squares.shape[-1]) + eps)
    columns.copy_(columns * beta + squares.sum(-2) * (rest / squares.shape[-2]) + eps)


def _inverse_roots(rows: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (rows / rows.mean(-1, keepdim=True)).rsqrt().unsqueeze(-1), columns.rsqrt().unsqueeze(-2)
