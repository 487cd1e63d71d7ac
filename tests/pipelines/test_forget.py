"""What is forgotten is in no file of the lake, stays out whatever is read again, and everything else is as it was."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate.purge
from curate.identity import user_doc_id
from pipelines.catalog import ask, open_catalog
from pipelines.cli import run_command
from pipelines.export import export
from pipelines.forget import forget
from pipelines.parameters import RunParameters
from pipelines.progress import reporter
from pipelines.run import curate_lake, lay_out, plan_stage
from pipelines.tables import console
from pipelines.why import UnknownDocument, life
from schemas.errors import GristmillError
from schemas.manifest import entry_from_json, read_snapshot
from schemas.settings import read_stage
from schemas.store import Published, verify
from tests.pipelines.fixture_lake import doc
from tests.pipelines.tiny import write_project


def curated(folder: Path) -> Path:
    asked = RunParameters(recipe=folder / "recipe.yaml", lake=folder / "lake", workers=1)
    with reporter(console(stderr=True)) as progress:
        curate_lake(asked, asked.load(), progress)
    return folder / "lake"


def text_of(folder: Path, name: str) -> str:
    lines = [json.loads(line) for line in (folder / "web.jsonl").read_text().splitlines() if not line.startswith("{broken")]
    return next(line["text"] for line in lines if line["id"] == name)


def rows_of(root: Path, table: str) -> list[dict[str, Any]]:
    files = read_snapshot(root).files(table)
    return [row for file in files for row in pq.read_table(root / file.path, partitioning=None).to_pylist()]


def holders(root: Path, text: str, doc_id: bytes) -> set[str]:
    """Tables whose files hold a text, as text or as byte tokens (the tokenizer's ids are bytes)."""
    found = set()
    for path in root.rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        for name in set(table.column_names) & {"text", "tokens"}:
            for value in table.column(name).to_pylist():
                if value == text or (isinstance(value, list) and bytes(t for t in value if t < 256) == text.encode()):
                    found.add(path.relative_to(root).parts[0])
    for path in root.rglob("*.arrow"):
        if path.relative_to(root).parts[0] == "shards":
            table = pa.ipc.open_file(pa.OSFile(str(path))).read_all()
            for row in table.to_pylist():
                starts = [0, *row["ends"][:-1]]
                for start, end, owner in zip(starts, row["ends"], row["doc_ids"], strict=True):
                    if owner == doc_id and any(token < 256 for token in row["tokens"][start:end]):
                        found.add("shards")
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_project(folder)
    curated(folder)
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "project")


GONE = user_doc_id("web", "web-50")


def fates(root: Path) -> dict[str, str]:
    with open_catalog(root) as db:
        return {row["doc_id"]: row["fate"] for row in ask(db, "SELECT doc_id, coalesce(reason, state) AS fate FROM verdicts")}


def test_a_forgotten_document_is_in_no_file_and_the_lake_is_whole(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, text = project / "lake", text_of(project, "web-50")
    assert holders(root, text, GONE) >= {"documents", "tokens", "shards"}
    sizes = {path: path.stat().st_size for path in root.glob("shards/**/*.arrow")}
    before = fates(root)
    assert run_command(["forget", "web-50", "--dry-run", "--lake", str(root)]) == 0
    assert "Lots that hold them" in capsys.readouterr().out and holders(root, text, GONE)
    assert run_command(["forget", "web:web-50", "--lake", str(root), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["documents"] == [{"doc_id": GONE.hex(), "in_lake": True}] and report["lots"][0]["rows"] > 0
    assert {path.split("/")[0] for path in report["purged"]} >= {"documents", "tokens", "shards"}
    assert holders(root, text, GONE) == set()
    assert {path: path.stat().st_size for path in root.glob("shards/**/*.arrow")} == sizes, "plans count on the length of shards"
    for entries in read_snapshot(root).steps.values():
        for entry in entries:
            for file in entry.files.values():
                verify(root, file)
    assert forget(root, ["web:web-50"], None, False)["purged"] == []
    found = life(root, GONE.hex())
    assert found["forgotten"] and found["document"]["excerpt"] == "" and found["document"]["id"] is None
    curated(project)
    after = fates(root)
    assert after[GONE.hex()] == "forgotten" and life(root, GONE.hex())["verdict"]["bytes"] == 0
    others = {name for name, fate in before.items() if fate != after[name]} - {GONE.hex()}
    assert len(others) <= 3, "but for its duplicates and the held-out sample, nothing else fares otherwise"


def test_what_is_read_again_is_not_brought_back(project: Path) -> None:
    root, text = project / "lake", text_of(project, "web-50")
    forget(root, ["web-50"], None, False)
    with (project / "web.jsonl").open("a") as file:
        file.write('{"id": "new", "text": "one more document that makes the file be read again"}\n')
    curated(project)
    assert holders(root, text, GONE) == set() and fates(root)[GONE.hex()] == "forgotten"
    listing = project / "list.txt"
    listing.write_text(f"# asked for\nweb:web-7\n\n{user_doc_id('books', 'not-yet').hex()}\n")
    report = forget(root, [], listing, False)
    assert [each["in_lake"] for each in report["documents"]].count(False) == 1
    with open_catalog(root) as db:
        assert ask(db, "SELECT count(*) AS n FROM forgotten") == [{"n": 3}]


def test_rows_that_are_laid_out_and_a_report_in_the_lake_are_purged(project: Path) -> None:
    asked = RunParameters(recipe=project / "recipe.yaml", lake=project / "lake", workers=1)
    root, settings = asked.root, plan_stage(asked, asked.load(), 0)
    count = lay_out(root, settings)
    (root / "report.html").write_text("samples of the text")
    places = sorted((root / settings.folder / "written").glob("*.arrow"))
    sizes = [path.stat().st_size for path in places]
    rows = [row for path in places for row in pa.ipc.open_file(pa.OSFile(str(path))).read_all().to_pylist()]
    gone = rows[0]["doc_ids"][0]
    report = forget(root, [gone.hex()], None, False)
    assert "report.html" in report["purged"] and not (root / "report.html").exists()
    assert any(path.startswith(f"{settings.folder}/written/") for path in report["purged"])
    assert [path.stat().st_size for path in places] == sizes
    after = [row for path in places for row in pa.ipc.open_file(pa.OSFile(str(path))).read_all().to_pylist()]
    for old, new in zip(rows, after, strict=True):
        for start, end, owner in zip([0, *old["ends"][:-1]], old["ends"], old["doc_ids"], strict=True):
            piece = new["tokens"][start:end]
            assert set(piece) == {258} if owner == gone else piece == old["tokens"][start:end], "258 is padding of byte tokens"
    for lot in json.loads((root / settings.folder / "written.json").read_text()).values():
        for shard in lot["shards"]:
            verify(root, Published(shard["path"], shard["bytes"], shard["checksum"], shard["rows"]))
    assert lay_out(root, read_stage(root / settings.folder / "stage.json")) == count
    assert forget(root, [gone.hex()], None, False)["purged"] == []


@pytest.mark.parametrize(("name", "after"), [("publish", 2), ("write_snapshot", 0), ("publish_json", 1), ("publish_json", 3)])
def test_a_purge_that_was_killed_is_finished_by_the_same_command(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: int
) -> None:
    root, text = project / "lake", text_of(project, "web-50")
    real, left = getattr(curate.purge, name), [after]

    def dying(*arguments: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(*arguments)

    monkeypatch.setattr(curate.purge, name, dying)
    with pytest.raises(KeyboardInterrupt):
        forget(root, ["web:web-50"], None, False)
    monkeypatch.setattr(curate.purge, name, real)
    forget(root, ["web:web-50"], None, False)
    assert holders(root, text, GONE) == set()
    for entries in read_snapshot(root).steps.values():
        for file in (file for entry in entries for file in entry.files.values()):
            verify(root, file)
    for place in root.glob("manifests/*/*/*.json"):
        entry = entry_from_json(json.loads(place.read_text()))
        for table, file in entry.files.items():
            if table != "references":
                verify(root, file)


def test_the_report_names_lots_runs_steps_and_checkpoints(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2, 3):
        os.makedirs(lake / f"runs/demo/0-first/checkpoints/a0000-s{step:08d}")
    report = forget(lake, [doc(3).hex()[:8]], None, True)
    assert [(lot["lot"], lot["rows"]) for lot in report["lots"]] == [("web-r2", 1)]
    (run,) = report["runs"]
    assert (run["run"], run["stage"], run["uses"], run["seen"], run["first_step"], run["last_step"]) == ("demo", "first", 2, 1, 1, 1)
    assert report["checkpoints"] == [f"runs/demo/0-first/checkpoints/a0000-s{step:08d}" for step in (2, 3)]
    assert run_command(["forget", "user-3", "--dry-run", "--lake", str(lake)]) == 0
    assert "which only training anew" in capsys.readouterr().out


def test_names_that_name_nothing_are_refused(lake: Path) -> None:
    with pytest.raises(UnknownDocument):
        forget(lake, ["nobody"], None, True)
    with pytest.raises(GristmillError, match="no document is named"):
        forget(lake, [], None, True)
    with pytest.raises(GristmillError, match="cannot be read"):
        forget(lake, [], lake / "none.txt", True)


def test_neither_an_export_nor_a_repeated_id_tells_of_a_forgotten_document(project: Path) -> None:
    root = project / "lake"
    line = next(line for line in (project / "web.jsonl").read_text().splitlines() if '"web-50"' in line)
    (project / "web2.jsonl").write_text(line + "\n")
    recipe = project / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("paths: [web.jsonl]", 'paths: ["web*.jsonl"]'))
    curated(project)
    (repeat,) = (row for row in rows_of(root, "quarantine") if row["reason"] == "duplicate_id")
    assert "web-50" in repeat["detail"] and fates(root)[GONE.hex()] == "kept"
    count = export(root, project / "before.jsonl", "jsonl")
    forget(root, ["web:web-50"], None, False)
    assert [row["detail"] for row in rows_of(root, "quarantine") if row["reason"] == "duplicate_id"] == [""]
    assert export(root, project / "after.jsonl", "jsonl") == count - 1
    assert all(json.loads(line)["text"] for line in (project / "after.jsonl").read_text().splitlines())
