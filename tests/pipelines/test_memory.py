"""Memory worked out from settings against tensors counted while a model trains."""

from __future__ import annotations

import pytest
import torch

from bench.live_bytes import LiveBytes
from pipelines.memory import block_bytes, memory
from schemas.settings import ModelSettings, OptimizerSettings, TrainSettings
from train import attention
from train.model import Decoder
from train.optim import build_optimizer
from train.policy import named_policy
from train.precision import precision_context
from train.recompute import measure_block

CPU, ROWS, LENGTH, WORDS = torch.device("cpu"), 4, 64, 512
MODELS = [
    ModelSettings(layers=8),
    ModelSettings(layers=8, heads=8, kv_heads=2, ff_width=512),
    ModelSettings(layers=8, dropout=0.1),
]


@pytest.fixture(autouse=True)
def attention_as_on_a_gpu(monkeypatch):
    """Attention in the step's precision whatever this processor prefers: on some CPUs it is FP32 over short rows, which plans leave out."""
    monkeypatch.setattr(attention, "_WIDE_TO", 0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("settings", MODELS)
def test_a_block_holds_what_the_formula_says(settings, precision):
    model = Decoder(settings, WORDS, LENGTH)
    numbers = torch.zeros((ROWS, LENGTH), dtype=torch.int64)
    with precision_context(precision, CPU):
        found = measure_block(model.blocks[0], torch.zeros(ROWS, LENGTH, settings.width), model.packing(numbers, numbers))
    said = block_bytes(settings, precision, ROWS, LENGTH)
    assert (said.boundary, said.products, said.attention) == (found.boundary, found.products, found.attention)
    assert (said.inside, said.half) == pytest.approx((found.inside, found.half), rel=0.01)


@pytest.mark.parametrize(
    ("recompute", "precision"), [("none", "bf16"), ("full", "fp32"), ("sqrt", "bf16"), ("selective", "fp32"), ("halves", "bf16")]
)
def test_a_whole_step_peaks_within_a_tenth_of_the_estimate(recompute, precision):
    """Weights, gradients, AdamW's moments and activations together, in the second micro-batch, when gradients are there already."""
    settings = ModelSettings(layers=6, width=128, heads=2)
    policy = named_policy(recompute, settings.layers)
    numbers = torch.zeros((ROWS, LENGTH), dtype=torch.int64)
    with LiveBytes() as live:
        model = Decoder(settings, WORDS, LENGTH, recompute=policy)
        optimizer = build_optimizer("adamw", model.named_parameters(), lr=1e-3)
        for micro in range(3):
            with precision_context(precision, CPU):
                loss = model(numbers, numbers, numbers, numbers).sum()
            loss.backward()
            del loss
            if micro == 1:
                optimizer.step()  # so that its state is there
                live.peak = live.now
    count = model.parameter_count()
    said = memory(settings, TrainSettings(precision=precision, recompute=recompute, micro_batch_rows=ROWS), count, WORDS, LENGTH)
    assert said.total == pytest.approx(live.peak, rel=0.1)


@pytest.mark.parametrize("name", ["adamw", "sophia", "lion", "sgd", "muon", "came", "adafactor"])
def test_optimizer_state_is_what_the_optimizer_holds(name):
    settings = ModelSettings(layers=2, width=256)
    model = Decoder(settings, WORDS, 8)
    optimizer = build_optimizer(name, model.named_parameters(), lr=1e-3, warmup_steps=10)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    held = sum(v.nbytes for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor))
    training = TrainSettings(optimizer=OptimizerSettings(name=name))
    said = memory(settings, training, model.parameter_count(), WORDS, 8)
    assert said.optimizer == pytest.approx(held, abs=0.03 * 4 * model.parameter_count())
