"""Stages of a run: prepared once, continued from outcomes, refused when the past was changed; safe to kill."""

import json
from dataclasses import asdict

import pyarrow.parquet as pq
import pytest

import curate.stage as stage_module
from curate.engine import LocalExecutor
from curate.lots import build_lots
from curate.stage import check_references, prepare_stage
from curate.step import Silent
from schemas.errors import PlanError
from schemas.segments import allotments, ends, read_segments, segments_hash, unused
from schemas.settings import Outcome, read_stage
from schemas.store import publish_json
from tests.curate.judged_lake import judged, made_shards, recipe

STAGES = [
    {"name": "first", "tokens": 64 * 40, "mixture": {"books": 1}, "order": "easy_to_hard"},
    {"name": "second", "tokens": 64 * 80, "mixture": {"books": 2, "web": 1}, "training": {"early_stop": {"patience": 3}}},
    {"name": "third", "tokens": "rest"},
]


def made(stages=STAGES, **changes):
    return recipe(**{"training": {"batch_rows": 4}, "stages": stages, "seed": 5} | changes)


@pytest.fixture
def lake(tmp_path):
    return tmp_path, build_lots(tmp_path, made(), judged(tmp_path, made_shards(documents=60)), LocalExecutor(1), Silent())


def end(root, settings, next_row, reason="early_stop"):
    """Write the outcome of a stage that ended before ``next_row``."""
    segments = read_segments(root / settings.segments)[settings.first_segment : settings.last_segment + 1]
    back = tuple((a.lot, a.start, a.stop) for a in unused(segments, next_row))
    step = segments[0].first_step + -(-(next_row - segments[0].first_row) // segments[0].batch)
    outcome = Outcome(reason, "", next_row, step, "runs/x/0-first/best", 2.0, 1.0, {"all": 1.0}, back)
    publish_json(root, f"{settings.folder}/outcome.json", asdict(outcome))


def tree(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted((root / "runs").rglob("*")) if path.is_file()}


def test_a_run_is_prepared_stage_after_stage_and_what_was_returned_is_planned_again(lake):
    root, snapshot = lake
    first = prepare_stage(root, made(), snapshot, "x", 0)
    assert (first.folder, first.init_from, first.first_segment, first.row_length) == ("runs/x/0-first", None, 0, 64)
    assert {lot.source for lot in first.lots} == {"books"}
    assert {lot.source for lot in first.holdout} == {"books", "web"}
    end(root, first, 16)
    second = prepare_stage(root, made(), snapshot, "x", 1)
    segments = read_segments(root / second.segments)
    assert segments_hash(segments[:1]) == first.segments_hash
    assert segments_hash(segments) == second.segments_hash
    assert ends(segments)[0] == 16
    assert (segments[1].first_row, segments[1].first_step) == (16, 4)
    assert second.init_from == "runs/x/0-first"
    assert second.training.early_stop.patience == 3
    plans = pq.read_table(root / second.folder / "plan.parquet").to_pylist()
    assert sum(row["rows"] for row in plans) == sum(a.rows for a in allotments(segments[1])) == 80
    (left,) = unused(segments[:1], 16)
    (again,) = (row for row in plans if row["returned"])
    assert (again["lot"], again["start"]) == (left.lot, left.start)
    assert again["stop"] <= left.stop
    end(root, second, 16 + 80, "finished")
    third = prepare_stage(root, made(), snapshot, "x", 2)
    segments = read_segments(root / third.segments)
    total = sum(line["rows"] * line["repeats"] for file in snapshot.files("lots") for line in pq.read_table(root / file.path).to_pylist())
    assert ends(segments)[-1] == total


def test_preparing_again_changes_nothing(lake):
    root, snapshot = lake
    first = prepare_stage(root, made(), snapshot, "x", 0)
    before = tree(root)
    assert prepare_stage(root, made(), snapshot, "x", 0) == first == read_stage(root / first.folder / "stage.json")
    end(root, first, 40)
    prepare_stage(root, made(), snapshot, "x", 1)
    assert prepare_stage(root, made(), snapshot, "x", 0) == first
    assert {name: data for name, data in tree(root).items() if name in before} == before | {
        "runs/x/segments.json": (root / "runs/x/segments.json").read_bytes()
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": [STAGES[0] | {"tokens": 64 * 80}, *STAGES[1:]]}, "segments_hash"),
        ({"stages": [STAGES[0] | {"training": {"clip": 0.3}}, *STAGES[1:]]}, r"training.clip: 1.0, now 0.3"),
        ({"model": {"layers": 3}}, "model.layers: 4, now 3"),
        ({"seed": 6}, "seed: 5, now 6"),
        ({"shuffle_window": 2}, "shuffle_window: 8, now 2"),
        ({"stages": [STAGES[1], STAGES[0]]}, "stages: planned were first"),
    ],
)
def test_a_changed_recipe_is_refused_with_what_changed(lake, change, message):
    root, snapshot = lake
    prepare_stage(root, made(), snapshot, "x", 0)
    before = tree(root)
    with pytest.raises(PlanError, match=message) as caught:
        prepare_stage(root, made(**change), snapshot, "x", 0)
    assert "--run" in str(caught.value)
    assert tree(root) == before
    assert prepare_stage(root, made(**change), snapshot, "y", 0).run == "y"


def test_weights_held_against_a_run_without_losses_are_refused_before_anything_runs(lake):
    root, _ = lake
    recipe = made(stages=[STAGES[0] | {"mixture": "adaptive", "adaptive": {"by": "excess", "reference": "nosuch"}}, *STAGES[1:]])
    with pytest.raises(PlanError, match="run 'nosuch' has no stage that has ended"):
        check_references(root, recipe)


def test_later_stages_may_change_until_they_are_prepared(lake):
    root, snapshot = lake
    end(root, prepare_stage(root, made(), snapshot, "x", 0), 40, "finished")
    changed = made(stages=[STAGES[0], STAGES[1] | {"tokens": 64 * 20}, STAGES[2]])
    assert read_segments(root / prepare_stage(root, changed, snapshot, "x", 1).segments)[1].rows == 20


@pytest.mark.parametrize("dies_at", ["plan.parquet", "segments.json", "stage.json"])
def test_a_kill_between_publications_is_made_good_by_the_same_call(lake, monkeypatch, dies_at):
    root, snapshot = lake

    class Killed(BaseException):
        pass

    def mortal(original, name):
        def wrapped(*args, **kwargs):
            if name == dies_at:
                raise Killed
            return original(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        for function, name in (("publish", "plan.parquet"), ("write_segments", "segments.json"), ("publish_json", "stage.json")):
            patch.setattr(stage_module, function, mortal(getattr(stage_module, function), name))
        with pytest.raises(Killed):
            prepare_stage(root, made(), snapshot, "x", 0)
    assert not (root / "runs/x/0-first/stage.json").exists()
    prepare_stage(root, made(), snapshot, "x", 0)
    mended = {name.replace("/x/", "/y/"): data for name, data in tree(root).items()}
    prepare_stage(root, made(), snapshot, "y", 0)
    for name in ("0-first/stage.json", "segments.json"):
        assert mended[f"runs/y/{name}"].replace(b"runs/x", b"runs/y").replace(b'"x"', b'"y"') == (root / f"runs/y/{name}").read_bytes()


def test_a_stage_waits_for_the_one_before(lake):
    root, snapshot = lake
    with pytest.raises(PlanError, match="stage 'first' has not ended yet"):
        prepare_stage(root, made(), snapshot, "x", 1)


def test_an_outcome_that_disagrees_with_the_plan_is_refused(lake):
    root, snapshot = lake
    settings = prepare_stage(root, made(), snapshot, "x", 0)
    end(root, settings, 16)
    path = root / settings.folder / "outcome.json"
    outcome = json.loads(path.read_text())
    path.write_text(json.dumps(outcome | {"returned": [*outcome["returned"][:-1], [outcome["returned"][-1][0], 0, 1]]}))
    with pytest.raises(PlanError, match="the stage ended before row 16 and so left 24 rows"):
        prepare_stage(root, made(), snapshot, "x", 1)


def test_lots_that_changed_since_are_refused(lake):
    root, snapshot = lake
    end(root, prepare_stage(root, made(), snapshot, "x", 0), 40, "finished")
    changed = build_lots(root, made(), judged(root, made_shards(seed=1, documents=60)), LocalExecutor(1), Silent())
    with pytest.raises(PlanError, match="the lake no longer has it"):
        prepare_stage(root, made(), changed, "x", 1)


def test_unusable_names_and_positions_are_refused(lake):
    root, snapshot = lake
    with pytest.raises(PlanError, match="no run name"):
        prepare_stage(root, made(), snapshot, "../x", 0)
    with pytest.raises(PlanError, match="no stage 3"):
        prepare_stage(root, made(), snapshot, "x", 3)
