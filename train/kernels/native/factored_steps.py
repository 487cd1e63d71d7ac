"""Adafactor's and CAME's steps over many matrices by the C++ library; ``train.kernels.steps`` says what they compute.

All operands are FP32, contiguous and on the CPU. As many threads work as torch has; the bits do not depend on how many.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from train.kernels.native.library import library

Tensors = Sequence[torch.Tensor]


def adafactor_step(
    weights: Tensors, grads: Tensors, exp_avgs: Tensors | None, rows: Tensors, columns: Tensors, numbers: Sequence[float]
) -> torch.Tensor:
    """Take Adafactor's step in place; returns (n,) mean squares of the updates before clipping.

    Bytes moved per element: 16 (weight and gradient in; gradient again from cache; weight out), of a matrix that does not stay in cache 24.

    Args:
        weights: matrices.
        grads: of their shapes.
        exp_avgs: of their shapes, or None.
        rows: (R,) row means.
        columns: (C,) column means.
        numbers: rate, least scale, keep, clip, 1 - beta1; beta2, 1 - beta2, (1 - beta2) eps1.
    """
    return _step("adafactor_step", weights, grads, exp_avgs, [rows, columns], numbers)


def came_step(
    weights: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    means: tuple[Tensors, Tensors],
    residuals: tuple[Tensors, Tensors],
    numbers: Sequence[float],
) -> torch.Tensor:
    """Take CAME's step in place; returns (n,) mean squares of the updates before clipping.

    Bytes moved per element: 20 (gradient, moment and weight in, the last two out), of a matrix that does not stay in cache 32.

    Args:
        weights: matrices.
        grads: of their shapes.
        exp_avgs: of their shapes.
        means: (R,) row means and (C,) column means of squared gradients.
        residuals: the same of the instability.
        numbers: -rate, keep, clip, 1 - beta1; beta2, 1 - beta2, (1 - beta2) eps1; beta3, (1 - beta3) beta1^2, (1 - beta3) eps2.
    """
    return _step("came_step", weights, grads, exp_avgs, [*means, *residuals], numbers)


def _step(
    name: str, weights: Tensors, grads: Tensors, exp_avgs: Tensors | None, means: list[Tensors], numbers: Sequence[float]
) -> torch.Tensor:
    table = np.zeros((len(weights), 9), np.int64)  # the fields of the C++ struct Matrix
    heights, widths = table[:, 7], table[:, 8]
    heights[:], widths[:] = zip(*(weight.shape for weight in weights), strict=True)
    sizes = (heights * widths).tolist()
    fields = [weights, grads, exp_avgs, *means]
    for field, (tensors, counts) in enumerate(zip(fields, [sizes] * 3 + [heights.tolist(), widths.tolist()] * 2, strict=False)):
        if tensors is not None:
            table[:, field] = [_address(tensor, count) for tensor, count in zip(tensors, counts, strict=True)]
    mean_squares, given = torch.empty(len(weights)), np.array(numbers, np.float32)
    getattr(library(), name)(table.ctypes.data, len(weights), given.ctypes.data, mean_squares.data_ptr(), torch.get_num_threads())
    torch.autograd.graph.increment_version(weights)
    return mean_squares


def _address(tensor: torch.Tensor, count: int) -> int:
    if tensor.dtype != torch.float32 or not tensor.is_cpu or not tensor.is_contiguous() or tensor.numel() != count:
        raise ValueError(
            f"impl='native' needs contiguous FP32 tensors on the CPU, got {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
        )
    return tensor.data_ptr()
