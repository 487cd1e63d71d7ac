"""The watcher of a flow run's process, against a server that only notes what it is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EARLIER, LATER = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"


def run(name: str, state: str, since: str = EARLIER) -> dict[str, Any]:
    return {"id": name, "state": {"type": state, "timestamp": since}}


@contextmanager
def prefect(runs: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Address of a server that knows these runs, by the id of the run that they are or are in, and what states it was told."""
    told: list[tuple[str, str]] = []

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            value = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer: Any = {}
            if self.path.endswith("/set_state"):
                told.append((self.path.split("/")[-2], value["state"]["type"]))
            else:
                key, names = next(iter((key, each["any_"]) for key, each in value["flow_runs"].items()))
                answer = [each for name in names for each in runs.get(f"{key}:{name}", [])]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/api", told
        server.shutdown()


ENDS = {"killed": "os.kill(os.getpid(), 9)", "left": "sys.exit(1)"}
CODE = """
import os, subprocess, sys
started = subprocess.Popen
def popen(*arguments, **options):
    made = started(*arguments, **options)
    print(made.pid, flush=True)
    return made
subprocess.Popen = popen
from pipelines.watch import be_watched
be_watched()
be_watched()
"""


@pytest.mark.parametrize("end", ENDS)
def test_a_killed_flow_is_told_of_and_one_that_left_is_not(end: str) -> None:
    runs = {"id:outer": [run("outer", "RUNNING")], "parent_flow_run_id:outer": [run("in", "RUNNING"), run("done", "COMPLETED")]}
    with prefect(runs) as (address, told):
        variables = {**os.environ, "PREFECT__FLOW_RUN_ID": "outer", "PREFECT_API_URL": address, "PYTHONPATH": str(ROOT)}
        made = subprocess.run([sys.executable, "-c", CODE + ENDS[end]], capture_output=True, text=True, env=variables)
        watchers = made.stdout.split()
        assert len(watchers) == 1, made.stderr
        wait_for_end(int(watchers[0]))
    assert told == ([("outer", "CRASHED"), ("in", "CRASHED")] if end == "killed" else [])


def wait_for_end(process: int) -> None:
    """Wait for a process that is no child of this one."""
    import psutil

    if psutil.pid_exists(process):
        psutil.wait_procs([psutil.Process(process)], 120)
    assert not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ({"id:outer": [run("outer", "RUNNING", LATER)], "parent_flow_run_id:outer": [run("in", "RUNNING")]}, []),
        ({"id:outer": [run("outer", "PAUSED")], "parent_flow_run_id:outer": [run("in", "RUNNING")]}, []),
        ({"id:outer": [run("outer", "CANCELLING")]}, [("outer", "CANCELLED")]),
        ({"id:outer": [run("outer", "CRASHED")], "parent_flow_run_id:outer": [run("in", "RUNNING")]}, [("in", "CRASHED")]),
    ],
)
def test_only_what_is_left_is_closed(runs: dict[str, Any], told: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import UTC, datetime

    from pipelines.watch import close_runs

    with prefect(runs) as (address, heard):
        monkeypatch.setenv("PREFECT_API_URL", address)
        assert close_runs(["outer"], datetime.now(UTC)) == [name for name, _ in told]
    assert heard == told
