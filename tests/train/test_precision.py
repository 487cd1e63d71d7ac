"""Precisions: FP16's loss scale against torch's own, gradients that scaling does not change, and runs that resume bit for bit."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import RecipeError
from tests.train.run_tables import After, losses, table, trainer
from tests.train.test_resume import TRICKY, assert_same_run
from tests.train.tiny_lake import MODEL, TRAINING, build
from train.interrupt import Interrupted
from train.precision import LossScale


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.integers(0, 59))
def test_the_scale_moves_as_torchs_does_with_a_floor(finite, interval, saved_at):
    oracle = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=interval)
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    ours, expected = LossScale("fp16", start=1024.0, interval=interval), 1024.0
    for number, good in enumerate(finite):
        oracle.scale(parameter.sum() if good else parameter.sum() * float("inf")).backward()
        oracle.step(optimizer)
        oracle.update()
        if oracle.get_scale() < 1:
            oracle.update(1.0)  # the floor, after the update that starts its count of finite steps anew
        optimizer.zero_grad()
        ours.update(good)
        expected = oracle.get_scale()
        assert ours.value == expected >= 1
        if number == saved_at:
            again = LossScale("fp16", start=3.0, interval=interval)
            again.load(json.loads(json.dumps(ours.state())))
            ours = again
    assert ours.overflows == finite.count(False)


def test_other_precisions_have_no_scale():
    for precision in ("bf16", "bf16_weights", "fp32"):
        scale = LossScale(precision)
        scale.update(False)
        assert scale.value == 1.0


@pytest.mark.parametrize("precision", ["fp16", "bf16", "bf16_weights"])
def test_half_precision_trains_as_fp32_does(tmp_path, precision):
    sequences = []
    optimizer = dataclasses.replace(TRAINING.optimizer, name="lion", lr=3e-4)
    for name in ("fp32", precision):
        folder, _, _ = build(tmp_path / name, rows=40, training=dataclasses.replace(TRAINING, precision=name, optimizer=optimizer))
        run = trainer(tmp_path / name, folder)
        run.run()
        sequences.append(list(losses(tmp_path / name).values()))
        matrices = {p.dtype for p in run.model.parameters() if p.ndim > 1}
        assert matrices == {torch.bfloat16 if name == "bf16_weights" else torch.float32}
        assert {p.dtype for p in run.model.parameters() if p.ndim == 1} == {torch.float32}
        states = {v.dtype for s in run.optimizer.state.values() for v in s.values() if v.ndim}
        assert states == {torch.float32}, "states, and the master where there is one"
        assert all(("master" in s) == (p.dtype == torch.bfloat16) for p, s in run.optimizer.state.items())
    np.testing.assert_allclose(*sequences, atol=5e-3 if precision == "fp16" else 4e-2)
    assert sequences[1][-1] < sequences[1][0] - 0.05


def test_fp16_overflows_are_skipped_and_the_scale_is_saved(tmp_path):
    """A scale that overflows at first: it halves until steps go through; an interrupt in between changes nothing."""
    training = dataclasses.replace(TRICKY, precision="fp16", spikes=None, eval_every=0)
    for name in ("whole", "stopped"):
        folder, _, _ = build(tmp_path / name, rows=48, training=training, model=dataclasses.replace(MODEL, dropout=0.1))
        run = trainer(tmp_path / name, folder, None if name == "whole" else After(3))
        run.rules.scale.value = 2.0**28
        if name == "stopped":
            with pytest.raises(Interrupted):
                run.run()
            run = trainer(tmp_path / name, folder)
            assert run.step == 3 and run.rules.scale.value == 2.0**25 and run.rules.scale.overflows == 3
        run.run()
    skipped = [e for e in table(tmp_path / "whole", "events") if e["kind"] == "skipped"]
    assert 4 <= len(skipped) <= 11 and [e["step"] for e in skipped] == list(range(len(skipped)))
    assert json.loads(skipped[0]["detail"])["loss_scale"] == 2.0**27 and all("grad_norm not finite" in e["detail"] for e in skipped)
    assert run.rules.scale.value == 2.0 ** (28 - len(skipped))
    assert_same_but_nan(tmp_path / "whole", tmp_path / "stopped", len(skipped))


def assert_same_but_nan(one, two, skipped):
    """Gradient norms of skipped steps are NaN or infinite; everything else is equal bit for bit."""
    for name in ("loss", "grad_norm"):
        pair = [[v for step, v in losses(root, name).items() if name == "loss" or step >= skipped] for root in (one, two)]
        assert pair[0] == pair[1] and pair[0]


def test_bf16_weights_resume_bit_for_bit(tmp_path):
    for rounding in ({}, {"rounding": "stochastic"}):
        optimizer = dataclasses.replace(TRAINING.optimizer, name="adafactor", options=rounding)
        stage = {"rows": 24, "training": dataclasses.replace(TRICKY, precision="bf16_weights", optimizer=optimizer)}
        root = tmp_path / str(len(rounding))
        folder, _, _ = build(root / "whole", **stage)
        trainer(root / "whole", folder).run()
        folder, _, _ = build(root / "stopped", **stage)
        with pytest.raises(Interrupted):
            trainer(root / "stopped", folder, After(3)).run()
        again = trainer(root / "stopped", folder)
        assert any("master" in s for s in again.optimizer.state.values()) == (not rounding)
        again.run()
        assert_same_run(root / "whole", root / "stopped")


def test_an_optimizer_that_cannot_write_bf16_weights_is_refused(tmp_path):
    folder, _, _ = build(tmp_path, training=dataclasses.replace(TRAINING, precision="bf16_weights"))
    with pytest.raises(RecipeError, match="adamw.*bf16_weights"):
        trainer(tmp_path, folder)
