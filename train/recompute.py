"""Activation recomputation at work: what blocks keep of the forward pass for the backward one, and what they compute again.

Loss and gradient are the same bits under every policy (``train.policy``), dropout included. A second run of a checkpointed function ends
at the last tensor that the backward pass wants, so that a product at its end is not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch.nn.functional import dropout
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from train.attention import Kept, Packing
from train.policy import BlockBytes

_Shared = TypeVar("_Shared")
_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.higher_order.flex_attention,
}
_PRODUCTS = _ATTENTION | {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}


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
        y, half, before = x.detach().requires_grad_(), 0, 0
        for part in getattr(block, "halves", [block]):
            y = part(y, shared)
            half, before = max(half, sum(saved.values()) - before), sum(saved.values())
    del y
    masks = 2 * x.numel() if getattr(block, "dropout", 0.0) else 0
    return BlockBytes(x.nbytes, x.nbytes + before, products.bytes, products.attention + masks, half)


class _Products(TorchDispatchMode):
    """Counts the bytes of what products return, and of what attention does alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.attention = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let what a block compiles by itself (flex attention) run compiled, or its products would be whole in memory."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            size = sum(t.nbytes for t in (found if isinstance(found, tuple) else (found,)) if isinstance(t, torch.Tensor))
            self.bytes += size
            self.attention += size if func in _ATTENTION else 0
        return found


def run_selectively(block: Callable[[torch.Tensor, _Shared], torch.Tensor], x: torch.Tensor, shared: _Shared) -> torch.Tensor:
    """Run a block so that its products are kept and the rest is computed again."""
    y: torch.Tensor = checkpoint(block, x, shared, use_reentrant=False, context_fn=_keep_products)
    return y


def _keep_products() -> Any:
    return create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


def run_halves(attended: Callable[..., torch.Tensor], fed: Callable[..., torch.Tensor], x: torch.Tensor, packing: Packing) -> torch.Tensor:
    """Run a block's two halves so that the input of each and what attention gave are kept and the rest is computed again.

    Args:
        attended: the half with attention; given a ``Kept`` it uses it.
        fed: the half with the feed-forward.
        x: (B, L, d) input.
        packing: see there.
    """
    y: torch.Tensor
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        y = checkpoint(attended, x, packing, use_reentrant=False, context_fn=_keep_attention)
        y = checkpoint(fed, y, use_reentrant=False)
    else:  # a kept policy of torch's would look at every operation, which costs what it saves; nothing random is drawn again
        y = checkpoint(attended, x, packing, Kept(), use_reentrant=False, preserve_rng_state=False)
        y = checkpoint(fed, y, use_reentrant=False, preserve_rng_state=False)
        torch.clear_autocast_cache()  # else the cast weights of all blocks stay until the forward pass ends
    return y


def _keep_attention() -> Any:
    return create_selective_checkpoint_contexts(list(_ATTENTION))  # type: ignore[no-untyped-call]


def dropout_kept(x: torch.Tensor, share: float, training: bool) -> torch.Tensor:
    """Dropout at the end of a checkpointed function: its mask is not among what a second run must reach."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":  # devices draw otherwise
        return dropout(x, share, training)
    return cast(torch.Tensor, _Dropout.apply(x, share)) if training and share else x  # type: ignore[no-untyped-call]


class _Dropout(torch.autograd.Function):
    """The same draws and bits as torch's; the mask takes a byte an element and is held by the first run's node itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, share: float) -> torch.Tensor:
        factors = torch.empty_like(x).bernoulli_(1 - share)
        ctx.kept, ctx.share = factors.bool(), share
        return factors.div_(1 - share).mul_(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.kept.to(grad.dtype).div_(1 - ctx.share).mul_(grad), None


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
        torch.clear_autocast_cache()  # else the cast weights of all blocks stay until the forward pass ends
    return x
