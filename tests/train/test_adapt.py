"""Adaptive weights in the loop: decisions are segments, committed before they count, made once, and the same again after a kill."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest

from schemas.adaptive import AdaptiveSettings
from schemas.segments import Decision, read_segments, segments_hash, write_segments
from schemas.store import publish_json
from tests.train.run_tables import losses, trainer, valid
from tests.train.tiny_lake import TRAINING, build
from train.adapt import adapted
from train.interrupt import Interrupted
from train.stage import Stage

START = {"code": 0.75, "prose": 0.25}


def adaptive(root, **changes):
    """A stage of 24 steps with an evaluation every 4, whose weights move after each."""
    training = dataclasses.replace(TRAINING, eval_every=4, checkpoint_every=0)
    folder, lots, _ = build(root, rows=96, epochs=4, training=training)
    path = root / "runs/r/segments.json"
    (segment,) = read_segments(path)
    first = dataclasses.replace(segment, decisions=tuple(Decision(name, share, share) for name, share in START.items()))
    write_segments(root, "runs/r/segments.json", [first])
    settings = AdaptiveSettings(**{"by": "speed", "every": 1, "rate": 2.0, "least": 0.1, "start": START, "reference": {}} | changes)
    value = json.loads((folder / "stage.json").read_text())
    value |= {"adaptive": dataclasses.asdict(settings), "segments_hash": segments_hash([first])}
    publish_json(root, f"{folder.relative_to(root).as_posix()}/stage.json", value)
    return folder, {lot.lot: lot for lot in lots}


class After:
    """An interrupt that comes when it has been asked a number of times."""

    def __init__(self, times):
        self.times = times

    @property
    def came(self):
        self.times -= 1
        return self.times < 0


def test_decisions_are_segments_and_budgets_hold(tmp_path):
    folder, lots = adaptive(tmp_path)
    outcome = trainer(tmp_path, folder).run()
    segments = read_segments(tmp_path / "runs/r/segments.json")
    assert [(s.first_step, s.first_row, s.rows, s.why) for s in segments[1:]] == [
        (step, 4 * step, 96 - 4 * step, "adaptive") for step in (4, 8, 12, 16, 20)
    ]
    assert all(d.after == d.before for d in segments[1].decisions)
    assert any(d.after != d.before for segment in segments[2:] for d in segment.decisions)
    ledger = valid(tmp_path, "ledger")
    for segment, end in zip(segments, [s.first_row for s in segments[1:]] + [96], strict=True):
        rows = [r for r in ledger if segment.first_row <= r["index"] < end]
        for share in segment.sources:
            wanted = len(rows) * share.quota / sum(s.quota for s in segment.sources)
            assert abs(sum(r["source"] == share.source for r in rows) - wanted) < 1
    uses = Counter((r["lot"], r["use"]) for r in ledger)
    assert len(uses) == 96 and set(uses.values()) == {1}
    assert max(Counter((r["lot"], r["row"]) for r in ledger).values()) <= 4
    given = sum(stop - start for _, start, stop in outcome.returned)
    assert given == sum(4 * lot.rows for lot in lots.values()) - 96


def test_a_stage_killed_anywhere_makes_the_same_decisions(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    trainer(whole, adaptive(whole)[0]).run()
    folder = adaptive(killed)[0]
    for times in (3, 6, 7, 11):
        with pytest.raises(Interrupted):
            trainer(killed, folder, After(times)).run()
    trainer(killed, folder).run()
    assert read_segments(killed / "runs/r/segments.json") == read_segments(whole / "runs/r/segments.json")
    assert losses(killed) == losses(whole)


def test_a_committed_decision_stands(tmp_path):
    folder, _ = adaptive(tmp_path)
    path = folder.relative_to(tmp_path).as_posix()
    run = trainer(tmp_path, folder)
    stage = adapted(run.stage, 4, 4, {"heldout/code": 3.0, "heldout/prose": 3.0}, run.ranks)
    assert len(stage.segments) == 2
    assert adapted(stage, 4, 4, {"heldout/code": 1.0, "heldout/prose": 2.0}, run.ranks) is stage
    assert len(Stage.open(tmp_path, path).segments) == 2
    assert adapted(stage, 5, 5, {"heldout/code": 1.0}, run.ranks) is stage
    again = adapted(stage, 8, 8, {"heldout/code": 1.0, "heldout/prose": 3.0}, run.ranks)
    assert next(d.after for d in again.segments[-1].decisions) > 0.75
