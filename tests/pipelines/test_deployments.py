"""prefect.yaml from a folder that nobody edited, on a real Prefect server with a real worker, all on loopback."""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.trainer import live_trainer
from tests.pipelines.tiny import write_project

ROOT = Path(__file__).parent.parent.parent
PREFECT = Path(sys.executable).parent / "prefect"
pytestmark = pytest.mark.timeout(280)


class Site:
    """A clone of the project, a server and a worker."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = folder
        self.api = f"http://127.0.0.1:{self.port}/api"
        quiet = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_WORKER_QUERY_SECONDS": "1"}
        home = {"PREFECT_HOME": str(folder.parent / "prefect"), "PREFECT_API_URL": self.api, "PYTHONPATH": str(ROOT)}
        self.environment = {**os.environ, **quiet, **home}
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> None:
        log = (self.folder.parent / f"{arguments[0]}.log").open("wb")
        self.started.append(
            subprocess.Popen([PREFECT, *arguments], cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        )

    def prefect(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [PREFECT, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done

    def post(self, path: str, value: Any) -> Any:
        request = urllib.request.Request(
            f"{self.api}/{path}", json.dumps(value).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read() or b"null")

    def runs(self) -> dict[str, list[str]]:
        """Names of flows, with the states of their runs."""
        flows = {flow["id"]: flow["name"] for flow in self.post("flows/filter", {})}
        found: dict[str, list[str]] = {}
        for run in self.post("flow_runs/filter", {}):
            found.setdefault(flows[run["flow_id"]], []).append(run["state"]["type"])
        return found

    def close(self) -> None:
        for process in reversed(self.started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(what: str, holds: Any, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site") / "clone"
    write_project(folder / "recipes")
    (folder / "recipes/recipe.yaml").rename(folder / "recipes/python.yaml")
    shutil.copy(ROOT / "prefect.yaml", folder)
    site = Site(folder)
    try:
        site.start("server", "start", "--host", "127.0.0.1", "--port", str(site.port))
        wait_for("the server is up", lambda: _healthy(site))
        site.prefect("work-pool", "create", "local", "--type", "process")
        deployed = site.prefect("--no-prompt", "deploy", "--all")
        assert "failed" not in deployed.stdout.lower()
        site.start("worker", "start", "--pool", "local", "--limit", "4")
        yield site
    finally:
        site.close()


def _healthy(site: Site) -> bool:
    try:
        with urllib.request.urlopen(f"{site.api}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_all_deployments_are_made_and_work_from_the_folder_they_were_deployed_in(site: Site) -> None:
    found = {each["name"]: each for each in site.post("deployments/filter", {})}
    assert set(found) == {"curate", "stage", "train-stage", "curriculum"}
    for each in found.values():
        assert each["pull_steps"] == [{"prefect.deployments.steps.set_working_directory": {"directory": str(site.folder)}}]


def test_a_wrong_value_is_refused_at_submission_with_its_field(site: Site) -> None:
    value = json.dumps({"recipe": "recipes/python.yaml", "workers": -1})
    refused = site.prefect("deployment", "run", "curate/curate", "-p", f"settings={value}", check=False)
    assert refused.returncode != 0
    assert "workers" in refused.stdout + refused.stderr


def test_a_deployed_curation_shows_its_subflows_and_publishes_a_snapshot(site: Site) -> None:
    done = site.prefect("deployment", "run", "curate/curate", "--watch")
    assert "Completed" in done.stdout, done.stdout
    assert (site.folder / "lake/snapshots/current.json").is_file()
    states = site.runs()
    assert states["filter"] == states["dedup"] == ["COMPLETED"]
    artifacts = {artifact["key"] for artifact in site.post("artifacts/filter", {})}
    assert {"funnel", "progress-read", "progress-signals"} <= artifacts


def test_cancelling_a_training_run_lets_it_save_and_a_rerun_finishes(site: Site) -> None:
    changes = ["stages.0.tokens=120000", "stages.0.training={}", "sources.web.max_epochs=4"]
    settings = {"recipe": "recipes/python.yaml", "lake": "lake", "changes": changes}
    value = f"settings={json.dumps(settings)}"
    started = site.prefect("deployment", "run", "curriculum/curriculum", "-p", value)
    run_id = next(word for word in started.stdout.split() if word.count("-") == 4 and len(word) == 36)
    folder = site.folder / "lake/runs/tiny/0-first"
    wait_for("training runs", lambda: list((folder / "checkpoints").glob("a*")))
    site.post(f"flow_runs/{run_id}/set_state", {"state": {"type": "CANCELLING"}})
    wait_for("the run is cancelled", lambda: "CANCELLED" in site.runs()["curriculum"])
    assert live_trainer(folder) is None and not (folder / "outcome.json").exists()
    assert "Traceback" not in (folder / "trainer.log").read_text()
    done = site.prefect("deployment", "run", "curriculum/curriculum", "-p", value, "--watch")
    assert "Completed" in done.stdout, done.stdout
    assert (site.folder / "lake/runs/tiny/1-second/outcome.json").is_file()
    assert list((folder / "events").glob("a0001-*")), "the second run resumed the first stage"
