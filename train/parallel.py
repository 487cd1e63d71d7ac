"""Ranks: one process, or several under torchrun, laid out as (pipeline, data, tensor)."""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported after the group is made, its default arguments would hold it for ever
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from schemas.errors import GristmillError
from schemas.parallel import ParallelSettings
from train.interrupt import Interrupted

WHOLE = ParallelSettings()


@dataclass(frozen=True)
class Ranks:
    """This process among all.

    Ranks of one tensor group and of one pipeline read the same rows; those along ``data`` share a step's rows between them. Without a
    layout all of them are along ``data``.

    Attributes:
        rank: this process's number.
        world: their number.
        device: this process's device.
        layout: how a stage is spread over them.
        mesh: they as (pipeline, data, tensor); None on one rank, and where all are along ``data`` and hold whole parameters.
    """

    rank: int
    world: int
    device: torch.device
    layout: ParallelSettings = WHOLE
    mesh: DeviceMesh | None = None

    def laid_out(self, layout: ParallelSettings) -> Ranks:
        """The same ranks in a layout that fits their number; on one rank there is nothing to lay out."""
        if self.world == 1 or layout == WHOLE:
            return self
        sizes = (layout.pipeline, self.world // (layout.pipeline * layout.tensor), layout.tensor)
        mesh = init_device_mesh(self.device.type, sizes, mesh_dim_names=("pipeline", "data", "tensor"))
        return dataclasses.replace(self, layout=layout, mesh=mesh)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which alone writes tables and speaks."""
        return self.rank == 0

    @property
    def data_ranks(self) -> int:
        """Into how many parts a step's rows are dealt."""
        return self.world // (self.layout.pipeline * self.layout.tensor)

    @property
    def data_rank(self) -> int:
        """Which of them this rank reads."""
        return self.rank if self.mesh is None else self.mesh.get_local_rank("data")

    @property
    def first_of_rows(self) -> bool:
        """Whether this is the first of the ranks that read the same rows."""
        return self.mesh is None or self.mesh.get_local_rank("pipeline") == self.mesh.get_local_rank("tensor") == 0

    @property
    def noise_rank(self) -> int:
        """What seeds everything random beside seed, step and micro-batch: ranks of a tensor group draw alike unless they split rows."""
        return self.rank if self.layout.sequence else self.data_rank

    @property
    def sharded(self) -> bool:
        """Whether parameters are spread along ``data``."""
        return self.mesh is not None and self.layout.data == "shard" and self.data_ranks > 1

    @property
    def parts(self) -> int:
        """How many ranks together hold everything once: those of a checkpoint's parts."""
        return self.world if self.sharded else self.layout.tensor * self.layout.pipeline

    @property
    def part(self) -> int | None:
        """This rank's number among them, None for a copy; rank 0 has number 0."""
        if self.sharded or self.mesh is None:
            return self.rank if self.rank < self.parts else None
        pipeline, data, tensor = self.mesh.get_coordinate() or (0, 0, 0)
        return pipeline * self.layout.tensor + tensor if data == 0 else None

    def group(self, name: str) -> dist.ProcessGroup | None:
        """This rank's group along a dimension of the layout; None is all ranks."""
        return None if self.mesh is None else self.mesh.get_group(name)

    def sum(self, values: torch.Tensor, along: str = "data") -> torch.Tensor:
        """Sum a tensor over the ranks along a dimension, by default those that share rows between them, in place."""
        if self.world > 1:
            dist.all_reduce(values, group=self.group(along))
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        if self.world == 1:
            return flag
        found = torch.tensor(float(flag))  # between CPUs: nothing waits for what the device still computes
        dist.all_reduce(found)
        return bool(found.item() > 0)

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Sum gradients along ``data``, in one flat exchange; a rank that had no rows counts as zeros. Shards are summed already."""
        parameters = [p for p in parameters if p.requires_grad]
        if self.world == 1 or self.sharded:
            return
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p, dtype=p.grad_dtype)
            elif isinstance(p, DTensor) and isinstance(p.grad, DTensor) and p.grad.placements != p.placements:
                p.grad = p.grad.redistribute(placements=p.placements)  # of norms, over positions that a tensor group splits
        if self.data_ranks == 1:
            return
        grads = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in parameters if p.grad is not None]
        flat = self.sum(torch.cat([grad.reshape(-1) for grad in grads]))
        torch._foreach_copy_(
            grads, [part.view_as(grad) for grad, part in zip(grads, torch.split(flat, [g.numel() for g in grads]), strict=True)]
        )

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0, in rank order; an empty list elsewhere."""
        if self.world == 1:
            return [value]
        box: list[Any] | None = [None] * self.world if self.first else None
        dist.gather_object(value, box, dst=0)
        return box or []


@contextmanager
def ranks() -> Iterator[Ranks]:
    """Join the process group that torchrun describes in the environment; without torchrun this is the only rank.

    An error may be this rank's alone, while others wait in a collective that it will never join. Gloo ends their wait when the group is
    destroyed; NCCL would make this rank wait for them, so on CUDA the group is left as it is, and whoever ends the process does it at once
    (``train.__main__``): torchrun then stops the others.
    """
    world, rank, local = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0")))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        if local >= torch.cuda.device_count():
            raise GristmillError(
                f"rank {rank} is number {local} on this machine, and {torch.cuda.device_count()} CUDA devices are visible",
                where="LOCAL_RANK",
                fix="start as many ranks as there are devices (torchrun --nproc-per-node), or let every rank see all of them",
            )
        torch.cuda.set_device(device)
    if world == 1:
        yield Ranks(0, 1, device)
        return
    # Objects (tables, signals) cross between CPUs by gloo: over NCCL they would take the devices' memory.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=timedelta(minutes=30))
    together = device.type != "cuda"
    try:
        yield Ranks(rank, world, device)
        dist.barrier()  # a rank that tears down while another still talks to it aborts
        together = True
    except Interrupted:
        together = True
        raise
    finally:
        if together:
            _leave_group()


def _leave_group() -> None:
    # Ends the group's threads if nothing holds it: one that gives a tensor back while the interpreter ends aborts the process.
    dist.destroy_process_group()
    gc.collect()
