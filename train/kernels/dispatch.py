"""Which implementation an operation runs: eager torch, torch.compile of the same lines, C++ for a CPU, or Triton."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, ParamSpec, TypeVar

import torch

Impl = Literal["auto", "eager", "compile", "native", "triton"]
IMPLS = ("auto", "eager", "compile", "native", "triton")

_MOST_SHAPES = 64
_HAS_TRITON = find_spec("triton") is not None
_twice = False
_P = ParamSpec("_P")
_T = TypeVar("_T")


def choose(impl: Impl, tensor: torch.Tensor, *, native: bool = False) -> Impl:
    """Return an implementation but ``"auto"``, which is Triton on CUDA where it is installed, else eager.

    FP64, and what is differentiated twice, is eager under ``"auto"``.

    Inside a region that is being compiled, ``"compile"`` is eager: the lines are traced with their surroundings.

    Args:
        impl: what is asked for.
        tensor: one of the operands.
        native: whether the operation has a form in C++ (the steps of factored optimizers have).

    Raises:
        ValueError: for an unknown name, or an implementation where it cannot run.
    """
    allowed = [name for name in IMPLS if native or name != "native"]
    if impl not in allowed:
        raise ValueError(f"unknown kernel implementation {impl!r}; choose one of {', '.join(allowed)}")
    if impl == "native" and not tensor.is_cpu:
        raise ValueError(f"impl='native' is for the CPU, got a tensor on {tensor.device}")
    if impl == "auto":
        return "triton" if tensor.is_cuda and _HAS_TRITON and tensor.dtype != torch.float64 and not _twice else "eager"
    if impl == "compile" and torch.compiler.is_compiling():
        return "eager"
    if impl == "triton" and not _HAS_TRITON:
        raise ValueError("impl='triton' needs the package triton; install the one that belongs to this torch, or use impl='auto'")
    if impl == "triton" and not tensor.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            f"impl='triton' needs a CUDA tensor, got one on {tensor.device} (TRITON_INTERPRET=1 runs kernels on the CPU, for tests)"
        )
    if impl == "triton" and tensor.dtype == torch.float64:
        raise ValueError("the Triton kernels compute in FP32; use impl='eager' or 'compile' for float64")
    return impl


@contextmanager
def second_derivatives() -> Iterator[None]:
    """Within it ``"auto"`` is eager: the Triton kernels' gradients have no gradient."""
    global _twice
    before, _twice = _twice, True
    try:
        yield
    finally:
        _twice = before


@functools.cache
def compiled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return ``torch.compile`` of a function, made once."""
    return torch.compile(function)


@functools.cache
def compiled_by_shape(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return ``torch.compile`` of a function for each shape by itself; a value that two loops read is kept, not computed twice."""
    dynamo: Any = import_module("torch._dynamo.config")
    dynamo.recompile_limit = max(dynamo.recompile_limit, _MOST_SHAPES)
    return torch.compile(function, dynamic=False, options={"realize_reads_threshold": 0})


def arithmetic(*tensors: torch.Tensor) -> torch.dtype:
    """Return the dtype operations compute in: FP64 if any tensor is, else FP32."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
