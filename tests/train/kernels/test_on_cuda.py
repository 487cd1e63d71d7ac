"""The trainer on a CUDA device that is pretended: what it does there, with its Triton kernels, is what it does on a CPU."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from schemas.model import ModelSettings
from tests.train.kernels.pretend_cuda import Event, OnCuda, pretended
from tests.train.run_tables import After, Never, losses
from tests.train.tiny_lake import MODEL, TRAINING, build
from train import metrics
from train.attention import flex_runs
from train.data import Batch
from train.interrupt import Interrupted
from train.loop import Trainer
from train.model import Decoder
from train.optim import build_optimizer
from train.optim.shards import local_of
from train.parallel import Ranks
from train.precision import store_weights
from train.saving import copied
from train.stage import MicroBatch, Stage
from train.step import StepRules, train_step

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real device")
LENGTH = 12
CASES = {
    "adafactor": {},
    "adamw": {},
    "adamw by kernel": {"impl": "triton"},
    "came": {"warmup_steps": 1},
    "kfac": {},
    "lion": {},
    "muon": {},
    "sophia": {},
    "sophia by Hutchinson": {"estimator": "hutchinson"},
}


def micro_batch():
    """One row: a document of five tokens, one of six, and padding."""
    tokens = np.random.default_rng(1).integers(0, 40, (1, LENGTH))
    batch = Batch(tokens, np.array([0, 2]), np.array([5, 11]), np.zeros((2, 16), dtype=np.uint8))
    return MicroBatch(batch, *(np.zeros(1, dtype=np.int64) for _ in range(4)))


def one_step(device, name, precision="fp32", kind="llama", **options):
    """Loss and weights after a step."""
    settings = ModelSettings(kind=kind, layers=1, width=16, heads=2, ff_width=24)
    model = Decoder(settings, 40, LENGTH, seed=3, z_loss=1e-4)
    store_weights(model.parameters(), precision)
    model.to(device)
    optimizer = build_optimizer(name, model.named_parameters(), lr=1e-3, weight_decay=0.1, **options)
    rules = StepRules(dataclasses.replace(TRAINING, precision=precision))
    result = train_step(model, optimizer, [micro_batch()], rules, ranks=Ranks(0, 1, device), sources=1, seed=(1, 0))
    assert not result.skipped
    getattr(optimizer, "report", dict)()
    return result.loss, [local_of(p).detach().cpu().float() for p in model.parameters()], optimizer.state_dict()


def agree(one, two, tolerance):
    assert two[0] == pytest.approx(one[0], rel=tolerance)
    for mine, theirs in zip(one[1], two[1], strict=True):
        torch.testing.assert_close(theirs, mine, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES)
def test_a_step_of_each_optimizer(case):
    """Hutchinson's second derivatives among them, of which the kernels have none."""
    pytest.importorskip("triton")
    name, options = case.split()[0], CASES[case]
    with pretended() as device:
        there = one_step(device, name, **options)
    here = one_step(torch.device("cpu"), name, **{key: value for key, value in options.items() if key != "impl"})
    agree(here, there, 2e-5)
    if case == "adamw by kernel":
        assert not there[2]["param_groups"][0]["fused"], "or a resume would move each step's number to the device"


@pytest.mark.parametrize(("precision", "name"), [("bf16", "adamw"), ("fp16", "adamw"), ("bf16_weights", "lion")])
def test_a_step_in_each_precision(precision, name):
    pytest.importorskip("triton")
    with pretended() as device:
        there = one_step(device, name, precision, "gpt2")
    agree(one_step(torch.device("cpu"), name, precision, "gpt2"), there, 2e-2)


def test_a_stage_interrupted_and_resumed_with_another_number_of_threads(tmp_path, monkeypatch):
    """Threads do not change a GPU's sums, so they need not agree; checkpoints are copied from the device and back."""
    pytest.importorskip("triton")
    monkeypatch.setattr(metrics, "peak_flops", lambda *_: 1e12)  # measured once a process, and then kept
    training = dataclasses.replace(TRAINING, batch_rows=2, micro_batch_rows=1, eval_rows=1, recompute="auto", checkpoint_async=True)
    lakes = [tmp_path / name for name in ("cpu", "cuda")]

    def run(lake, device, later_threads):
        folder = build(lake, rows=4, training=training, model=MODEL)[0].relative_to(lake).as_posix()
        with pytest.raises(Interrupted):
            Trainer(Stage.open(lake, folder), Ranks(0, 1, device), After(1), threads=1).run()
        Trainer(Stage.open(lake, folder), Ranks(0, 1, device), Never(), threads=later_threads).run()
        torch.set_num_threads(1)

    run(lakes[0], torch.device("cpu"), 1)
    Event.waits = 0
    with pretended() as device:
        run(lakes[1], device, 2)
    assert Event.waits == 2, "each save waits for its copy"
    for metric in ("loss", "grad_norm", "heldout"):
        one, two = (losses(lake, metric) for lake in lakes)
        assert one.keys() == two.keys() and len(one) >= 1
        np.testing.assert_allclose(list(two.values()), list(one.values()), rtol=1e-5)


def test_what_is_on_the_device_is_copied_without_waiting_into_pinned_memory_once(monkeypatch):
    asked, waited, make, copy = [], set(), torch.empty_like, torch.Tensor.copy_

    def copying(to, by, non_blocking=False):
        waited.add((isinstance(by, OnCuda), not non_blocking))
        return copy(to, by, non_blocking)

    monkeypatch.setattr(torch, "empty_like", lambda *given, **options: asked.append(options) or make(*given, **options))
    monkeypatch.setattr(torch.Tensor, "copy_", copying)
    with pretended() as device:
        state = {"model": {"w": torch.arange(6.0).to(device)}, "step": [torch.tensor(3.0)]}
        first = copied(state, {})
        state["model"]["w"].add_(1)
        second = copied(state, first)
    assert [bool(options.get("pin_memory")) for options in asked] == [True, False]
    assert (True, False) in waited and (True, True) not in waited
    assert second["model"]["w"] is first["model"]["w"] and type(second["model"]["w"]) is torch.Tensor
    assert torch.equal(second["model"]["w"], torch.arange(1.0, 7.0)) and second["step"][0] == 3


def test_heads_too_narrow_for_flex_attention_attend_by_a_mask():
    there = OnCuda(torch.zeros(1))
    assert [flex_runs(there, ModelSettings(width=64, heads=heads)) for heads in (4, 8)] == [True, False]
    assert not flex_runs(torch.zeros(1), ModelSettings(width=64, heads=4))


def test_what_is_not_on_the_device_is_refused():
    with pretended() as device, pytest.raises(RuntimeError, match="on the CPU"):
        torch.zeros(3, device=device) + torch.zeros(3)
