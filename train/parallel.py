"""Ranks: one process, or several under torchrun that share every step's rows and sum their gradients."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported after the group is made, its default arguments would hold it for ever
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Ranks:
    """This process among all: its rank, their number, and its device."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which alone writes files and speaks."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over ranks, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return flag if self.world == 1 else bool(self.sum(torch.tensor(float(flag), device=self.device)).item() > 0)

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum gradients over ranks, in one flat exchange; a rank that had no rows counts as zeros. Shards are summed already."""
        if self.world == 1:
            return
        parameters = [p for p in parameters if p.requires_grad]
        if isinstance(parameters[0], DTensor):
            return
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p, dtype=p.grad_dtype)
        flat = self.sum(torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None]))
        for p, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
            p.grad = part.view_as(p)

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
    """Join the process group that torchrun describes in the environment; without torchrun this is the only rank."""
    world, rank, local = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0")))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world == 1:
        yield Ranks(0, 1, device)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(minutes=30))
    try:
        yield Ranks(rank, world, device)
        dist.barrier()  # a rank that tears down while another still talks to it aborts
    finally:
        # Ends the group's threads if nothing holds it: one that gives a tensor back while the interpreter ends aborts the process.
        dist.destroy_process_group()
        gc.collect()
