"""A clone of the project that nobody edited, with a real Prefect server and worker, all on loopback; and what any such site must do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from pipelines.trainer import live_trainer
from tests.pipelines.tiny import write_project
from tests.train.hold import HOLD, hold_file

ROOT = Path(__file__).parent.parent.parent
WAIT = 1200.0
"""Seconds after which something on a busy machine no longer counts as slow."""
PREFECT = Path(sys.executable).parent / "prefect"


class Site:
    """A clone of the project, a server and a worker."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        quiet = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_WORKER_QUERY_SECONDS": "1"}
        patient = {"PREFECT_API_REQUEST_TIMEOUT": "300", "PREFECT_SERVER_DATABASE_TIMEOUT": "300"}
        patient["PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED"] = "false"  # a night may begin while the tests run
        home = {"PREFECT_HOME": str(folder.parent / "prefect"), "PYTHONPATH": str(ROOT)}
        self.environment = {**os.environ, **quiet, **patient, **home, **settings}
        self.started: list[subprocess.Popen[bytes]] = []

    def start_server(self) -> None:
        """Start a server, on another port when a process took the first before it listened there."""
        for _ in range(5):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            self.api = f"http://127.0.0.1:{port}/api"
            self.environment["PREFECT_API_URL"] = self.api
            self.start("server", "start", "--host", "127.0.0.1", "--port", str(port))
            server = self.started[-1]
            wait_for("the server is up or has failed", lambda server=server: server.poll() is not None or self._answers())
            if server.poll() is None:
                return
            self.started.pop()
        raise AssertionError((self.folder.parent / "server.log").read_text())

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.api}/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def start(self, *arguments: str) -> None:
        log = (self.folder.parent / f"{arguments[0]}.log").open("wb")
        self.started.append(
            subprocess.Popen([PREFECT, *arguments], cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        )

    def prefect(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [PREFECT, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=WAIT)
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done

    def post(self, path: str, value: Any) -> Any:
        request = urllib.request.Request(
            f"{self.api}/{path}", json.dumps(value).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            return json.loads(answer.read() or b"null")

    def runs(self) -> dict[str, list[str]]:
        """Names of flows, with the states of their runs."""
        flows = {flow["id"]: flow["name"] for flow in self.post("flows/filter", {})}
        found: dict[str, list[str]] = {}
        for run in self.post("flow_runs/filter", {}):
            found.setdefault(flows[run["flow_id"]], []).append(run["state"]["type"])
        return found

    def state(self, run_id: str) -> str:
        """Type of a flow run's state."""
        with urllib.request.urlopen(f"{self.api}/flow_runs/{run_id}", timeout=WAIT) as answer:
            return str(json.load(answer)["state"]["type"])

    def live(self) -> list[str]:
        """Names of flow runs, those inside others too, that say they run."""
        return [run["name"] for run in self.post("flow_runs/filter", {}) if run["state"]["type"] in ("RUNNING", "CANCELLING", "PENDING")]

    def stop_worker(self, number: signal.Signals) -> None:
        """Send the worker and all that it started a signal, and wait until its runs have ended, as a service manager does.

        The worker itself is then killed: Prefect's may poll on after SIGTERM.
        """
        worker, process = self.worker(), self.started.pop()
        runs = worker.children(recursive=True)
        for each in (worker, *runs):
            each.send_signal(number)
        alive = psutil.wait_procs(runs, WAIT)[1]
        process.kill()
        process.wait()
        assert alive == []

    def worker(self) -> psutil.Process:
        return psutil.Process(self.started[-1].pid)

    def start_worker(self) -> None:
        self.start("worker", "start", "--pool", "local", "--limit", "4")

    def artifacts(self) -> set[str]:
        return {artifact["key"] for artifact in self.post("artifacts/filter", {})}

    def events(self) -> set[str]:
        """Kinds of the product's own events that the server has."""
        found = self.post("events/filter", {"filter": {"event": {"prefix": ["dataset.", "stage.", "alarm."]}}, "limit": 50})
        return {event["event"] for event in found["events"]}

    def close(self) -> None:
        for process in reversed(self.started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(what: str, holds: Any) -> None:
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@contextmanager
def running_site(folder: Path, settings: Mapping[str, str]) -> Iterator[Site]:
    """A site whose server, with these settings, is up, whose deployments are made, and whose worker works."""
    write_project(folder / "recipes")
    (folder / "recipes/recipe.yaml").rename(folder / "recipes/python.yaml")
    shutil.copy(ROOT / "prefect.yaml", folder)
    site = Site(folder, settings)
    try:
        site.start_server()
        site.prefect("work-pool", "create", "local", "--type", "process")
        deployed = site.prefect("--no-prompt", "deploy", "--all")
        assert "failed" not in deployed.stdout.lower()
        site.start_worker()
        yield site
    finally:
        site.close()


class Training:
    """Runs of the deployment ``curriculum`` that train one stage, one after another; each waits to be stopped until ``let_end``.

    Args:
        site: where.
        run: name of the training run.
        tokens: of its first stage, which does not stop early.
    """

    def __init__(self, site: Site, run: str, tokens: int) -> None:
        changes = [f"stages.0.tokens={tokens}", f"stages.0.training={{callbacks: ['{HOLD}']}}", "sources.web.max_epochs=4"]
        settings = {"recipe": "recipes/python.yaml", "lake": "lake", "changes": changes, "run": run}
        self.site, self.value = site, f"settings={json.dumps(settings)}"
        self.folder = site.folder / f"lake/runs/{run}/0-first"
        hold_file(site.folder / "lake").write_text("8")  # steps, in which each has saved a checkpoint

    def let_end(self) -> None:
        """Let the runs that are started from now on train to their end."""
        hold_file(self.site.folder / "lake").unlink()

    def start(self) -> str:
        """Start a flow run; returns its id."""
        started = self.site.prefect("deployment", "run", "curriculum/curriculum", "-p", self.value)
        return next(word for word in started.stdout.split() if word.count("-") == 4 and len(word) == 36)

    def wait(self, attempt: int) -> None:
        """Wait until this attempt (from 0) has saved a checkpoint."""
        wait_for(f"attempt {attempt} trains", lambda: list((self.folder / "checkpoints").glob(f"a{attempt:04d}-*")))

    def has_saved(self) -> bool:
        """Whether no trainer is at work and the last one ended by saving."""
        last = (self.folder / "trainer.log").read_text().strip().splitlines()[-1]
        return live_trainer(self.folder) is None and last.startswith("saved before step") and not (self.folder / "outcome.json").exists()

    def cancel(self, run_id: str) -> None:
        """Cancel a flow run, and wait until it is over."""
        self.site.post(f"flow_runs/{run_id}/set_state", {"state": {"type": "CANCELLING"}})
        wait_for("the run is cancelled", lambda: self.site.state(run_id) == "CANCELLED")
        assert self.has_saved()


def cancel_and_resume(site: Site) -> None:
    """Cancelling a training run lets it save, and a rerun finishes."""
    training = Training(site, "cancelled", 40_000)
    run_id = training.start()
    training.wait(0)
    training.cancel(run_id)
    training.let_end()
    done = site.prefect("deployment", "run", "curriculum/curriculum", "-p", training.value, "--watch")
    assert "Completed" in done.stdout, done.stdout
    assert (training.folder.parent / "1-second/outcome.json").is_file()
    assert list((training.folder / "events").glob("a0001-*")), "the second run resumed the first stage"
