"""Callbacks are told everything in order, keep their state over a resume, and are refused by name when they are none."""

from __future__ import annotations

import dataclasses

import pytest

from schemas.errors import RecipeError
from tests.train.run_tables import After, losses, trainer
from tests.train.tiny_lake import TRAINING, build
from train.interrupt import Interrupted

OWN = "gristmill_own_callback"
MODULE = """
from train.callbacks import Callback

class Own(Callback):
    def __init__(self):
        self.seen, self.log = [], []
    def on_start(self, run):
        self.log.append("start")
    def on_step(self, run, report):
        assert report.step + 1 == run.step and report.values["loss"] == report.result.loss
        self.seen.append(report.values["loss"])
        self.log.append(f"step {report.done}")
        run.recorder.metrics(report.step, {"own": 2.0 * report.step})
    def on_evaluation(self, run, values):
        self.log.append(f"held out {len(values)}")
    def on_checkpoint(self, run, path, seconds):
        assert (run.stage.root / path / "manifest.json").is_file() and seconds > 0
        self.log.append("checkpoint")
    def on_stop(self, run, outcome):
        self.log.append(outcome.reason if outcome else "interrupted")
    def state(self):
        return {"seen": self.seen}
    def load(self, state):
        self.seen = state["seen"]

def make():
    return Own()

def wrong():
    return 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / f"{OWN}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return dataclasses.replace(TRAINING, callbacks=(f"{OWN}:make",), eval_every=2, checkpoint_every=0)


def test_a_callback_is_told_everything_and_keeps_its_state(tmp_path, own):
    folder, _, _ = build(tmp_path, rows=16, training=own)
    with pytest.raises(Interrupted):
        trainer(tmp_path, folder, After(1)).run()
    run = trainer(tmp_path, folder)
    run.run()
    callback = run.own_callbacks[f"{OWN}:make"]
    assert callback.log == [
        *["start", "step 2", "held out 9", "checkpoint", "step 3", "step 4", "held out 9", "checkpoint", "finished"],
    ]
    assert callback.seen == list(losses(tmp_path).values()) and len(callback.seen) == 4, "the first is from before the resume"
    assert losses(tmp_path, "own") == {step: 2.0 * step for step in range(4)}


def test_one_that_was_added_since_the_checkpoint_starts_anew(tmp_path, own):
    folder, _, _ = build(tmp_path, rows=16, training=dataclasses.replace(own, callbacks=()))
    with pytest.raises(Interrupted):
        trainer(tmp_path, folder, After(1)).run()
    text = (folder / "stage.json").read_text()
    (folder / "stage.json").write_text(text.replace('"callbacks": []', f'"callbacks": ["{OWN}:make"]'))
    run = trainer(tmp_path, folder)
    run.run()
    assert len(run.own_callbacks[f"{OWN}:make"].seen) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own", "not of the form package:function"),
        ("no_such_module_anywhere:make", "cannot import"),
        (f"{OWN}:missing", "cannot import"),
        (f"{OWN}:wrong", "returned int"),
    ],
)
def test_what_is_no_callback_is_refused(tmp_path, own, name, message):
    folder, _, _ = build(tmp_path, training=dataclasses.replace(own, callbacks=(name,)))
    with pytest.raises(RecipeError, match=message):
        trainer(tmp_path, folder)
