"""RMSNorm, add + RMSNorm and LayerNorm over the last dimension."""

from __future__ import annotations

import torch

from train.kernels.dispatch import Impl, arithmetic, choose, compiled


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, impl: Impl = "auto") -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019, equation 4), in FP32 inside, in x's dtype outside.

    Bytes moved per element of BF16: forward 4 (read x, write y), backward 6 (read x and dy, write dx); both are the floor.

    Args:
        x: (..., d).
        weight: (d,).
        eps: added to the mean square.
        impl: see ``train.kernels.dispatch``.
    """
    _check(x, weight)
    chosen = choose(impl, x)
    if chosen == "triton":
        from train.kernels.fused import norm

        return norm.rms_norm(x, weight, eps)
    return (compiled(_rms_norm) if chosen == "compile" else _rms_norm)(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, impl: Impl = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (rms_norm(s), s) of s = x + residual; s has the wider dtype of the two, the norm has x's and is of s as it is stored.

    Bytes moved per element of BF16: forward 8 (read x and residual, write both results), backward 8 (read s and both gradients, write
    one gradient that serves x and residual); both are the floor.

    Args:
        x: (..., d).
        residual: the shape of x.
        weight: (d,).
        eps: added to the mean square.
        impl: see ``train.kernels.dispatch``.
    """
    _check(x, weight)
    if x.shape != residual.shape:
        raise ValueError(f"add_rms_norm: x has shape {tuple(x.shape)} and residual {tuple(residual.shape)}; they must be equal")
    chosen = choose(impl, x)
    if chosen == "triton":
        from train.kernels.fused import norm

        return norm.add_rms_norm(x, residual, weight, eps)
    return (compiled(_add_rms_norm) if chosen == "compile" else _add_rms_norm)(x, residual, weight, eps)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float = 1e-5, *, impl: Impl = "auto"
) -> torch.Tensor:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016, equation 4), in FP32 inside, in x's dtype outside.

    Bytes moved per element of BF16: forward 4 (read x, write y), backward 6 (read x and dy, write dx); both are the floor.

    Args:
        x: (..., d).
        weight: (d,).
        bias: (d,) or None.
        eps: added to the variance.
        impl: see ``train.kernels.dispatch``.
    """
    _check(x, weight)
    if bias is not None:
        _check(x, bias)
    chosen = choose(impl, x)
    if chosen == "triton":
        from train.kernels.fused import norm

        return norm.layer_norm(x, weight, bias, eps)
    return (compiled(_layer_norm) if chosen == "compile" else _layer_norm)(x, weight, bias, eps)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.to(arithmetic(x, weight))
    return torch.nn.functional.rms_norm(wide, weight.shape, weight.to(wide.dtype), eps).to(x.dtype)


def _add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return _rms_norm(total, weight, eps).to(x.dtype), total


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    wide = x.to(arithmetic(x, weight))
    shift = None if bias is None else bias.to(wide.dtype)
    return torch.nn.functional.layer_norm(wide, weight.shape, weight.to(wide.dtype), shift, eps).to(x.dtype)


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    if weight.ndim != 1 or x.ndim < 1 or x.shape[-1] != weight.shape[0]:
        raise ValueError(f"norm: weights must be as long as x's last dimension; got {tuple(weight.shape)} for x {tuple(x.shape)}")
