"""Kernels under test: compiled where CUDA is, else run by Triton's interpreter, with buffers that tell of stray writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

INTERPRETED = not torch.cuda.is_available()
if INTERPRETED:
    # Triton settles its mode when it is first imported, for good.
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.UsageError("a test module imported triton before tests/train/kernels could ask for its interpreter")
    os.environ["TRITON_INTERPRET"] = "1"

# Relative to the largest value: FP32 sums of a few thousand terms; one rounding of the result for the others (BF16 stores truncate in the
# interpreter, and a value that is stored and read again is rounded twice).
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
PADDING = 64
CANARY = -12345.0

Function = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled here, not interpreted")),
        pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(INTERPRETED, reason="no CUDA device")]),
    ]
)
def device(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("triton")
    torch.manual_seed(0)
    return str(request.param)


def padded(values: torch.Tensor) -> torch.Tensor:
    """Return a copy amid NaN: a read outside it poisons the result."""
    buffer = torch.full((values.numel() + 2 * PADDING,), float("nan"), dtype=values.dtype, device=values.device)
    inner = buffer[PADDING:-PADDING].view(values.shape)
    inner.copy_(values)
    return inner


@contextmanager
def canaries() -> Iterator[None]:
    """Make every tensor that a kernel's launcher allocates lie amid canaries, and check them at the end."""
    buffers = []
    allocate, allocate_zeros = torch.Tensor.new_empty, torch.Tensor.new_zeros

    def guarded(self: torch.Tensor, *size: object, dtype: torch.dtype | None = None, **kwargs: object) -> torch.Tensor:
        shape = torch.Size(size[0] if size and not isinstance(size[0], int) else size)  # type: ignore[arg-type]
        buffer = allocate(self, shape.numel() + 2 * PADDING, dtype=dtype, **kwargs)
        if not buffer.is_floating_point():
            return allocate(self, shape, dtype=dtype, **kwargs)
        buffers.append(buffer.fill_(CANARY))
        return buffer[PADDING:-PADDING].view(shape)

    def guarded_zeros(self: torch.Tensor, *size: object, **kwargs: object) -> torch.Tensor:
        return guarded(self, *size, **kwargs).zero_()

    torch.Tensor.new_empty, torch.Tensor.new_zeros = guarded, guarded_zeros  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.new_empty, torch.Tensor.new_zeros = allocate, allocate_zeros  # type: ignore[method-assign]
    assert buffers, "no launcher allocated anything"
    for buffer in buffers:
        edges = torch.cat((buffer[:PADDING], buffer[-PADDING:]))
        assert torch.equal(edges, torch.full_like(edges, CANARY)), "a kernel wrote outside its buffer"


@pytest.fixture
def agree() -> Callable[..., None]:
    """Return a check that a function's results and gradients, from kernels, are those of its eager lines in float64."""

    def check(function: Function, *inputs: torch.Tensor, upstream: Callable[[torch.Tensor], torch.Tensor] = torch.randn_like) -> None:
        inputs = tuple(values if values.requires_grad else values.detach().requires_grad_() for values in inputs)
        wide = tuple(values.detach().double().requires_grad_() for values in inputs)
        with canaries():
            results = _tuple(function(*inputs, impl="triton"))
            upstreams = [upstream(result) for result in results]
            kept = [values.detach().clone() for values in upstreams]
            gradients = torch.autograd.grad(results, inputs, upstreams)
        expected = _tuple(function(*wide, impl="eager"))
        expected_gradients = torch.autograd.grad(expected, wide, [values.double() for values in kept])
        for found, exact in zip((*results, *gradients), (*expected, *expected_gradients), strict=True):
            assert found.shape == exact.shape
            error = (found.double() - exact).detach().abs().max() if found.numel() else torch.zeros(())
            scale = max(1.0, float(exact.detach().abs().max())) if found.numel() else 1.0
            coarsest = max(TOLERANCE[values.dtype] for values in (*inputs, found))
            assert float(error) <= coarsest * scale, (float(error), scale, found.dtype)
        for values, before in zip(upstreams, kept, strict=True):
            assert torch.equal(values, before), "a kernel wrote over its upstream gradient"

    return check


def _tuple(values: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return values if isinstance(values, tuple) else (values,)


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(params=DTYPES, ids=["fp32", "fp16", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def poisoned() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return ``padded``."""
    return padded


@pytest.fixture
def far_rows(device: str) -> Callable[[int], torch.Tensor]:
    """Return a maker of three BF16 rows that lie 2^30 elements apart: offsets beyond 32 bits. Only the pages that are touched are real."""

    def make(columns: int) -> torch.Tensor:
        rows = torch.empty(2**31 + columns, dtype=torch.bfloat16, device=device).as_strided((3, columns), (2**30, 1))
        return rows.copy_(torch.randn(3, columns))

    return make
