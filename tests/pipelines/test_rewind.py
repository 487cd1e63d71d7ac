"""Rewinding: void steps by lineage, excluded rows never again, budgets never exceeded, later stages planned anew; shown by SQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from curate.step import Silent
from pipelines.catalog import ask, open_catalog
from pipelines.parameters import RunParameters
from pipelines.rewind import parse_exclusions, rewind
from pipelines.run import plan_stage, prepared_stage, run_curriculum, train_stage
from schemas.errors import GristmillError, PlanError
from schemas.segments import read_segments
from schemas.store import publish_json
from tests.pipelines.tiny import write_project
from train.skips import ASKED

SMALL = (
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "training.keep_last=9",
    "stages.0.training.early_stop=null",
    "stages.1.tokens=rest",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunParameters:
    """Both stages of the tiny recipe, trained."""
    folder = tmp_path_factory.mktemp("rewind")
    parameters = RunParameters(recipe=write_project(folder), lake=folder / "lake", changes=SMALL)
    run_curriculum(parameters, Silent(), lambda line: None)
    return parameters


def rows(root: Path, query: str) -> list[tuple[object, ...]]:
    with open_catalog(root) as db:
        return [tuple(line.values()) for line in ask(db, query)]


def test_a_rewind_voids_what_came_after_and_the_run_goes_on_without_the_excluded_rows(trained: RunParameters) -> None:
    root = trained.root
    before = read_segments(root / "runs/tiny/segments.json")
    assert [segment.stage for segment in before] == ["first", "second"]
    (document,) = rows(root, "SELECT doc_id FROM losses WHERE step = 3 ORDER BY doc_id LIMIT 1")[0]
    done = rewind(root, "tiny", 10, *parse_exclusions(["12..13", str(document)]))
    assert (done.stage, done.step) == ("first", 10)
    assert rows(root, "SELECT count(*) FROM ledger WHERE status = 'seen' AND step >= 10") == [(0,)]
    assert rows(root, "SELECT count(*) FROM ledger WHERE status = 'seen' AND step < 10") == [(80,)]
    assert rows(root, "SELECT stage FROM stages") == []
    after = read_segments(root / "runs/tiny/segments.json")
    assert after[:2] == before and after[2].why == "rewind" and (after[2].first_row, after[2].first_step) == (80, 10)
    run_curriculum(trained, Silent(), lambda line: None)
    assert [row[0] for row in rows(root, "SELECT stage FROM stages ORDER BY position")] == ["first", "second"]
    gone = (
        "SELECT lot, \"row\" FROM ledger WHERE status = 'void' AND step IN (12, 13) UNION SELECT lot, \"row\" FROM rows WHERE doc_id = '{}'"
    )
    again = f"SELECT count(*) FROM ledger JOIN ({gone.format(document)}) USING (lot, \"row\") WHERE status = 'seen' AND step >= 10"
    assert rows(root, again) == [(0,)]
    assert all(most <= allowed for most, allowed in rows(root, "SELECT most_uses, allowed FROM epochs_by_source()"))  # type: ignore[operator]
    uses = "SELECT count(*), count(DISTINCT (lot, use)), min(step), max(step) FROM ledger WHERE status = 'seen'"
    ((count, different, first, last),) = rows(root, uses)
    assert count == different and first == 0 and isinstance(last, int) and last > 20
    assert rows(root, "SELECT DISTINCT kind FROM events WHERE kind = 'rewound'") == [("rewound",)]


def test_what_cannot_be_done_is_refused_with_what_can(trained: RunParameters) -> None:
    root = trained.root
    with pytest.raises(GristmillError, match=r"no checkpoint before step 7\n.*one of the steps 0, .*10, "):
        rewind(root, "tiny", 7)
    with pytest.raises(GristmillError, match="no step 9999"):
        rewind(root, "tiny", 9999)
    for name in ("other", "../runs/tiny"):
        with pytest.raises(GristmillError, match=f"no run '{name}'"):
            rewind(root, name, 5)
    for value in ("12-13", "120"):
        with pytest.raises(GristmillError, match=r"no range of steps\n.*120\.\.120"):
            parse_exclusions([value])


def test_a_refused_recipe_is_not_the_one_that_a_rewind_goes_on_by(trained: RunParameters) -> None:
    record = trained.root / "runs/tiny/recipe.json"
    before = record.read_bytes()
    changed = trained.model_copy(update={"changes": (*SMALL, "training.batch_rows=4", "training.micro_batch_rows=4")})
    with pytest.raises(PlanError, match="planned already"):
        plan_stage(changed, changed.load(), 0)
    assert record.read_bytes() == before


def test_what_is_excluded_is_one_document_or_nothing(trained: RunParameters) -> None:
    """A name of several documents is refused, and nothing changes; a beginning of one doc_id and the document's own id mean the same."""
    root = trained.root
    before = (root / "runs/tiny/segments.json").read_bytes()
    beginnings = "SELECT doc_id[1] AS one, count(*) FROM verdicts WHERE one > '9' GROUP BY ALL ORDER BY 2 DESC LIMIT 1"
    ((several, count),) = rows(root, beginnings)
    assert isinstance(count, int) and count > 1
    ((packed, own),) = rows(root, "SELECT doc_id, id FROM documents JOIN rows USING (doc_id) ORDER BY ALL LIMIT 1")
    ((dropped,),) = rows(root, "SELECT doc_id FROM verdicts WHERE state = 'dropped' ORDER BY ALL LIMIT 1")
    refused = [
        (several, "the name of several documents"),
        ("nobody", "no document 'nobody'"),
        (dropped, f"no packed row holds .*{dropped}"),
    ]
    for name, why in refused:
        with pytest.raises(GristmillError, match=f"(?s)--exclude.*{why}|{why}.*--exclude"):
            rewind(root, "tiny", 5, *parse_exclusions([str(name)]))
    assert (root / "runs/tiny/segments.json").read_bytes() == before
    ((held,),) = rows(root, f"SELECT count(DISTINCT (lot, \"row\")) FROM rows WHERE doc_id = '{packed}'")
    done = [rewind(root, "tiny", 10, *parse_exclusions([str(name)])) for name in (packed, str(packed)[:12], own)]
    assert {each.excluded_rows for each in done} == {held}


def test_a_spike_rewinds_by_itself_and_its_rows_are_never_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights are four times too large after step 13, once: the loss of step 14 is a spike, and the last checkpoint is of step 10."""
    (tmp_path / "poison.py").write_text(
        "from pathlib import Path\nimport torch\nfrom train.callbacks import Callback\n"
        "class Poison(Callback):\n    @torch.no_grad()\n    def on_step(self, run, report):\n"
        "        once = Path(__file__).with_name('poisoned')\n"
        "        if report.step == 13 and not once.exists():\n            once.touch()\n"
        "            for parameter in run.model.parameters():\n                parameter.mul_(4)\n"
        "def make():\n    return Poison()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    spikes = ("training.spikes={window: 5, threshold: 50.0, rewinds: 1}", "training.callbacks=['poison:make']")
    parameters = RunParameters(recipe=write_project(tmp_path), lake=tmp_path / "lake", changes=(*SMALL, *spikes))
    said: list[str] = []
    run_curriculum(parameters, Silent(), said.append)
    assert any("a spike at step 14: back to step 10" in line for line in said)
    root = parameters.root
    assert rows(root, "SELECT kind, step FROM events WHERE kind IN ('spike', 'rewound') ORDER BY attempt, kind") == [
        ("spike", 14),
        ("rewound", 10),
    ]
    gone = "SELECT lot, \"row\" FROM ledger WHERE status = 'void' AND step BETWEEN 10 AND 14"
    assert rows(root, f"SELECT count(*) FROM ({gone})") == [(40,)]
    assert rows(root, f"SELECT count(*) FROM ledger JOIN ({gone}) USING (lot, \"row\") WHERE status = 'seen'") == [(0,)]
    assert [row[0] for row in rows(root, "SELECT stage FROM stages ORDER BY position")] == ["first", "second"]
    assert not list(root.glob("runs/*/*/rewind.json"))


def test_a_spike_that_leaves_no_rows_to_go_on_with_is_not_rewound(trained: RunParameters) -> None:
    root, said = trained.root, list[str]()
    run_curriculum(trained, Silent(), lambda line: None)
    settings = prepared_stage(trained, trained.load(), "second")
    ((first, last),) = rows(root, "SELECT min(step), max(step) FROM ledger WHERE stage = 'second' AND status = 'seen'")
    publish_json(root, f"{settings.folder}/{ASKED}", {"to": first, "spike": last})
    before = read_segments(root / "runs/tiny/segments.json")
    assert train_stage(trained, settings, said.append).reason == "finished"
    assert "is not rewound" in said[0]
    assert not (root / settings.folder / ASKED).exists() and read_segments(root / "runs/tiny/segments.json") == before
