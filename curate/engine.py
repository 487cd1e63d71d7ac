"""Runs shard functions on one machine: threads for kernels that release the GIL, spawned processes for Python-bound work."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from typing import Any, Protocol


class Executor(Protocol):
    """Whatever can run shard functions; results come in any order, and a shard may run more than once."""

    def run(self, function: Callable[..., Any], tasks: Sequence[Any], processes: bool) -> Iterator[tuple[int, Any]]:
        """Yield (position of the task, its result) as they finish; raise the first failure after cancelling what has not begun."""
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
        if workers <= 1:
            yield from ((position, function(task)) for position, task in enumerate(tasks))
            return
        pool: Pool = _processes(workers) if processes else ThreadPoolExecutor(workers)
        try:
            positions = {pool.submit(function, task): position for position, task in enumerate(tasks)}
            for future in as_completed(positions):
                yield positions[future], future.result()
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
