"""Runs a function in several processes that are the ranks of one gloo group."""

import gc
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group: its default arguments would keep it for ever
import torch.multiprocessing as mp


def run_ranks(function: Callable[..., None], world: int, folder: Path, *arguments: object) -> None:
    """Call ``function(rank, world, *arguments)`` in ``world`` spawned processes that meet in a file of the folder."""
    mp.spawn(_rank, (function, world, f"file://{folder}/rendezvous", arguments), nprocs=world)


def _rank(rank: int, function: Callable[..., None], world: int, address: str, arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    function(rank, world, *arguments)
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()  # frees a group that a cycle holds: its threads would abort the interpreter's end
