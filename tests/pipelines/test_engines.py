"""Shards on a real Dask cluster and in real processes: the same bytes as on threads, also when workers die; a deadly shard is named."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from curate.engine import Executor, LocalExecutor
from curate.step import Shard, ShardWriter, Silent, Step, run_step
from pipelines.cli import run_command
from pipelines.engines import engine
from schemas.errors import GristmillError, LakeError
from tests.pipelines.tiny import write_project

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")  # before any dask.config.set, which would forget its defaults again
from tests.pipelines.dask_site import cluster  # noqa: E402


def write(writer: ShardWriter, task: dict[str, str]) -> dict[str, int]:
    """Publish the task's text; kill the process first when told to, always or only the first time."""
    mark = writer.root / f"{writer.label}.mark"
    if task["kill"] == "always" or (task["kill"] == "once" and not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    writer.publish("texts", "txt", lambda path: path.write_text(task["text"]) and None)
    return {"bytes": len(task["text"])}


def written(lake: Path, executor: Executor, deadly: dict[int, str]) -> list[bytes]:
    lake.mkdir(exist_ok=True)
    shards = [Shard(f"s{n}", n, {"text": f"text {n}", "kill": deadly.get(n, "")}) for n in range(8)]
    entries = run_step(lake, Step("write", 1, None, write, processes=True), shards, executor, Silent())
    return [(lake / entry.files["texts"].path).read_bytes() for entry in entries]


@pytest.mark.parametrize(("name", "failures"), [("local", 0), ("dask", 0), ("dask", 1)])
def test_what_a_dead_worker_had_is_done_by_others_and_a_deadly_shard_is_named(name: str, failures: int, tmp_path: Path) -> None:
    """With no failure allowed, Dask gives up all that a dying worker had before it; none but the deadly shard may be named."""
    expected = written(tmp_path / "threads", LocalExecutor(1), {})
    with dask.config.set({"distributed.scheduler.allowed-failures": failures}), engine(name, 2) as executor:
        assert written(tmp_path / "once", executor, {3: "once", 7: "once"}) == expected
        with pytest.raises(LakeError, match="1 of 8 shards killed") as told:
            written(tmp_path / "always", executor, {5: "always"})
    assert "s5" in str(told.value.where)
    # What a killed worker had only begun has another name.
    finished = {path.name.partition("-")[0] for path in (tmp_path / "always/texts").glob("s*.txt")}
    assert finished == {f"s{n}" for n in range(8) if n != 5}, "the others are finished"
    with pytest.raises(LakeError, match="1 of 1 shards killed"):
        written(tmp_path / "always", LocalExecutor(2), {5: "always"})
    assert written(tmp_path / "always", LocalExecutor(1), {}) == expected, "running again does what is missing"
    assert written(tmp_path / "always", LocalExecutor(2), {}) == expected, "and nothing where nothing is missing"


def test_a_cluster_with_a_scheduler_and_workers_of_its_own_gives_the_bytes_of_this_machine(tmp_path: Path) -> None:
    recipe = write_project(tmp_path / "in")
    with cluster(tmp_path, [{}, {}]) as address, dask.config.set({"scheduler-address": address}):
        assert run_command(["curate", str(recipe), "--lake", str(tmp_path / "dask"), "--engine", "dask"]) == 0
    assert run_command(["curate", str(recipe), "--lake", str(tmp_path / "local")]) == 0
    lakes = [
        {path.relative_to(lake): path.read_bytes() for path in lake.rglob("*") if path.is_file() and path.suffix not in ("", ".duckdb")}
        for lake in (tmp_path / "dask", tmp_path / "local")
    ]
    assert lakes[0] == lakes[1] and len(lakes[0]) > 20


def test_no_scheduler_is_said() -> None:
    with (
        dask.config.set({"scheduler-address": "tcp://127.0.0.1:9", "distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(GristmillError, match="no scheduler"),
        engine("dask", 1),
    ):
        pass
