"""torch.compile by block: the same losses, resumed bit for bit, and eager with one line where it cannot work."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.train.run_tables import After, losses, table, trainer
from tests.train.test_resume import TRICKY, assert_same_run
from tests.train.tiny_lake import MODEL, build, write_stage
from train.compiling import why_not
from train.interrupt import Interrupted

STAGE = {
    "rows": 16,
    "model": dataclasses.replace(MODEL, layers=1),
    "training": dataclasses.replace(TRICKY, eval_every=2, checkpoint_every=0),
}


MOMENTS = {"step 0": 0, "amid an evaluation": 3, "after the first checkpoint": 5, "the end of an epoch": 10, "the last evaluation": 16}
"""How often a run asks about interrupts before one comes: once a step, and for each of two forward passes of an evaluation."""


@pytest.mark.skipif(bool(why_not(torch.device("cpu"))), reason="no C++ compiler or no Python headers")
def test_compiled_losses_are_the_eager_ones_and_resume_bit_for_bit(tmp_path):
    """Nine steps, the code lot's second epoch begins within; then a stage boundary, with an interrupt before its first step."""
    training = dataclasses.replace(STAGE["training"], batch_rows=8, micro_batch_rows=4, checkpoint_every=3)
    eager = {**STAGE, "rows": 72, "training": training}
    compiled = {**eager, "training": dataclasses.replace(training, compile=True)}
    folder, lots, held = build(tmp_path / "eager", **eager)
    trainer(tmp_path / "eager", folder).run()
    for name in ("whole", *MOMENTS):
        root = tmp_path / name
        folder, _, _ = build(root, **compiled)
        if name in MOMENTS:
            with pytest.raises(Interrupted):
                trainer(root, folder, After(MOMENTS[name])).run()
        run = trainer(root, folder)
        outcome = run.run()
        if name in MOMENTS:
            assert_same_run(tmp_path / "whole", root)
    assert max(r["use"] for r in table(tmp_path / "whole", "ledger") if r["lot"] == lots[0].lot) >= lots[0].rows
    found = [list(losses(tmp_path / name).values()) for name in ("whole", "eager")]
    np.testing.assert_allclose(*found, rtol=1e-5)
    returned = {lot: (start, stop) for lot, start, stop in outcome.returned}
    for name in ("whole", "step 0"):
        root = tmp_path / name
        second = write_stage(
            root, "second", lots, held, returned, 24, quotas={"code": 3, "prose": 1}, init_from="runs/r/0-first", first=(72, 9),
            training=compiled["training"], model=STAGE["model"],
        )  # fmt: skip
        if name == "step 0":
            with pytest.raises(Interrupted):
                trainer(root, second, After(0)).run()
        trainer(root, second).run()
    assert losses(tmp_path / "whole") == losses(tmp_path / "step 0") and len(losses(tmp_path / "whole")) == 12


def test_without_a_compiler_it_trains_eager_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: None)
    folder, _, _ = build(tmp_path, **{**STAGE, "training": dataclasses.replace(STAGE["training"], compile=True)})
    trainer(tmp_path, folder).run()
    assert capsys.readouterr().err.count("training without torch.compile: no C++ compiler") == 1
    started = next(e for e in table(tmp_path, "events") if e["kind"] == "started")
    assert '"compiled": false' in started["detail"]
