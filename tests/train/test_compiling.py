"""torch.compile by block: the same losses, resumed bit for bit, and eager with one line where it cannot work."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.train.run_tables import losses, table, trainer
from tests.train.test_resume import TRICKY, After, assert_same_run
from tests.train.tiny_lake import MODEL, build
from train.compiling import why_not
from train.interrupt import Interrupted

STAGE = {
    "rows": 16,
    "model": dataclasses.replace(MODEL, layers=1),
    "training": dataclasses.replace(TRICKY, eval_every=2, checkpoint_every=0),
}


@pytest.mark.skipif(bool(why_not(torch.device("cpu"))), reason="no C++ compiler or no Python headers")
def test_compiled_losses_are_the_eager_ones_and_resume_bit_for_bit(tmp_path):
    compiled = {**STAGE, "training": dataclasses.replace(STAGE["training"], compile=True)}
    for name, stage in (("eager", STAGE), ("whole", compiled), ("stopped", compiled)):
        folder, _, _ = build(tmp_path / name, **stage)
        if name == "stopped":
            with pytest.raises(Interrupted):
                trainer(tmp_path / name, folder, After(3)).run()
        trainer(tmp_path / name, folder).run()
    eager, whole = losses(tmp_path / "eager"), losses(tmp_path / "whole")
    np.testing.assert_allclose(list(whole.values()), list(eager.values()), rtol=1e-5)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_without_a_compiler_it_trains_eager_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: None)
    folder, _, _ = build(tmp_path, **{**STAGE, "training": dataclasses.replace(STAGE["training"], compile=True)})
    trainer(tmp_path, folder).run()
    assert capsys.readouterr().err.count("training without torch.compile: no C++ compiler") == 1
    started = next(e for e in table(tmp_path, "events") if e["kind"] == "started")
    assert '"compiled": false' in started["detail"]
