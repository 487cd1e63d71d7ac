"""Where shard functions run: on this machine, or on a Dask cluster whose workers all see the lake under the same path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from curate.engine import Died, Executor, LocalExecutor
from schemas.errors import GristmillError

Client = Any
"""``distributed.Client``, most of which has no types."""

IN_FLIGHT = 4
"""Shards sent ahead for each thread of the cluster: enough that none waits, few enough for the scheduler whatever their number."""
PROOFS = 3
"""How often a suspect must die alone."""


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
        executor = LocalExecutor(workers)
        pa.set_cpu_count(executor.workers)  # a shard's own reading is no thread more
        yield executor
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
    if address:
        try:
            client = connect(address)  # waits as long as distributed.comm.timeouts.connect says
        except OSError as error:
            fix = "start `dask scheduler` there, or unset DASK_SCHEDULER_ADDRESS"
            raise GristmillError(f"no scheduler answers: {error}", where=str(address), fix=fix) from error
        with client:
            yield client
        return
    # Without an address of its own the scheduler takes port 8787 even where it shows no dashboard.
    scheduler = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    here = {"n_workers": workers, "threads_per_worker": 1, "host": "127.0.0.1", "silence_logs": "CRITICAL", "scheduler_kwargs": scheduler}
    with (
        TemporaryDirectory(prefix="gristmill-dask-", dir=dask.config.get("temporary-directory", None)) as scratch,
        connect(**here, local_directory=scratch) as client,
    ):
        yield client


class DaskExecutor:
    """Runs shards on a Dask cluster; a worker that dies has its shards done by others, since each shard may run again."""

    workers = 0

    def __init__(self, client: Client) -> None:
        self.client = client

    def run(self, function: Callable[..., Any], tasks: Sequence[Any], processes: bool) -> Iterator[tuple[int, Any]]:
        """See ``Executor.run``. A task is ``Died`` if it alone killed more workers than the scheduler's ``allowed-failures``.

        The scheduler blames every task that waits on a worker which dies. Whoever was blamed so often that it was given up is therefore
        done again with nothing beside it: that kills nobody, unless it was the one. A worker whose death the scheduler has not noticed yet
        can still be given a task, so only what dies ``PROOFS`` times has killed.
        """
        suspects = []
        for position, result in self._results(function, enumerate(tasks), IN_FLIGHT * max(1, sum(self.client.nthreads().values()))):
            if isinstance(result, Died):
                suspects.append(position)
            else:
                yield position, result
        for position in sorted(suspects):
            for _ in range(PROOFS):
                ((_, result),) = self._results(function, [(position, tasks[position])], 1)
                if not isinstance(result, Died):
                    break
            yield position, result

    def _results(self, function: Callable[..., Any], tasks: Iterable[tuple[int, Any]], at_once: int) -> Iterator[tuple[int, Any]]:
        """Results of tasks, of which so many are sent at once; ``Died`` for those that the scheduler gave up."""
        import distributed

        ahead = iter(tasks)
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
            for _ in range(at_once):
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
