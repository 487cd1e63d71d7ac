"""A process beside each flow run that a worker started: it tells Prefect of the run's end when the run's own process was killed.

Prefect's process worker reports a flow whose process dies, while it lives itself. At SIGTERM it interrupts itself, and kills its flows'
processes (SIGKILL, within some 10 ms, seen in system calls) and leaves, before they could say that they crash. Without the watcher such a
run would stay Running until the automation that misses its heartbeats.

Failure model. The watcher reads from a pipe whose other end the flow's process alone holds: an orderly exit writes a byte, a death of any
kind closes it. It leads a session of its own and ignores SIGTERM and Ctrl-C, which whoever stops a service sends to all its processes, and
ends by itself soon after. Who else reports (the flow, a living worker) comes first; a run that began anew since is let be. Killed together
with the machine it reports nothing: then the automation does.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

Json = Any

VARIABLE = "PREFECT__FLOW_RUN_ID"
"""Where a worker tells a process of the flow run that it is for."""
OTHERS_SECONDS = 3.0
TRY_SECONDS = 120.0
WORDS = "The process of the flow run was killed, and nobody else has said so."


@functools.cache
def be_watched() -> None:
    """Start the watcher of this process, once, if a worker started it; it ends with the process."""
    run = os.environ.get(VARIABLE)
    if not run:
        return
    from pipelines.trainer import environment

    reading, writing = os.pipe()  # no child inherits either
    command = [sys.executable, "-m", "pipelines.watch", run]
    quiet = subprocess.DEVNULL
    subprocess.Popen(command, stdin=reading, stdout=quiet, stderr=quiet, env=environment(), start_new_session=True)
    os.close(reading)
    atexit.register(_say_done, writing)


def _say_done(descriptor: int) -> None:
    with suppress(OSError):
        os.write(descriptor, b"d")


def main(run: str) -> None:
    """Wait for the end of the process that holds the other end of standard input; close its flow run if that was no orderly exit."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.read(0, 1):
        return
    died = datetime.now(UTC)
    deadline = time.monotonic() + TRY_SECONDS
    while time.monotonic() < deadline:
        time.sleep(OTHERS_SECONDS)
        with suppress(OSError, ValueError):  # the server is busy, or gone
            close_runs([run], died)
            return


def close_runs(runs: Sequence[str], died: datetime) -> list[str]:
    """Crash the flow runs that say they run since before a moment, and those inside them; returns which.

    Raises:
        OSError: the server does not answer.
        ValueError: what answers is no Prefect server.
    """
    from pipelines.prefect_api import ask_server

    closed: list[str] = []
    key = "id"
    while runs:
        found: list[Json] = ask_server("flow_runs/filter", {"flow_runs": {key: {"any_": list(runs)}}}, TRY_SECONDS)
        mine = [each for each in found if _is_left(each["state"], died)]
        for each in mine:
            # Cancelling: its runner would have ended that, had it lived.
            ended = "CANCELLED" if each["state"]["type"] == "CANCELLING" else "CRASHED"
            state = {"type": ended, "name": ended.title(), "message": WORDS}
            ask_server(f"flow_runs/{each['id']}/set_state", {"state": state, "force": True}, TRY_SECONDS)
            closed.append(each["id"])
        # What is inside a run that begins anew, or is paused, belongs to its next process.
        runs = [each["id"] for each in found if each in mine or each["state"]["type"] in ("CRASHED", "CANCELLED", "FAILED")]
        key = "parent_flow_run_id"
    return closed


def _is_left(state: Json, died: datetime) -> bool:
    began = datetime.fromisoformat(state["timestamp"].replace("Z", "+00:00"))
    return state["type"] in ("RUNNING", "CANCELLING") and began <= died


if __name__ == "__main__":
    main(sys.argv[1])
