"""What the index finds of a document equals what a look at everything finds, for every document of a lake with two runs' ledgers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import pipelines.one_document
from pipelines.catalog import ask, open_catalog
from pipelines.parameters import RunParameters
from pipelines.progress import reporter
from pipelines.run import curate_lake, plan_stage
from pipelines.tables import console
from pipelines.why import UnknownDocument, life
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
    read = [Path(part) for part in pipelines.one_document.parts(lake, "losses", {"two": [5], "one": []})]
    assert [(part.parents[2].name, part.name) for part in read] == [("two", "a0000-s00000004-00000008.parquet")]
