"""Where shard functions run: on this machine, or on a Dask cluster whose workers all see the lake under the same path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from curate.engine import Died, Executor, LocalExecutor
from schemas.errors import GristmillError

Client = Any
"""``distributed.Client``, most of which has no types."""

IN_FLIGHT = 4
"""Shards sent ahead for each thread of the cluster: enough that none waits, few enough for the scheduler whatever their number."""


@contextmanager
def engine(name: str, workers: int) -> Iterator[Executor]:
    """The executor of an engine, until the block ends.

    Args:
        name: local, or dask: the cluster whose scheduler DASK_SCHEDULER_ADDRESS names, else one of processes on this machine.
        workers: shards worked on at once; 0 is one for each core. A cluster that is there already decides for itself.

    Raises:
        GristmillError: the packages are absent, or no scheduler answers.
    """
    if name == "local":
        yield LocalExecutor(workers)
        return
    with _client(LocalExecutor(workers).workers) as client:
        yield DaskExecutor(client)


@contextmanager
def _client(workers: int) -> Iterator[Client]:
    try:
        import dask
        import distributed
    except ImportError as error:
        raise GristmillError("the dask engine needs a package", where="--engine", fix="pip install 'gristmill[dask]'") from error
    connect: Any = distributed.Client
    address = dask.config.get("scheduler-address", None)
    here = {"n_workers": workers, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None, "silence_logs": "CRITICAL"}
    try:
        client = connect(address, timeout="10s") if address else connect(**here)
    except OSError as error:
        fix = "start `dask scheduler` there, or unset DASK_SCHEDULER_ADDRESS"
        raise GristmillError(f"no scheduler answers: {error}", where=str(address), fix=fix) from error
    with client:
        yield client


class DaskExecutor:
    """Runs shards on a Dask cluster; a worker that dies has its shards done by others, since each shard may run again."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def run(self, function: Callable[..., Any], tasks: Sequence[Any], processes: bool) -> Iterator[tuple[int, Any]]:
        """See ``Executor.run``. A task that killed more workers than the scheduler's ``allowed-failures`` is ``Died``."""
        import distributed

        threads = sum(self.client.nthreads().values())
        ahead = iter(enumerate(tasks))
        positions: dict[Any, int] = {}
        futures: Any = distributed.as_completed
        done = futures(loop=self.client.loop)

        def send() -> None:
            for position, task in ahead:
                future = self.client.submit(function, task, pure=False)
                positions[future] = position
                done.add(future)
                return

        try:
            for _ in range(IN_FLIGHT * max(1, threads)):
                send()
            for future in done:
                position = positions.pop(future)
                send()
                try:
                    yield position, future.result()
                except distributed.KilledWorker as error:
                    yield position, Died(error.allowed_failures + 1)
        finally:
            self.client.cancel(list(positions))
