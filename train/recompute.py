"""Activation recomputation: what blocks keep of the forward pass for the backward one, and what they compute again.

Memory of L blocks in groups of k is about (L/k) b + k i, for b bytes of a block's input and i of what it saves inside: least near
k = sqrt(L b / i), which is sqrt(L) where the two are alike (Chen et al. 2016). Selective recomputation keeps the results of products and
attention and computes the cheap rest again (Korthikanti et al. 2022). Loss and gradient are the same bits, dropout included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from schemas.errors import RecipeError

_EVERY = re.compile(r"every_([1-9][0-9]*)")
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


@dataclass(frozen=True)
class Policy:
    """What is recomputed: groups of ``group`` blocks (0 is none), or inside each block all but the products."""

    group: int = 0
    selective: bool = False

    def __str__(self) -> str:
        return "selective" if self.selective else f"every_{self.group}" if self.group else "none"


NONE, SELECTIVE = Policy(), Policy(selective=True)


def named_policy(recompute: str, layers: int) -> Policy | None:
    """Return the policy of a name; None for ``auto``, which has to be measured.

    Args:
        recompute: ``none``, ``full`` (each block alone), ``sqrt`` (ceil(sqrt(layers)) blocks), ``every_<k>``, ``selective`` or ``auto``.
        layers: blocks of the model.

    Raises:
        RecipeError: another name.
    """
    if (match := _EVERY.fullmatch(recompute)) is not None:
        return Policy(int(match[1]))
    named = {"none": NONE, "full": Policy(1), "sqrt": Policy(math.isqrt(layers - 1) + 1), "selective": SELECTIVE, "auto": None}
    if recompute not in named:
        raise RecipeError(
            f"{recompute!r} is not one of none, full, sqrt, every_<number of blocks>, selective, auto", where="training.recompute"
        )
    return named[recompute]


@dataclass(frozen=True)
class BlockBytes:
    """What one block holds for the backward pass, in bytes: its input, all that it saves inside, and its products alone."""

    boundary: int
    inside: int
    products: int

    def peak(self, policy: Policy, layers: int) -> int:
        """Most bytes of activations that all blocks hold at once."""
        if policy.selective:
            return layers * (self.boundary + self.products) + self.inside
        if not policy.group:
            return layers * self.inside
        return -(-layers // policy.group) * self.boundary + min(policy.group, layers) * self.inside


def choose_policy(sizes: BlockBytes, layers: int, budget: int = 0) -> Policy:
    """Return the group size of the least peak; with a budget in bytes the cheapest in time of all policies whose peak is within it.

    Raises:
        RecipeError: no policy is within the budget.
    """
    smallest = min((Policy(k) for k in range(1, layers + 1)), key=lambda policy: sizes.peak(policy, layers))
    if not budget:
        return smallest
    for policy in (NONE, SELECTIVE, smallest):
        if sizes.peak(policy, layers) <= budget:
            return policy
    raise RecipeError(
        f"{budget / 2**20:.0f} MiB do not hold the activations: {smallest} needs {sizes.peak(smallest, layers) / 2**20:.0f} MiB",
        where="training.recompute_budget_mib",
        fix="lower training.micro_batch_rows or raise the budget",
    )


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
