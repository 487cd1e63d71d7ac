"""What-if tells what a curation with the change then finds, and refuses what stored signals cannot tell."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from pipelines.cli import run_command
from pipelines.parameters import RunParameters
from pipelines.progress import reporter
from pipelines.run import curate_lake
from pipelines.tables import console
from pipelines.what_if import what_if
from tests.pipelines.tiny import write_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_project(folder)
    curated(folder)
    return folder


def parameters(folder: Path, *changes: str) -> RunParameters:
    return RunParameters(recipe=folder / "recipe.yaml", lake=folder / "lake", changes=changes, workers=1)


def curated(folder: Path, *changes: str) -> None:
    asked = parameters(folder, *changes)
    with reporter(console(stderr=True)) as progress:
        curate_lake(asked, asked.load(), progress)


def verdicts(folder: Path) -> dict[str, tuple[str, str, int]]:
    snapshot = json.loads((folder / "lake/snapshots/current.json").read_text())
    files = [str(folder / "lake" / entry["files"]["verdicts"]["path"]) for entry in snapshot["steps"]["verdicts"]]
    rows = duckdb.sql(f"SELECT hex(doc_id), source, coalesce(reason, state), bytes FROM read_parquet({files})").fetchall()
    return {doc: (source, fate, size) for doc, source, fate, size in rows}


def effects(found: dict) -> dict:
    return {(e["source"], e["kind"]): (e["documents"], e["bytes"]) for e in found["effects"]}


def test_nothing_changes_without_a_change(project: Path) -> None:
    assert what_if(parameters(project), [])["effects"] == []


def test_what_it_says_is_what_a_curation_then_drops(project: Path, tmp_path: Path) -> None:
    before = verdicts(project)
    found = what_if(parameters(project), ["n_words > 100"])
    said = effects(found)
    assert {(line["rule"], line["kind"]) for line in found["rules"]} == {("what_if", "dropped")}
    write_project(tmp_path)
    recipe = (tmp_path / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(recipe.replace("name: too_short}", 'name: too_short}\n  - {sql: "n_words > 100", name: long}'))
    curated(tmp_path)
    after = verdicts(tmp_path)
    for source in ("web", "books"):
        gone = [d for d, (s, fate, _) in after.items() if s == source and fate == "long" and before[d][1] in ("kept", "held_out")]
        assert said[source, "dropped"] == (len(gone), sum(after[d][2] for d in gone)) and gone
    assert len(found["sample"]) == 10
    for each in found["sample"]:
        assert after[each["doc_id"].upper()][1] == "long" and each["failures"][0]["rule"] == "what_if" and each["excerpt"]


def test_tokens_are_counted_where_there_are_and_else_said_to_be_estimated(project: Path) -> None:
    dropped = what_if(parameters(project), ["n_words >= 10"])["effects"]
    assert all(not e["estimated"] and e["tokens"] == e["bytes"] for e in dropped), "the byte tokenizer's tokens are bytes"
    passing = what_if(parameters(project, "rules.0.sql=n_words < 1"), [])["effects"]
    assert {(e["source"], e["kind"], e["documents"], e["estimated"]) for e in passing} == (
        {("web", "passing", 1, True), ("books", "passing", 1, True)}
    )
    assert all(e["tokens"] == e["bytes"] for e in passing)


def test_changes_that_need_a_pass_say_which(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = [str(project / "recipe.yaml"), "--lake", str(project / "lake")]
    (project / "scorer.py").write_text("def f(batch):\n    return [1] * batch.num_rows\n")
    assert run_command(["what-if", *at, "--set", "sources.web.text_field=id"]) == 2
    assert "needs a new pass: step 'read'" in capsys.readouterr().err
    assert run_command(["what-if", *at, "--set", f"signals.mine.python={project}/scorer.py:f", "--rule", "mine > 0"]) == 2
    assert "needs a new pass: step 'score_mine', which computes a signal" in capsys.readouterr().err
    assert run_command(["what-if", *at, "--rule", "mine > 0"]) == 2
    assert "--rule: 'mine > 0': column 'mine' does not exist" in capsys.readouterr().err


def test_it_is_shown_for_people_and_as_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = [str(project / "recipe.yaml"), "--lake", str(project / "lake"), "--rule", "n_words > 100", "--rule", "n_chars < 50"]
    assert run_command(["what-if", *at]) == 0
    shown = capsys.readouterr().out
    assert "Would be dropped" in shown and "what_if" in shown and "stored signals suffice" in shown
    assert run_command(["what-if", *at, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 200
