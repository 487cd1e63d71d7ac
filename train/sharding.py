"""Parameters sharded over ranks (FSDP2), and state dicts to and from pieces that any number of ranks can take up.

A piece of a sharded tensor is a dict of its local values, their offset and the whole shape: plain tensors and numbers, which
``torch.load(weights_only=True)`` reads. Pieces of all ranks join to whole tensors, and a whole tensor is cut for whoever loads it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard

from train.model import Decoder
from train.optim.shards import place_of

_PIECE = "gristmill.piece"


def shard_model(model: Decoder, mesh: DeviceMesh, products: torch.dtype = torch.float32) -> None:
    """Shard each block, and the rest as one, over a mesh of one dimension; gradients are summed, as the global token count wants.

    Args:
        model: the model.
        mesh: the ranks.
        products: what autocast computes products in. The blocks' products are gathered in it, which is what autocast would round the
            gathered weights to, in half the bytes; their gradients are summed in FP32. Norms, biases of activations and what is used
            more than once (a tied embedding, whose gradients add up) are gathered as they are.
    """

    def placement(parameter: torch.nn.Parameter) -> Shard | None:
        # Shards of what a tensor group splits by rows must be of one size; where rows do not allow it, columns are sharded.
        if isinstance(parameter, DTensor) and parameter.ndim == 2 and parameter.placements[0].is_shard(0):
            rows, columns = parameter.shape
            if rows % (parameter.device_mesh.size() * mesh.size()) and columns % mesh.size() == 0:
                return Shard(1)
        return None

    # It warns of writing into what a module returned, which nothing here does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    as_it_is = MixedPrecisionPolicy()
    rounded = MixedPrecisionPolicy(param_dtype=products, reduce_dtype=torch.float32, cast_forward_inputs=False)
    parts = [] if products == torch.float32 else [part for block in model.own_blocks for part in _products(block)]
    for module, policy in [*((part, rounded) for part in parts), *((module, as_it_is) for module in (*model.own_blocks, model))]:
        fully_shard(module, mesh=mesh, shard_placement_fn=placement, mp_policy=policy)
        module.set_gradient_divide_factor(1.0)  # type: ignore[operator, union-attr]
        module.set_force_sum_reduction_for_comms(True)  # type: ignore[operator, union-attr]
    for name in ("sampled_loss", "next_logits"):
        register_fsdp_forward_method(model, name)


def _products(module: nn.Module) -> Iterator[nn.Module]:
    """The largest modules within one that have parameters of products alone."""
    for child in module.children():
        parameters = {id(p) for p in child.parameters()}
        if parameters == {id(p) for part in child.modules() if isinstance(part, nn.Linear) for p in part.parameters(recurse=False)}:
            yield child
        else:
            yield from _products(child)


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
    """The whole value from that of every rank; what is not sharded is alike on all that have it, and the first one's is taken."""
    first = parts[0]
    if isinstance(first, dict) and _PIECE in first:
        whole = torch.empty(first["shape"], dtype=first[_PIECE].dtype)
        for part in parts:
            local = part[_PIECE]
            if local.numel():
                whole[tuple(slice(at, at + size) for at, size in zip(part["offset"], local.shape, strict=True))] = local
        return whole
    if isinstance(first, dict):
        keys = dict.fromkeys(key for part in parts for key in part)  # each once, or a value would be joined for every rank and level anew
        return {key: join([part[key] for part in parts if key in part]) for key in keys}
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


def load_weights(model: Decoder, weights: Mapping[str, torch.Tensor]) -> None:
    """Load whole weights by name, of which each rank takes its part.

    Raises:
        RuntimeError: a weight is missing, unknown or of another shape.
    """
    own = dict(model.named_parameters())
    model.load_state_dict(
        {name: cut(value, own[name]) if name in own else value for name, value in weights.items() if name not in model.absent}
    )


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
