"""Where a rank's part of a parameter lies in the whole, and sums over all parts in flat reductions.

An update rule is a generator: it yields partial sums over its own part and is sent the sums over all parts. ``run`` drives the rules of
all parameters in step, so that each round costs one collective however many parameters there are; the rule of an unsharded parameter
runs straight through.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

Rule = Generator[list[torch.Tensor], list[torch.Tensor], None]


@dataclass(frozen=True)
class Place:
    """This rank's part of a tensor: ``offset`` and ``local`` shape within ``shape``, one of ``shards`` parts over ``mesh``."""

    shape: tuple[int, ...]
    local: tuple[int, ...]
    offset: tuple[int, ...]
    mesh: DeviceMesh | None = None
    shards: int = 1

    def part(self, whole: torch.Tensor, without: int) -> torch.Tensor:
        """Return the view of this rank's part of a tensor that has all dimensions but ``without`` (-1 or -2) of the whole."""
        if self.mesh is None:
            return whole
        kept = [d for d in range(len(self.shape)) if d != len(self.shape) + without]
        return whole[tuple(slice(self.offset[d], self.offset[d] + self.local[d]) for d in kept)]


def place_of(tensor: torch.Tensor, name: str = "parameter") -> Place:
    """Return where this rank's part of a tensor lies; the whole for a plain tensor.

    Raises:
        ValueError: a placement that is neither replicated nor a contiguous shard; names the parameter.
    """
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return Place(shape, shape, (0,) * len(shape))
    mesh, placements = tensor.device_mesh, tensor.placements
    sizes: dict[int, int] = {}
    for size, placement in zip(mesh.shape, placements, strict=True):
        if isinstance(placement, Shard | _StridedShard):
            sizes[placement.dim] = sizes.get(placement.dim, 1) * size
        elif not placement.is_replicate():
            raise ValueError(f"{name} has placement {placement}: an optimizer needs parameters that are sharded or replicated")
    for size, placement in zip(mesh.shape, placements, strict=True):
        if isinstance(placement, _StridedShard):
            total = sizes[placement.dim]
            if shape[placement.dim] % total or placement.split_factor * size != total:
                raise ValueError(
                    f"{name} of shape {shape} is sharded unevenly over {total} ranks (FSDP over tensor parallel) in dimension "
                    f"{placement.dim}: make its size a multiple of {total}"
                )
    local, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    return Place(shape, tuple(local), tuple(offset), mesh, math.prod(sizes.values()))


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor, or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def process_groups(places: Sequence[Place]) -> list[dist.ProcessGroup | None]:
    """Return the process group that sums over each place's shards; None for what is not sharded.

    A place whose mesh lies within another place's mesh is summed over the larger (its sums are weighted by the number of copies), so that
    FSDP over tensor parallel, where norms live on the data mesh alone, still costs one collective a round.
    """
    meshes = sorted({p.mesh for p in places if p.mesh is not None and p.shards > 1}, key=lambda m: -m.size())
    ranks = {mesh: frozenset(mesh.mesh.flatten().tolist()) for mesh in meshes}
    groups: dict[DeviceMesh, dist.ProcessGroup] = {}
    for mesh in meshes:
        host = next((other for other in meshes if ranks[other] >= ranks[mesh]), mesh)
        groups[mesh] = groups[host] if host in groups else _process_group(mesh)
    return [groups.get(p.mesh) if p.mesh is not None and p.shards > 1 else None for p in places]


def run(rules: Sequence[tuple[Rule, Place, dist.ProcessGroup | None]]) -> None:
    """Drive rules to their end: one all-reduce per process group and round."""
    rounds: dict[dist.ProcessGroup, list[tuple[Rule, Place, list[torch.Tensor]]]] = {}
    for rule, place, group in rules:
        sums = next(rule, None)
        if group is None:
            while sums is not None:
                sums = _send(rule, sums)
        elif sums is not None:
            rounds.setdefault(group, []).append((rule, place, sums))
    for group, waiting in rounds.items():
        while waiting:
            totals = _reduce([(place, sums) for _, place, sums in waiting], group)
            answers = [(rule, place, _send(rule, total)) for (rule, place, _), total in zip(waiting, totals, strict=True)]
            waiting = [(rule, place, sums) for rule, place, sums in answers if sums is not None]


def _send(rule: Rule, sums: list[torch.Tensor]) -> list[torch.Tensor] | None:
    try:
        return rule.send(sums)
    except StopIteration:
        return None


def _reduce(parts: list[tuple[Place, list[torch.Tensor]]], group: dist.ProcessGroup) -> list[list[torch.Tensor]]:
    size = dist.get_world_size(group)
    flat = torch.cat([(t * (place.shards / size)).reshape(-1) for place, sums in parts for t in sums])
    dist.all_reduce(flat, group=group)
    pieces = iter(torch.split(flat, [t.numel() for _, sums in parts for t in sums]))
    return [[next(pieces).view(t.shape).to(t.dtype) for t in sums] for _, sums in parts]


def _process_group(mesh: DeviceMesh) -> Any:
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    return mesh._flatten().get_group()
