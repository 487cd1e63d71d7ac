"""What the index finds equals what a look at everything finds, of documents and of steps, in a lake with two runs' ledgers."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import pipelines.one_document
from pipelines.catalog import ask, open_catalog
from pipelines.parameters import RunParameters
from pipelines.progress import reporter
from pipelines.run import curate_lake, plan_stage
from pipelines.snapshots import keep_snapshot
from pipelines.step_range import parse_steps
from pipelines.steps import print_seen, seen
from pipelines.tables import console
from pipelines.why import UnknownDocument, life
from schemas.errors import GristmillError
from schemas.manifest import read_snapshot
from tests.pipelines.tiny import write_project
from train.ledger import Recorder
from train.parallel import Ranks
from train.stage import Stage


def imagine(root: Path, stage: Stage, attempt: int, first: int, end: int) -> None:
    """The ledger and losses of steps, as if they had been trained."""
    recorder = Recorder(root, stage.settings.folder, attempt, first, stage.sources, stage.order.lots, Ranks(0, 1, torch.device("cpu")))
    recorder.event(first, "resumed" if attempt else "started")
    for step in range(first, end):
        recorder.rows(step, stage.span(step)[0], stage.rows(step))
        for micro in stage.micro_batches(step, 0, 1):
            pieces = len(micro.batch.ends)
            recorder.pieces(step, micro, np.arange(pieces) + step + attempt / 2)
        if step % 4 == 3:
            recorder.flush(step + 1)
    recorder.flush(end)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for run in ("one", "two"):
        changes = ("pack.row_length=32",) if run == "two" else ()  # lots of another snapshot
        asked = RunParameters(recipe=write_project(folder), lake=folder / "lake", workers=1, run=run, changes=changes)
        with reporter(console(stderr=True)) as progress:
            recipe = asked.load()
            curate_lake(asked, recipe, progress)
            stage = Stage(asked.root, plan_stage(asked, recipe, 0))
        imagine(asked.root, stage, 0, 0, 10)
        imagine(asked.root, stage, 1, 6, 12)
    return folder / "lake"


def test_the_index_finds_what_a_look_at_everything_finds(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_catalog(lake) as db:
        names = [row["doc_id"] for row in ask(db, "SELECT doc_id FROM documents ORDER BY ALL")]
    some = [names[number] for number in range(0, len(names), 7)]
    indexed = {name: life(lake, name) for name in some}
    with monkeypatch.context() as patch:
        patch.setattr(pipelines.one_document, "is_indexed", lambda snapshot: False)
        whole = {name: life(lake, name) for name in some}
    assert indexed == whole
    steps = [step for found in whole.values() for step in found["steps"]]
    assert {step["run"] for step in steps} == {"one", "two"} and {step["status"] for step in steps} == {"seen", "void"}
    assert {found["verdict"]["state"] for found in whole.values()} == {"kept", "dropped", "held_out"}
    assert any(found["kept_instead"] for found in whole.values())


def test_names_are_found_by_the_index(lake: Path) -> None:
    assert life(lake, "web-3")["document"]["id"] == "web-3" and life(lake, "books-7")["document"]["source"] == "books"
    whole = life(lake, "web-3")["doc_id"]
    for length in (12, 20, 32):
        assert life(lake, whole[:length].upper())["doc_id"] == whole
    for name in ("web-1000", "", "ff" * 40, "zz"):
        with pytest.raises(UnknownDocument):
            life(lake, name)


def test_only_the_parts_of_its_steps_are_read(lake: Path) -> None:
    snapshot = read_snapshot(lake)
    with open_catalog(lake) as db:
        doc = ask(db, "SELECT doc_id FROM verdicts WHERE state = 'kept' ORDER BY ALL LIMIT 1")[0]["doc_id"]
    found = life(lake, doc)
    place = pipelines.one_document.place_of(lake, snapshot, found["doc_id"])
    assert place is not None and place.lot == found["lots"][0]["lot"] and list(place.rows) == found["lots"][0]["rows"]
    read = [Path(part) for part in pipelines.one_document.parts(lake, "losses", {"two": np.array([5]), "one": np.array([])})]
    assert [(part.parents[2].name, part.name) for part in read] == [("two", "a0000-s00000004-00000008.parquet")]


@pytest.mark.parametrize(("run", "void"), [("one", 3), ("two", 3)])
def test_steps_tell_their_documents_by_source(lake: Path, run: str, void: int) -> None:
    found = seen(lake, run, 5, 8, 0)
    assert (found["seen"], found["void"]) == (4, void)
    status = "run = ? AND step BETWEEN 5 AND 8 AND status = 'seen'"
    with open_catalog(lake) as db:
        whole = ask(db, f"SELECT doc_id, sum(tokens)::INT AS tokens, sum(loss) AS loss FROM losses WHERE {status} GROUP BY ALL", run)
        rows = ask(db, f"SELECT source, count(*) AS n FROM ledger WHERE {status} GROUP BY ALL ORDER BY ALL", run)
        duplicates = ask(db, "SELECT kept_doc_id AS doc, count(*) AS n FROM clusters GROUP BY ALL")
    expected = {each["doc_id"]: (each["tokens"], pytest.approx(each["loss"] / each["tokens"])) for each in whole if each["tokens"]}
    assert {each["doc_id"]: (each["tokens"], each["loss"]) for each in found["documents"]} == expected
    assert [each["loss"] for each in found["documents"]] == sorted((each["loss"] for each in found["documents"]), reverse=True)
    assert [(each["source"], each["rows"]) for each in found["sources"]] == [(each["source"], each["n"]) for each in rows]
    stands = {each["doc"]: each["n"] for each in duplicates}
    assert {each["doc_id"]: each["duplicates"] for each in found["documents"]} == {doc: stands.get(doc, 0) for doc in expected}
    assert {verdict["state"] for each in found["documents"] for verdict in each["verdicts"]} == {"kept"}


def test_a_document_that_a_later_snapshot_drops_tells_both_verdicts(lake: Path, tmp_path: Path) -> None:
    root = shutil.copytree(lake, tmp_path / "lake")
    keep_snapshot(root, "before")
    write_project(tmp_path)
    asked = RunParameters(recipe=tmp_path / "recipe.yaml", lake=root, workers=1, changes=("rules.0.sql=n_words < 80",))
    with reporter(console(stderr=True)) as progress:
        curate_lake(asked, asked.load(), progress)
    found = seen(root, "one", 0, 11, 3)
    assert len(found["documents"]) == 3
    every = seen(root, "one", 0, 11, 0)["documents"]
    assert {verdict["state"] for each in every for verdict in each["verdicts"]} >= {"kept", "dropped"}
    out = io.StringIO()
    print_seen(found | {"documents": every}, Console(file=out, width=200))
    assert "dropped, too_short; kept in before" in out.getvalue()


def test_steps_that_were_not_taken_are_refused(lake: Path) -> None:
    assert parse_steps("7") == (7, 7) and parse_steps("7..9") == (7, 9)
    for text in ("9..7", "a", "..", "-1"):
        with pytest.raises(GristmillError, match="no range of steps"):
            parse_steps(text)
    with pytest.raises(GristmillError, match="has no rows of steps"):
        seen(lake, "one", 500, 600, 0)
    with pytest.raises(GristmillError, match="--limit"):
        seen(lake, "one", 5, 8, -1)


def test_a_range_may_end_far_beyond_the_last_step(lake: Path) -> None:
    far = seen(lake, "one", *parse_steps("5..999999999999999"), 3)
    assert far["seen"] == 7 and len(far["documents"]) == 3
