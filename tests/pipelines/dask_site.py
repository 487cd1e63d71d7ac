"""A Dask cluster of real processes on loopback: a scheduler, and workers that have all arrived."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from distributed import Client

REPOSITORY = Path(__file__).parents[2]
PATIENT = {f"DASK_DISTRIBUTED__COMM__TIMEOUTS__{name}": "600s" for name in ("CONNECT", "TCP")}
"""Processes may be starved for as long."""


@contextmanager
def cluster(folder: Path, workers: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Address of a scheduler with so many workers, each with variables of its own, until the block ends."""
    variables = {**os.environ, **PATIENT, "PYTHONPATH": str(REPOSITORY)}
    where, processes = folder / "scheduler.json", list[subprocess.Popen[bytes]]()

    def start(part: str, *options: str, **own: str) -> None:
        command = [sys.executable, "-m", f"distributed.cli.dask_{part}", *options, "--no-dashboard"]
        processes.append(subprocess.Popen(command, env=variables | own, stderr=subprocess.DEVNULL, cwd=folder))

    try:
        # A dashboard that is not shown takes port 8787 all the same, which serves other pages too.
        start("scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(where))
        while not (address := _address(where)):
            assert processes[0].poll() is None
            time.sleep(0.1)
        for own in workers:
            start("worker", address, "--nthreads", "1", "--no-nanny", "--local-directory", str(folder), **own)
        with Client(address, timeout="600s") as client:
            client.wait_for_workers(len(workers), timeout=600)
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _address(where: Path) -> str:
    """What a scheduler's file says, once it is written."""
    try:
        return str(json.loads(where.read_text())["address"])
    except (FileNotFoundError, ValueError):
        return ""
