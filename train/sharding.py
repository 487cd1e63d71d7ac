"""Parameters sharded over ranks (FSDP2), and state dicts to and from pieces that any number of ranks can take up.

A piece of a sharded tensor is a dict of its local values, their offset and the whole shape: plain tensors and numbers, which
``torch.load(weights_only=True)`` reads. Pieces of all ranks join to whole tensors, and a whole tensor is cut for whoever loads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from train.model import Decoder
from train.optim.shards import place_of

_PIECE = "gristmill.piece"


def shard_model(model: Decoder, device: torch.device) -> None:
    """Shard each block, and the rest as one, over all ranks; gradients are summed over them, as the global token count wants."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in (model, *model.blocks):
        module.set_gradient_divide_factor(1.0)  # type: ignore[operator, union-attr]
        module.set_force_sum_reduction_for_comms(True)  # type: ignore[operator, union-attr]
    for name in ("sampled_loss", "next_logits"):
        register_fsdp_forward_method(model, name)


def is_sharded(parameters: Sequence[torch.Tensor]) -> bool:
    """Whether any of the tensors is a shard."""
    return any(isinstance(parameter, DTensor) for parameter in parameters)


def to_pieces(value: Any) -> Any:
    """Replace sharded tensors in dicts, lists and tuples by this rank's piece."""
    if isinstance(value, DTensor):
        place = place_of(value)
        return {_PIECE: value.to_local().detach(), "offset": list(place.offset), "shape": list(place.shape)}
    if isinstance(value, dict):
        return {key: to_pieces(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(to_pieces, value))
    return value


def join(parts: Sequence[Any]) -> Any:
    """The whole value from that of every rank; what is not sharded is alike on all, and the first one's is taken."""
    first = parts[0]
    if isinstance(first, dict) and _PIECE in first:
        whole = torch.empty(first["shape"], dtype=first[_PIECE].dtype)
        for part in parts:
            local = part[_PIECE]
            if local.numel():
                whole[tuple(slice(at, at + size) for at, size in zip(part["offset"], local.shape, strict=True))] = local
        return whole
    if isinstance(first, dict):
        return {key: join([part[key] for part in parts]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(join(inner) for inner in zip(*parts, strict=True))
    return first


def cut(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a whole tensor, placed as a parameter of the same shape is; the whole where that is not sharded."""
    if not isinstance(like, DTensor) or whole.shape != like.shape:
        return whole
    place = place_of(like)
    local = whole[tuple(slice(at, at + size) for at, size in zip(place.offset, place.local, strict=True))].to(like.device).clone()
    return DTensor.from_local(local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())


def cut_optimizer(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A whole optimizer state with what is shaped as its parameter cut as that is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not is_sharded(parameters):
        return state
    names = [name for group in state["param_groups"] for name in group["params"]]
    made = {}
    for name, parameter in zip(names, parameters, strict=True):
        own = state["state"].get(name, {})
        made[name] = {key: cut(value, parameter) if isinstance(value, torch.Tensor) else value for key, value in own.items()}
    return {**state, "state": made}
