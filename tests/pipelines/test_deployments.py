"""prefect.yaml from a folder that nobody edited, on a real Prefect server with a real worker, all on loopback."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from pipelines.catalog import open_catalog
from schemas.manifest import read_snapshot
from tests.pipelines.prefect_site import ROOT, Site, Training, cancel_and_resume, running_site, wait_for

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site") / "clone", {}) as site:
        yield site


def test_all_deployments_are_made_and_work_from_the_folder_they_were_deployed_in(site: Site) -> None:
    found = {each["name"]: each for each in site.post("deployments/filter", {})}
    assert set(found) == {"curate", "ingest-nightly", "stage", "train-stage", "curriculum", "report", "ablate", "cleanup"}
    assert {name for name, each in found.items() if each["schedules"]} == {"ingest-nightly", "cleanup"}
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
    steps = Counter((run["flow_run_id"], run["name"]) for run in site.post("task_runs/filter", {}) if "shards)" in run["name"])
    assert set(steps.values()) == {1} and any(name.startswith("signals") for _, name in steps), "a step is one task, whatever its shards"
    assert states["filter"] == states["dedup"] == ["COMPLETED"]
    assert {"funnel", "progress-read", "progress-signals"} <= site.artifacts()


def test_a_published_dataset_is_trained_on_without_anyone_asking(site: Site) -> None:
    """The automation of `curriculum`, made by `prefect deploy`; its run is named by the snapshot that was published."""
    snapshot = json.loads((site.folder / "lake/snapshots/current.json").read_text())["id"]
    run = site.folder / f"lake/runs/d{snapshot[:12]}"
    wait_for("the automation trains", lambda: (run / "1-second/outcome.json").is_file())
    wait_for("the run is complete", lambda: site.runs()["curriculum"] == ["COMPLETED"])
    name = f"d{snapshot[:12]}"
    assert {f"plan-{name}", f"loss-{name}-first", f"loss-picture-{name}-second"} <= site.artifacts()
    assert (site.folder / "lake/report.html").is_file() and "report" in site.artifacts()
    wait_for("events are there", lambda: {"dataset.published", "stage.stopped-early", "stage.finished"} <= site.events())


def test_cancelling_a_training_run_lets_it_save_and_a_rerun_finishes(site: Site) -> None:
    cancel_and_resume(site)


@pytest.mark.soak
def test_a_pause_and_a_shutdown_of_the_worker_let_training_save_and_it_goes_on(site: Site) -> None:
    training = Training(site, "stopped", 120_000)
    run_id = training.start()
    training.wait(0)
    site.post(f"flow_runs/{run_id}/set_state", {"state": {"type": "PAUSED", "name": "Paused"}, "force": True})
    wait_for("the paused run has saved", training.has_saved)
    assert site.state(run_id) == "PAUSED"
    wait_for("its process is over", lambda: not site.worker().children())
    assert site.post(f"flow_runs/{run_id}/resume", {})["status"] == "ACCEPT"
    training.wait(1)
    site.stop_worker(signal.SIGTERM)
    assert training.has_saved() and site.live() == [] and site.state(run_id) == "CRASHED"
    site.start_worker()
    run_id = training.start()
    training.wait(2)
    training.cancel(run_id)
    training.let_end()
    assert "progress-train-stopped-first" in site.artifacts()


def test_the_heartbeat_automation_is_one_that_the_server_takes(site: Site) -> None:
    shutil.copy(ROOT / "pipelines/templates/automations.yaml", site.folder)
    site.prefect("automation", "create", "--from-file", "automations.yaml")
    found = {each["name"]: each for each in site.post("automations/filter", {})}
    assert found["gristmill-heartbeat"]["enabled"] and found["gristmill-heartbeat"]["actions"][0]["state"] == "CRASHED"
    assert any(name.startswith("curriculum") for name in found), "the one that trains on what is published"


@pytest.mark.soak
def test_a_flow_run_that_was_killed_with_its_worker_does_not_stay_running(site: Site) -> None:
    """Nor do the runs inside it; the automation is the one made above, which waits for two minutes."""
    training = Training(site, "killed", 120_000)
    run_id = training.start()
    training.wait(0)
    site.stop_worker(signal.SIGKILL)
    assert len(site.live()) == 2, "the curriculum and the stage in it"
    wait_for("the automation has seen it", lambda: site.live() == [])
    assert site.state(run_id) == "CRASHED"
    site.start_worker()
    run_id = training.start()
    training.wait(1)
    training.cancel(run_id)
    training.let_end()


def test_each_night_takes_only_new_files_and_compares_them_with_what_was_kept(site: Site) -> None:
    nightly = 'extends: python.yaml\nname: nightly\nsources: {web: {paths: ["web*.jsonl"]}}\nalarms: {drop_share: 0.5}\nstages: []\n'
    (site.folder / "recipes/nightly.yaml").write_text(nightly)
    value = f"settings={json.dumps({'recipe': 'recipes/nightly.yaml', 'lake': 'nightly'})}"
    lake, web = site.folder / "nightly", site.folder / "recipes/web.jsonl"

    def night() -> str:
        done = site.prefect("deployment", "run", "ingest/ingest-nightly", "-p", value, "--watch")
        assert "Completed" in done.stdout, done.stdout
        return read_snapshot(lake).id

    def verdicts() -> dict[str, list[str | None]]:
        with open_catalog(lake) as db:
            rows = db.execute("SELECT id, state, reason, kept_doc_id FROM documents JOIN verdicts USING (doc_id)").fetchall()
        return {name: found for name, *found in rows}

    first = night()
    before = verdicts()
    assert night() == first, "a night without new files changes nothing"
    old = [json.loads(line) for line in web.read_text().splitlines()[:5]]
    copies = [{"id": f"copy-{n}", "text": f"{row['text']} once more"} for n, row in enumerate(old)]
    new = {"id": "new", "text": " ".join(word[::-1] for row in old for word in row["text"].split()[:30])}
    (site.folder / "recipes/web-2.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*copies, new]))
    assert night() != first
    after = verdicts()
    assert {name: after[name] for name in before} == before, "what is there is never judged anew"
    assert set(after) - set(before) == {"new", *(row["id"] for row in copies)} and after["new"][0] == "kept"
    assert all(after[row["id"]][1] in ("near_duplicate", "near_holdout") for row in copies), after
    wait_for("the alarm is told: most of the night's documents are copies", lambda: "alarm.drop_rate" in site.events())


def test_cleanup_counts_and_the_report_is_written_and_linked(site: Site) -> None:
    done = site.prefect("deployment", "run", "cleanup/cleanup", "-p", 'settings={"lake": "lake", "days": 0, "dry_run": true}', "--watch")
    assert "Completed" in done.stdout, done.stdout
    refused = site.prefect("deployment", "run", "cleanup/cleanup", "-p", 'settings={"lake": "lake", "days": -1}', check=False)
    assert refused.returncode != 0 and "days" in refused.stdout + refused.stderr
    done = site.prefect("deployment", "run", "report/report", "--watch")
    assert "Completed" in done.stdout, done.stdout
    assert (site.folder / "report.html").is_file() and "report" in site.artifacts()
