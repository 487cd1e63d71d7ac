"""Runs shard functions on one machine: threads for kernels that release the GIL, spawned processes for Python-bound work."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

DEATHS = 2
"""Processes of its own that a task may kill before it is given up."""


@dataclass(frozen=True)
class Died:
    """In place of a result: the task killed the process that ran it, this often."""

    times: int


class Executor(Protocol):
    """Whatever can run shard functions; results come in any order, and a shard may run more than once.

    Attributes:
        workers: shards worked on at once, which a shard that is alone may use as threads; 0 where it takes the cores it finds.
    """

    workers: int

    def run(self, function: Callable[..., Any], tasks: Sequence[Any], processes: bool) -> Iterator[tuple[int, Any]]:
        """Yield (position of the task, its result or ``Died``) as they finish; a failure cancels what has not begun and is raised."""
        ...


class LocalExecutor:
    """The executor of one machine.

    Args:
        workers: shards worked on at once; 0 means one for each core.
    """

    def __init__(self, workers: int = 0) -> None:
        self.workers = workers or os.cpu_count() or 1

    def run(self, function: Callable[..., Any], tasks: Sequence[Any], processes: bool) -> Iterator[tuple[int, Any]]:
        """See ``Executor.run``."""
        workers = min(self.workers, len(tasks))
        if self.workers == 1 or not workers or (workers == 1 and not processes):  # one task that may kill its process still has its own
            yield from ((position, function(task)) for position, task in enumerate(tasks))
            return
        if processes:
            yield from _in_processes(function, tasks, workers)
            return
        pool = ThreadPoolExecutor(workers)
        try:
            positions = {pool.submit(function, task): position for position, task in enumerate(tasks)}
            for future in as_completed(positions):
                yield positions[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _in_processes(function: Callable[..., Any], tasks: Sequence[Any], workers: int) -> Iterator[tuple[int, Any]]:
    """Run tasks in a pool; when a process of it dies, run what is left one by one, so that the task that kills is known."""
    left = dict(enumerate(tasks))
    pool, positions = _processes(workers), dict[Any, int]()
    try:
        with suppress(BrokenProcessPool):  # one of the first may be dead already
            for position, task in left.items():
                positions[pool.submit(function, task)] = position
        for future in as_completed(positions):
            try:
                result = future.result()
            except BrokenProcessPool:
                continue
            del left[positions[future]]
            yield positions[future], result
    finally:
        pool.shutdown(cancel_futures=True)
    yield from _one_by_one(function, left)


def _one_by_one(function: Callable[..., Any], left: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
    """Run tasks in a process that has one at a time, anew after each death."""
    pool = _processes(1)
    try:
        for position, task in left.items():
            result: Any = Died(DEATHS)
            for _ in range(DEATHS):
                try:
                    result = pool.submit(function, task).result()
                    break
                except BrokenProcessPool:
                    pool = _processes(1)
            yield position, result
    finally:
        pool.shutdown(cancel_futures=True)


def _processes(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_die_with_parent, initargs=(os.getpid(),)
    )


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to end this worker when the coordinator dies, and leave Ctrl-C to the coordinator."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(1, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
