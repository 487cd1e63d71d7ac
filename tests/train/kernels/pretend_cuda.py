"""A CUDA device without a GPU: tensors that say they are on one, hold their values on the CPU, and refuse to meet tensors that are not.

What the trainer does because a tensor is on CUDA (which kernels it takes, what it moves where) then really runs, kernels by Triton's
interpreter. Not shown: streams, memory, speed, and torch's own CUDA kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed.tensor  # takes torch.Generator for its types before it is patched here
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

DEVICE = torch.device("cuda", 0)
_aten = torch.ops.aten
_MOVES = {_aten.copy_.default, _aten._foreach_copy_.default}
_JOINS = {_aten.cat.default, _aten.stack.default}


class OnCuda(torch.Tensor):
    """A tensor that is on the device as far as Python can ask; torch's own code sees it on the CPU."""

    held: torch.Tensor
    device = property(lambda self: DEVICE)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type[OnCuda], held: torch.Tensor) -> OnCuda:
        made: OnCuda = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device="cpu"
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        least = 0 if func in _JOINS else 1
        away = [tuple(value.shape) for value in tensors if not isinstance(value, OnCuda) and value.ndim >= least]
        if away and func not in _MOVES and not (func is _aten.index.Tensor and isinstance(args[0], OnCuda)):
            raise RuntimeError(f"{func} was given tensors on {DEVICE} and tensors of shapes {away} on the CPU")
        held = tree_map(lambda value: value.held if isinstance(value, OnCuda) else value, (args, kwargs))
        found = func(*held[0], **held[1])
        if func in _MOVES and not isinstance(tensors[0], OnCuda):
            return args[0] if func is _aten.copy_.default else None
        found = tree_map(lambda value: OnCuda(value) if isinstance(value, torch.Tensor) else value, found)
        return return_and_correct_aliasing(func, args, kwargs, found)


class _Moves(TorchFunctionMode):
    """What is asked for on a device, or moved to one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cpu:
            return _moved(args[0], torch.device("cpu"))
        if func is torch.Tensor.to:
            return self._to(*args, **kwargs)
        device, _ = kwargs.get("device"), kwargs.pop("pin_memory", False)
        if device is None:
            return func(*args, **kwargs)
        found = func(*args, **{**kwargs, "device": "cpu"})
        return _moved(found, torch.device(device))

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        plain = {key: value for key, value in kwargs.items() if key not in ("copy", "memory_format")}
        device, dtype, *_ = torch._C._nn._parse_to(*args, **plain)
        if args and isinstance(args[0], OnCuda):
            device = DEVICE
        copy = kwargs.get("copy", False)
        return _moved(tensor if dtype is None else tensor.to(dtype, copy=copy), device or tensor.device, copy)


class Event:
    """A point in the device's work, which is always done.

    Attributes:
        waits: how often any of them was waited for.
    """

    waits = 0

    def __init__(self, blocking: bool = False) -> None:
        self.recorded = False

    def record(self) -> None:
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded
        Event.waits += 1


def _moved(tensor: torch.Tensor, device: torch.device, copy: bool = False) -> torch.Tensor:
    if isinstance(tensor, OnCuda) == (device.type == "cuda"):
        return tensor.clone() if copy else tensor
    assert not (tensor.requires_grad and torch.is_grad_enabled()), "this device has no gradient of a move"
    with torch.no_grad():
        return OnCuda(tensor.detach().clone()) if device.type == "cuda" else tensor.detach().held.clone()  # type: ignore[attr-defined]


@contextmanager
def pretended() -> Iterator[torch.device]:
    """Within it there is a CUDA device; kernels run in Triton's interpreter, which must have been asked for before."""
    generator, enabled, dtype, autocast = torch.Generator, torch.is_autocast_enabled, torch.get_autocast_dtype, torch.autocast
    instead = {
        (torch.cuda, "is_available"): lambda: True,
        (torch.cuda, "is_bf16_supported"): lambda *_: True,
        (torch.cuda, "manual_seed_all"): lambda _: None,
        (torch.cuda, "Event"): Event,
        (torch.cuda, "get_device_name"): lambda *_: "NVIDIA H100 80GB HBM3",
        (torch.cuda, "max_memory_allocated"): lambda *_: 0,
        (torch.cuda, "synchronize"): lambda *_: None,
        (torch.cuda, "is_current_stream_capturing"): lambda: False,
        (torch, "Generator"): lambda *_: generator(),
        (torch, "is_autocast_enabled"): lambda *_: enabled("cpu"),
        (torch, "get_autocast_dtype"): lambda *_: dtype("cpu"),
        (torch, "autocast"): lambda _, *given, **options: autocast("cpu", *given, **options),
    }
    with ExitStack() as stack:
        stack.callback(
            torch.__future__.set_overwrite_module_params_on_conversion, torch.__future__.get_overwrite_module_params_on_conversion()
        )
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        for (owner, name), value in instead.items():
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(_Moves())
        yield DEVICE
