"""Reduce on plateau: against a plain restatement, with a save and load at any point; and in a run that is interrupted."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RecipeError
from schemas.settings import PlateauSettings
from tests.train.run_tables import After, losses, trainer, valid
from tests.train.test_resume import TRICKY, assert_same_run
from tests.train.tiny_lake import TRAINING, build
from train.interrupt import Interrupted
from train.plateau import Plateau

VALUES = st.lists(st.one_of(st.floats(0, 5), st.just(math.nan)), max_size=20)


@given(VALUES, st.integers(1, 4), st.sampled_from([0.0, 0.5]), st.integers(0, 19))
def test_it_falls_after_patience_evaluations_without_improvement(values, patience, min_delta, saved_at):
    settings = PlateauSettings("heldout/code", factor=0.5, patience=patience, min_delta=min_delta, min_ratio=0.2)
    plateau, best, waited, factor = Plateau(settings), math.inf, 0, 1.0
    for number, value in enumerate(values):
        if value < best - min_delta:  # false for NaN
            best, waited = value, 0
        else:
            waited += 1
        fell = waited >= patience and factor > 0.2
        if fell:
            factor, waited = max(0.2, factor / 2), 0
        assert plateau.update({"heldout/code": value, "heldout": 0.0}) == fell and plateau.factor == factor
        if number == saved_at:
            again = Plateau(settings)
            again.load(json.loads(json.dumps(plateau.state(), allow_nan=False)))
            plateau = again
    assert not Plateau(None).update({})


def test_a_run_that_plateaus_resumes_bit_for_bit(tmp_path):
    """No evaluation improves by 10 nats on the first, so each pair of later ones halves the learning rate."""
    training = dataclasses.replace(
        TRICKY,
        eval_every=1,
        schedule=dataclasses.replace(TRICKY.schedule, name="constant", warmup_steps=0),
        plateau=PlateauSettings(min_delta=10.0),
    )
    stage = {"rows": 32, "training": training}
    folder, _, _ = build(tmp_path / "whole", **stage)
    trainer(tmp_path / "whole", folder).run()
    rates = [rate / TRAINING.optimizer.lr for rate in losses(tmp_path / "whole", "lr").values()]
    assert rates == [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]
    assert [e["step"] for e in valid(tmp_path / "whole", "events") if e["kind"] == "plateau"] == [2, 4, 6]
    for checks in (9, 12, 15):
        folder, _, _ = build(tmp_path / str(checks), **stage)
        with pytest.raises(Interrupted):
            trainer(tmp_path / str(checks), folder, After(checks)).run()
        trainer(tmp_path / str(checks), folder).run()
        assert_same_run(tmp_path / "whole", tmp_path / str(checks))


@pytest.mark.parametrize(
    ("change", "field"),
    [({"factor": 1.0}, "factor"), ({"patience": 0}, "patience"), ({"min_ratio": 1.0}, "min_ratio"), ({"monitor": "x"}, "monitor")],
)
def test_mistakes_are_named(tmp_path, change, field):
    folder, _, _ = build(tmp_path, training=dataclasses.replace(TRAINING, plateau=PlateauSettings(**change)))
    with pytest.raises(RecipeError, match=rf"training\.plateau\.{field}"):
        trainer(tmp_path, folder)
