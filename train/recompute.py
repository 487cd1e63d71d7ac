"""Activation recomputation at work: what blocks keep of the forward pass for the backward one, and what they compute again.

Loss and gradient are the same bits under every policy (``train.policy``), dropout included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from train.policy import BlockBytes

_Shared = TypeVar("_Shared")
_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.higher_order.flex_attention,
}


def measure_block(block: Callable[[torch.Tensor, Any], torch.Tensor], x: torch.Tensor, shared: Any) -> BlockBytes:
    """Run a block once on a batch of the real shape and count what it would hold; parameters and what all blocks share are left out."""
    tensors = [value for value in vars(shared).values() if isinstance(value, torch.Tensor)]
    own = {tensor.untyped_storage()._cdata for tensor in (x, *tensors, *getattr(block, "parameters", list)())}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), _Products() as products:
        y = block(x.detach().requires_grad_(), shared)
    del y
    return BlockBytes(x.nbytes, x.nbytes + sum(saved.values()), products.bytes)


class _Products(TorchDispatchMode):
    """Counts the bytes of what products return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            self.bytes += sum(t.nbytes for t in (found if isinstance(found, tuple) else (found,)) if isinstance(t, torch.Tensor))
        return found


def run_selectively(block: Callable[[torch.Tensor, _Shared], torch.Tensor], x: torch.Tensor, shared: _Shared) -> torch.Tensor:
    """Run a block so that its products are kept and the rest is computed again."""
    y: torch.Tensor = checkpoint(block, x, shared, use_reentrant=False, context_fn=_keep_products)
    return y


def _keep_products() -> Any:
    return create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


def run_blocks(
    blocks: Sequence[Callable[[torch.Tensor, _Shared], torch.Tensor]], x: torch.Tensor, shared: _Shared, group: int
) -> torch.Tensor:
    """Pass ``x`` through all blocks, in groups that are recomputed in the backward pass; group 0, or no gradients, recomputes nothing."""

    def run(first: int, end: int, x: torch.Tensor) -> torch.Tensor:
        for block in blocks[first:end]:
            x = block(x, shared)
        return x

    if not group or not torch.is_grad_enabled():
        return run(0, len(blocks), x)
    for first in range(0, len(blocks), group):
        y: torch.Tensor = checkpoint(run, first, first + group, x, use_reentrant=False)
        x = y
    return x
