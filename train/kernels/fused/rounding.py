"""Triton: storing FP32 results as weights, stochastically rounded where the weights are BF16 and a seed is given."""

# Triton's decorator hides types, and a kernel's arguments are pointers and scalars of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_weights(target, values, element, mask, seed, step, STOCHASTIC: tl.constexpr, DTYPE: tl.constexpr):
    """Store ``values``; the noise is a function of (the tensor's seed, step, index of the element) alone."""
    if STOCHASTIC:
        zero = element * 0
        noise, _, _, _ = tl.philox(
            seed,
            element.to(tl.uint32),
            (element >> 32).to(tl.uint32),
            zero.to(tl.uint32),
            (zero + step).to(tl.uint32),  # a scalar is no tensor in the interpreter, so it is cast as part of a sum
        )
        bits = values.to(tl.uint32, bitcast=True)
        # The top half of the sum is the BF16; infinities and NaN have no neighbour to go to.
        rounded = ((bits + (noise & 0xFFFF)) & 0xFFFF0000).to(tl.float32, bitcast=True)
        finite = tl.abs(values) < float("inf")
        values = tl.where(finite, rounded, values)
    tl.store(target, values.to(DTYPE), mask=mask)
