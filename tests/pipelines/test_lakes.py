"""Every command on a lake in a real S3 store: made over breaking connections, asked from a machine that has nothing of it yet."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from pipelines.cli import run_command
from schemas import objects, working_copy
from schemas.manifest import read_snapshot
from schemas.store import open_lake
from tests.object_store import SECRET, environment, proxy
from tests.pipelines.tiny import write_project

SMALL = [f"--set={each}" for each in ("model.layers=1", "model.width=32", "model.heads=2", "training.keep_last=20")]
SECOND = "  - {name: second,"
REPOSITORY = Path(__file__).parents[2]


def forget_store() -> None:
    """Look at the environment again."""
    objects.client.cache_clear()
    working_copy.open_address.cache_clear()


@pytest.fixture(scope="module")
def site(store: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with a recipe, a lake in the store run over breaking connections by machine ``a``, and ``local``: its files as a folder."""
    folder, address = tmp_path_factory.mktemp("site"), "s3://lakes/site"
    recipe = write_project(folder / "in")
    recipe.write_text("".join(line for line in recipe.read_text().splitlines(keepends=True) if not line.startswith(SECOND)))
    breaking = proxy(store, after=400_000, times=6)
    with pytest.MonkeyPatch.context() as patch:
        assert run_command(["curate", str(recipe), "--lake", str(folder / "curated"), *SMALL]) == 0
        for name, value in environment(breaking.port, folder / "a").items():
            patch.setenv(name, value)
        forget_store()
        assert run_command(["run", str(recipe), "--lake", address, "--no-prefect", *SMALL]) == 0
        assert breaking.broken
        shutil.copytree(open_lake(address), folder / "local", ignore=shutil.ignore_patterns(".*", "catalog.duckdb"))
        for name, value in environment(store, folder / "b").items():
            patch.setenv(name, value)
        forget_store()
        yield folder, address
    forget_store()


def asked(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """What a command prints."""
    capsys.readouterr()
    assert run_command(command) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_curation_gives_a_folders_bytes_and_a_question_brings_no_text(site: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, address = site
    root = open_lake(address)
    assert read_snapshot(root).id == read_snapshot(folder / "curated").id
    assert "first" in asked(capsys, "sql", "SELECT stage, count(*) FROM metrics GROUP BY ALL", "--lake", address)
    held = {path.relative_to(root).parts[0] for path in root.rglob("*.parquet") if stat.S_IMODE(path.stat().st_mode) == 0}
    assert "documents" in held and "clusters" not in held, "text did not come for a question about losses"
    assert list(root.glob("runs/tiny/*/written.json")), "stages are laid out in an object store"
    objects.get(f"{address.removeprefix('s3://')}/catalog.duckdb", folder / "summaries.duckdb")
    with duckdb.connect(str(folder / "summaries.duckdb"), read_only=True) as db:
        kinds = db.execute("SELECT DISTINCT table_type FROM information_schema.tables").fetchall()
        assert kinds == [("BASE TABLE",)], "views could not reach the lake's files"
        assert db.execute("SELECT sum(documents) FROM summary_funnel").fetchone() == (202,)


@pytest.mark.parametrize(
    "command",
    [
        "sql 'FROM funnel()'",
        "sql 'SELECT doc_id, text, count(rows.row) FROM documents LEFT JOIN rows USING (doc_id) GROUP BY ALL ORDER BY ALL' --format csv",
        "sql 'EXPLAIN ANALYZE SELECT max(length(text)) FROM documents' --quiet",
        "stats --json",
        "status --json",
        "why web-3 --json",
        "steps 2..3 --json",
        "plan RECIPE --json",
        "what-if RECIPE --rule 'n_words < 80' --json",
        "generate --tokens 8 --prompt a",
        "snapshot --json",
        "forget web-4 --dry-run --json",
    ],
)
def test_an_answer_is_that_of_a_folder(site: tuple[Path, str], capsys: pytest.CaptureFixture[str], command: str) -> None:
    import shlex

    folder, address = site
    words = [str(folder / "in/recipe.yaml") if word == "RECIPE" else word for word in shlex.split(command)]
    changes = SMALL if "RECIPE" in command else []
    quiet = "--quiet" in words
    words = [word for word in words if word != "--quiet"]
    there, here = (asked(capsys, *words, *changes, "--lake", lake) for lake in (address, str(folder / "local")))
    assert there and (quiet or there.replace(address, str(folder / "local")) == here)


def test_what_is_written_elsewhere_is_that_of_a_folder(site: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = site
    for target in ("text.jsonl", "rows.npy", "model"):
        form = {"model": ["--format", "hf-model"], "rows.npy": ["--format", "npy"]}.get(target, [])
        for name, lake in (("there", address), ("here", str(folder / "local"))):
            assert run_command(["export", str(tmp_path / name / target), *form, "--lake", lake]) == 0
    assert tree(tmp_path / "there") == tree(tmp_path / "here")
    for name, lake in (("there", address), ("here", str(folder / "local"))):
        assert run_command(["score", "-o", str(tmp_path / f"{name}.parquet"), "--lake", lake]) == 0
    assert (tmp_path / "there.parquet").read_bytes() == (tmp_path / "here.parquet").read_bytes()


def test_a_report_and_its_live_pages_are_those_of_a_folder(site: tuple[Path, str], tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    from starlette.testclient import TestClient

    from pipelines.report.server import Ui

    folder, address = site
    pages = []
    for lake in (address, str(folder / "local")):
        assert run_command(["report", "-o", str(tmp_path / "report.html"), "--lake", lake]) == 0
        page = (tmp_path / "report.html").read_text()
        assert f"Lake <code>{lake}</code>" in page
        client = TestClient(Ui(open_lake(lake)).app(), base_url="http://127.0.0.1")
        queries = ("/document?id=web-3", "/sql?query=SELECT+doc_id,+text+FROM+documents+ORDER+BY+ALL", "/running")
        texts = [re.sub(r"Made [^<]* by", "", page), *(client.get(query).text for query in queries)]
        pages.append([text.replace(lake, "LAKE") for text in texts])
    assert pages[0] == pages[1] and all(pages[0])


def tree(folder: Path) -> dict[str, bytes]:
    """Contents of all files of a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_snapshots_takedowns_rewinds_and_garbage_reach_every_machine(
    site: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    lake = ["--lake", address]
    asked(capsys, "snapshot", "--keep", "before", *lake)
    monkeypatch.setenv("GRISTMILL_CACHE", str(folder / "d"))
    forget_store()
    gone = json.loads(asked(capsys, "forget", "web-4", "--json", *lake))
    root = open_lake(address)
    hollow = {path.relative_to(root).parts[:2] for path in root.rglob("*.*") if stat.S_IMODE(path.stat().st_mode) == 0}
    assert {("tokens", "books"), ("documents", "books")} <= hollow, "only what holds the document came"
    assert gone["purged"] and json.loads(asked(capsys, "sql", "FROM documents WHERE id = 'web-4'", "--json", *lake)) == []
    doc = gone["documents"][0]["doc_id"]
    asked(capsys, "rewind", "tiny", "--to", "5", *lake)
    monkeypatch.setenv("GRISTMILL_CACHE", str(folder / "c"))
    forget_store()
    assert json.loads(asked(capsys, "why", doc, "--json", *lake))["forgotten"]
    assert "whole (checksums)" in asked(capsys, "doctor", "--deep", *lake)
    command = [sys.executable, "-m", "train", address, "runs/tiny/0-first"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, check=True)
    forget_store()
    asked(capsys, "curate", str(folder / "in/recipe.yaml"), *SMALL, *lake)
    changed = json.loads(asked(capsys, "diff", "@before", "@current", "--json", *lake))
    assert changed["a"] == f"{address}@before"
    assert [(line["after"], line["documents"]) for line in changed["changes"] if line["after"] == "forgotten"] == [("forgotten", 1)]
    used = json.loads(asked(capsys, "sql", "SELECT DISTINCT stage, status FROM ledger ORDER BY ALL", "--json", *lake))
    assert used == [{"stage": "first", "status": "seen"}, {"stage": "first", "status": "void"}]
    collected = json.loads(asked(capsys, "snapshot", "--collect", "--days", "0", "--json", *lake))
    assert collected["files"] >= 0 and "whole" in asked(capsys, "doctor", "--deep", *lake)


def test_workers_of_a_cluster_with_caches_of_their_own_give_the_bytes_of_a_folder(
    site: tuple[Path, str], store: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dask = pytest.importorskip("dask")
    pytest.importorskip("distributed")
    from tests.pipelines.dask_site import cluster

    folder, address = site
    caches = [environment(store, tmp_path / name) for name in ("w1", "w2")]
    with cluster(tmp_path, caches) as scheduler, dask.config.set({"scheduler-address": scheduler}):
        lake = f"{address}-dask"
        assert run_command(["curate", str(folder / "in/recipe.yaml"), "--lake", lake, "--engine", "dask", *SMALL]) == 0
    assert read_snapshot(open_lake(lake)).id == read_snapshot(folder / "curated").id
    assert list((tmp_path / "w1").rglob("*.parquet")) and list((tmp_path / "w2").rglob("*.parquet"))


def test_no_key_is_in_any_file(site: tuple[Path, str]) -> None:
    paths = [path for name in "abc" for path in (site[0] / name).rglob("*") if path.is_file() and stat.S_IMODE(path.stat().st_mode)]
    assert len(paths) > 50 and not [path for path in paths if SECRET.encode() in path.read_bytes()]


def test_a_store_that_is_gone_is_an_error_that_names_it(
    site: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(objects, "WAITS", ())
    forget_store()
    assert run_command(["status", "--lake", site[1]]) == 2
    told = capsys.readouterr().err
    assert "s3://lakes" in told and "AWS_ENDPOINT_URL" in told and SECRET not in told
