"""The norm of all gradients together, however parameters are spread over ranks, and clipping by it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor

from train.kernels import grad_norm
from train.parallel import Ranks

Parameters = Sequence[torch.nn.Parameter]


def clip_gradients(parameters: Parameters, limit: float, ranks: Ranks, copies: Parameters = ()) -> float:
    """Scale all gradients down together so that their norm is at most ``limit`` (0: leave them); returns the norm before.

    Args:
        parameters: those of this rank.
        limit: largest norm.
        ranks: all ranks; every one must call.
        copies: parameters among them that an earlier rank of the pipeline counts.
    """
    norm = float(global_norm(parameters, ranks, copies))
    grads = [_local(p.grad) for p in parameters if p.grad is not None]
    if limit and grads and (shrink := limit / (norm + 1e-6)) < 1:
        torch._foreach_mul_(grads, shrink)
    return norm


def global_norm(parameters: Parameters, ranks: Ranks, copies: Parameters = ()) -> torch.Tensor:
    """The L2 norm of the gradients of the whole model, 0-D; every rank must call."""
    copied = {id(p) for p in copies}
    grads = [p.grad for p in parameters if p.grad is not None and id(p) not in copied]
    if ranks.mesh is None:
        return grad_norm(grads) if grads else torch.zeros(())
    norms = torch.stack([*torch._foreach_norm([_local(g) for g in grads]), torch.zeros((), device=ranks.device)]).double()
    total = norms.square() @ torch.tensor([*map(_weight, grads), 0.0], dtype=torch.float64, device=ranks.device)
    for name, size in (
        ("tensor", ranks.layout.tensor),
        ("data", ranks.data_ranks if ranks.sharded else 1),
        ("pipeline", ranks.layout.pipeline),
    ):
        if size > 1:
            ranks.sum(total, name)
    return total.sqrt()


def _weight(grad: torch.Tensor) -> float:
    """One over the number of ranks that hold the same part."""
    if not isinstance(grad, DTensor):
        return 1.0
    copies = 1
    for size, placement in zip(grad.device_mesh.shape, grad.placements, strict=True):
        copies *= size if placement.is_replicate() else 1
    return 1 / copies


def _local(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
