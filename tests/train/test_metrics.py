"""What is logged: FLOPs against a count of every product, figures that add up, and trackers that get what the table has."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from schemas.errors import RecipeError
from tests.train.run_tables import After, losses, trainer
from tests.train.test_recompute import inputs
from tests.train.tiny_lake import MODEL, TRAINING, WORDS, build
from train.device_peak import peak_flops
from train.interrupt import Interrupted
from train.metrics import flops_per_position
from train.model import Decoder


@pytest.mark.parametrize("tied", [True, False])
def test_flops_are_those_of_every_product(tied):
    """Key heads as many as query heads, the formula's case. The counter does not see into the fused head: its three products are added."""
    model = Decoder(dataclasses.replace(MODEL, layers=3, kv_heads=4, tied=tied), WORDS, 32)
    rows, length = 2, 32
    with FlopCounterMode(display=False) as counter:
        model(*inputs(rows, length)).sum().backward()
    attention = 12 * 3 * MODEL.width * length * rows * length
    counted = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
    products = sum(count for name, count in counted.items() if "attention" not in name)
    head = 6 * WORDS * MODEL.width * rows * length
    assert flops_per_position(model) * rows * length == pytest.approx(products + attention + head, rel=1e-6)
    seen = sum(count for name, count in counted.items() if "attention" in name)
    assert seen in (0, attention, attention * 7 // 6), "flash attention computes the scores again"


def test_the_logged_figures(tmp_path):
    training = dataclasses.replace(TRAINING, log_every=4, checkpoint_every=2, eval_every=0)
    folder, _, _ = build(tmp_path, rows=32, training=training)
    run = trainer(tmp_path, folder)
    run.run()
    for name in ("tokens_per_second", "mfu", "memory_bytes", "update_rms", "data_wait_seconds"):
        values = losses(tmp_path, name)
        assert list(values) == [3, 7] and all(value > 0 for value in values.values()), name
    assert all(value > 0 for value in losses(tmp_path, "checkpoint_seconds").values())
    assert set(losses(tmp_path, "compiled_graphs").values()) == {0.0}
    assert 0.1 < losses(tmp_path, "update_rms")[7] < 2, "Adam's directions are of the order of one"
    peak = peak_flops(torch.device("cpu"), torch.float32)
    assert peak > 1e8 and losses(tmp_path, "mfu")[3] < 1


def test_tensorboard_has_what_the_table_has_over_a_resume(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _, _ = build(tmp_path, rows=24, training=dataclasses.replace(TRAINING, trackers=("tensorboard",)))
    with pytest.raises(Interrupted):
        trainer(tmp_path, folder, After(3)).run()
    trainer(tmp_path, folder).run()
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    for name in ("loss", "loss/code", "heldout", "lr"):
        assert {e.step: e.value for e in events.Scalars(name)} == pytest.approx(losses(tmp_path, name))


def test_wandb_is_offline_without_a_key_and_gets_every_value(tmp_path, monkeypatch):
    """The package itself is not needed to run; what stands in for it here keeps what it is given."""
    calls: list = []
    fake = types.ModuleType("wandb")
    fake.init = lambda **options: calls.append(("init", options))
    fake.log = lambda values, step: calls.append(("log", step, values))
    fake.finish = lambda: calls.append(("finish",))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    folder, _, _ = build(tmp_path, rows=16, training=dataclasses.replace(TRAINING, trackers=("wandb",)))
    trainer(tmp_path, folder).run()
    assert calls[0][1]["mode"] == "offline" and calls[0][1]["config"]["model"]["layers"] == 2 and calls[-1] == ("finish",)
    logged = {call[1]: call[2]["loss"] for call in calls if call[0] == "log" and "loss" in call[2]}
    assert logged == losses(tmp_path)
    assert any("heldout" in call[2] for call in calls if call[0] == "log")
    monkeypatch.setenv("WANDB_API_KEY", "x")
    folder, _, _ = build(tmp_path / "key", rows=4, training=dataclasses.replace(TRAINING, trackers=("wandb",)))
    trainer(tmp_path / "key", folder).run()
    assert [call[1]["mode"] for call in calls if call[0] == "init"] == ["offline", "online"]


def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    folder, _, _ = build(tmp_path, training=dataclasses.replace(TRAINING, trackers=("wandb",)))
    with pytest.raises(RecipeError, match="wandb is not installed"):
        trainer(tmp_path, folder)


def test_a_gpu_is_known_by_whole_words_of_its_name(monkeypatch):
    """An A10G is no A10, an L40 no L4."""
    names = {
        "NVIDIA H100 80GB HBM3": 989,
        "NVIDIA H100 PCIe": 756,
        "NVIDIA GH200 480GB": 989,
        "NVIDIA A100-SXM4-80GB": 312,
        "NVIDIA A10": 125,
        "NVIDIA A10G": 70,
        "NVIDIA L40S": 362,
        "NVIDIA L40": 181,
        "NVIDIA L4": 121,
    }
    for name, tflops in names.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        assert peak_flops.__wrapped__(torch.device("cuda", 0), torch.bfloat16) == tflops * 1e12, name
