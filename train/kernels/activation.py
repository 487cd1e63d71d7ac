"""SwiGLU, and bias + GELU + dropout."""

from __future__ import annotations

import torch

from train.kernels.dispatch import Impl, arithmetic, choose, compiled
from train.kernels.philox import keep_mask, keep_scale, threshold


def swiglu(gate: torch.Tensor, up: torch.Tensor, *, impl: Impl = "auto") -> torch.Tensor:
    """Return silu(gate) * up (Shazeer 2020, equation 6), in FP32 inside, in gate's dtype outside.

    Bytes moved per element of BF16: forward 6 (read both, write one), backward 10 (read both and dy, write two); both are the floor.

    Args:
        gate: any shape and strides.
        up: the shape and dtype of gate.
        impl: see ``train.kernels.dispatch``.
    """
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise ValueError(f"swiglu: gate is {gate.dtype} {tuple(gate.shape)} and up {up.dtype} {tuple(up.shape)}; they must be equal")
    chosen = choose(impl, gate)
    if chosen == "triton":
        from train.kernels.fused import activation

        return activation.swiglu(gate, up)
    return (compiled(_swiglu) if chosen == "compile" else _swiglu)(gate, up)


def bias_gelu_dropout(
    x: torch.Tensor, bias: torch.Tensor, p: float, seed: int, offset: int, training: bool = True, *, impl: Impl = "auto"
) -> torch.Tensor:
    """Return dropout(gelu(x + bias)), GELU exact (Hendrycks & Gimpel 2016), in FP32 inside, in x's dtype outside.

    The mask is a function of (seed, offset, index of the element) alone: see ``train.kernels.philox``. It is the same on every device and
    for every implementation, and p counts in steps of 2^-16.
    Bytes moved per element of BF16: forward 4 (read x, write y), backward 6 (read x and dy, write dx); both are the floor, since the mask
    is recomputed and never stored.

    Args:
        x: (..., d).
        bias: (d,).
        p: probability to drop an element, in [0, 1).
        seed: key of the generator, 64 bits.
        offset: number of the stream, 64 bits; give every layer, step and micro-batch its own.
        training: where False nothing is dropped.
        impl: see ``train.kernels.dispatch``.
    """
    threshold(p)
    if bias.ndim != 1 or x.ndim < 1 or x.shape[-1] != bias.shape[0]:
        raise ValueError(f"bias_gelu_dropout: bias must be as long as x's last dimension; got {tuple(bias.shape)} for x {tuple(x.shape)}")
    p = p if training else 0.0
    chosen = choose(impl, x)
    if chosen == "triton":
        from train.kernels.fused import activation

        return activation.bias_gelu_dropout(x, bias, p, seed, offset)
    return (compiled(_bias_gelu_dropout) if chosen == "compile" else _bias_gelu_dropout)(x, bias, p, seed, offset)


def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    dtype = arithmetic(gate)
    return (torch.nn.functional.silu(gate.to(dtype)) * up.to(dtype)).to(gate.dtype)


def _bias_gelu_dropout(x: torch.Tensor, bias: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    dtype = arithmetic(x, bias)
    active = torch.nn.functional.gelu(x.to(dtype) + bias.to(dtype))
    if threshold(p):
        active = active * keep_mask(x.shape, p, seed, offset, x.device) * keep_scale(p)
    return active.to(x.dtype)
