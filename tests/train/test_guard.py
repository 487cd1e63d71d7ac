"""Spikes and what is not finite: judged against a plain restatement, with a save and load at any point; and in a run."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import GristmillError, RecipeError
from schemas.settings import SpikeSettings
from tests.train.run_tables import After, losses, table, trainer, valid
from tests.train.tiny_lake import TRAINING, build
from train.guard import Guard
from train.interrupt import Interrupted
from train.model import Decoder

VALUE = st.one_of(st.floats(0, 100), st.sampled_from([math.nan, math.inf, 1e30]))


@given(st.lists(st.tuples(VALUE, VALUE), max_size=30), st.integers(3, 6), st.integers(0, 29))
def test_a_step_is_judged_by_the_finite_ones_before_it(pairs, window, saved_at):
    guard = Guard(SpikeSettings(window=window, threshold=5.0))
    in_a_row = 0
    for number, pair in enumerate(pairs):
        spike = False
        for at in (0, 1):
            before = [p[at] for p in pairs[:number] if math.isfinite(p[at])][-window:]
            if len(before) == window:
                middle = statistics.median(before)
                deviation = max(1.4826 * statistics.median([abs(v - middle) for v in before]), 1e-3 * middle)
                spike |= pair[at] > middle + 5 * deviation
        finite = all(map(math.isfinite, pair))
        in_a_row = 0 if finite else in_a_row + 1
        why = guard.judge(*pair)
        assert bool(why) == (spike or not finite) and ("not finite" in why) == (not finite)
        assert guard.in_a_row == in_a_row
        if number == saved_at:
            again = Guard(guard.settings)
            again.load(json.loads(json.dumps(guard.state(), allow_nan=False)))
            guard = again


def test_a_new_level_is_no_spike_for_ever():
    guard = Guard(SpikeSettings(window=10))
    assert not any(guard.judge(1.0, 1.0) for _ in range(10))
    skipped = [bool(guard.judge(9.0, 1.0)) for _ in range(10)]
    assert skipped == [True] * 5 + [False] * 5
    assert not any(Guard(None).judge(loss, 1.0) for loss in (1.0, 1e9))


def spiking(monkeypatch, run, steps):
    """Multiply the training losses of some steps by 1,000, or by NaN."""
    original = Decoder.forward

    def forward(self, *inputs):
        found = original(self, *inputs)
        return found * steps.get(run[0].step, 1.0) if self.training else found

    monkeypatch.setattr(Decoder, "forward", forward)


def test_a_spike_changes_nothing_is_recorded_and_survives_a_resume(tmp_path, monkeypatch):
    """Window full at step 4; the spike of step 6 is skipped, in one process and in one that resumes before it."""
    training = dataclasses.replace(TRAINING, spikes=SpikeSettings(window=4, threshold=20.0))
    run: list = [None]
    spiking(monkeypatch, run, {3: math.nan, 6: 1000.0})
    for name in ("whole", "stopped"):
        folder, _, _ = build(tmp_path / name, rows=40, training=training)
        run[0] = trainer(tmp_path / name, folder, None if name == "whole" else After(6))
        if name == "stopped":
            with pytest.raises(Interrupted):
                run[0].run()
            run[0] = trainer(tmp_path / name, folder)
            assert run[0].step in (4, 5, 6)
        before: dict = {}
        step = run[0]._step

        def watched():
            if run[0].step == 6:
                before.update({n: t.clone() for n, t in run[0].model.state_dict().items()})
            step()
            if run[0].step == 7:
                assert all(torch.equal(before[n], t) for n, t in run[0].model.state_dict().items())

        run[0]._step = watched
        run[0].run()
        assert before, "the check ran"
    root = tmp_path / "stopped"
    skipped = [(e["step"], json.loads(e["detail"])["why"]) for e in valid(root, "events") if e["kind"] == "skipped"]
    assert skipped == [(3, "loss and grad_norm not finite"), (6, "spike of loss")]
    assert losses(root)[6] > 500 and len([r for r in valid(root, "ledger") if r["step"] == 6]) == 4
    monkeypatch.undo()
    for name in ("loss", "grad_norm"):  # NaN is unequal to itself
        first, second = ({k: v for k, v in losses(tmp_path / n, name).items() if k != 3} for n in ("whole", "stopped"))
        assert first == second and len(first) == 9


def test_steps_that_are_not_finite_end_the_run_with_what_to_do(tmp_path, monkeypatch):
    folder, _, _ = build(tmp_path, training=dataclasses.replace(TRAINING, max_skips=3))
    run = [trainer(tmp_path, folder)]
    spiking(monkeypatch, run, {2: math.nan, 5: math.nan, 6: math.nan, 7: math.nan})
    with pytest.raises(GristmillError, match=r"step 7: the last 3 steps .* not finite\n  -> lower"):
        run[0].run()
    assert [e["step"] for e in table(tmp_path, "events") if e["kind"] == "skipped"] == [2, 5, 6, 7]
    assert {r["step"] for r in table(tmp_path, "ledger")} == set(range(8)), "their rows are in the ledger"
    monkeypatch.undo()
    again = trainer(tmp_path, folder)
    assert again.step == 6
    again.run()
    whole, _, _ = build(tmp_path / "whole", training=TRAINING)
    spiking(monkeypatch, (second := [trainer(tmp_path / "whole", whole)]), {2: math.nan, 5: math.nan})
    second[0].run()
    assert losses(tmp_path)[11] == losses(tmp_path / "whole")[11]


def test_mistakes_are_named(tmp_path):
    for number, spikes in enumerate((SpikeSettings(window=2), SpikeSettings(threshold=0.0))):
        folder, _, _ = build(tmp_path / str(number), training=dataclasses.replace(TRAINING, spikes=spikes))
        with pytest.raises(RecipeError, match=r"training\.spikes"):
            trainer(tmp_path / str(number), folder)
