"""Recomputation changes no bit of loss or gradient, and keeps fewer bytes."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.live_bytes import LiveBytes
from schemas.errors import RecipeError
from tests.train.run_tables import losses, trainer
from tests.train.tiny_lake import MODEL, TRAINING, WORDS, build
from train.compiling import compile_blocks, why_not
from train.model import Decoder
from train.recompute import group_size

needs_compiler = pytest.mark.skipif(bool(why_not(torch.device("cpu"))), reason="no C++ compiler or no Python headers")


def inputs(rows: int = 2, length: int = 32) -> list[torch.Tensor]:
    tokens = torch.arange(rows * length).view(rows, length) * 7 % WORDS
    documents = (torch.arange(length) // 12).expand(rows, length).contiguous()
    return [tokens, tokens.roll(-1, 1), documents, torch.arange(length).expand(rows, length) % 12]


def loss_and_gradients(settings, group: int, precision: str, compiled: bool) -> list[torch.Tensor]:
    model = Decoder(settings, WORDS, 32, seed=2, recompute=group)
    if compiled:
        compile_blocks(model)
    torch.manual_seed(5)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        found = model(*inputs())
    found.sum().backward()
    return [found.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize(
    ("group", "precision", "compiled"),
    [
        *((group, precision, False) for group in (1, 2, 3, 9) for precision in ("fp32", "bf16")),
        pytest.param(2, "bf16", True, marks=needs_compiler),
    ],
)
def test_loss_and_gradients_are_the_same_bits_with_dropout(group, precision, compiled):
    settings = dataclasses.replace(MODEL, layers=5, dropout=0.3)
    expected = loss_and_gradients(settings, 0, precision, compiled)
    assert all(map(torch.equal, expected, loss_and_gradients(settings, group, precision, compiled)))
    without = loss_and_gradients(dataclasses.replace(settings, dropout=0.0), 0, precision, False)
    assert not torch.equal(expected[0], without[0]), "dropout was on"


def bytes_kept_and_peak(group: int) -> tuple[int, int]:
    """Bytes alive between forward and backward, and most at any moment beyond the gradients of the weights."""
    model, batch = Decoder(dataclasses.replace(MODEL, layers=16), WORDS, 32, seed=2, recompute=group), inputs(8)
    with LiveBytes() as live:
        loss = model(*batch).sum()
        kept = live.now
        loss.backward()
    return kept, live.peak - sum(p.nbytes for p in model.parameters())


def test_fewer_bytes_are_kept():
    """16 blocks: a group keeps its input alone, and the backward pass holds the inside of one group at a time."""
    kept, peak = zip(*(bytes_kept_and_peak(group) for group in (0, 1, 4, 16)), strict=True)
    boundary = 8 * 32 * MODEL.width * 4
    assert kept[1] - kept[2] == 12 * boundary and kept[2] - kept[3] == 3 * boundary
    assert kept[1] < 0.2 * kept[0]
    assert peak[1] < 0.25 * peak[0] and peak[1] < peak[2] < 0.5 * peak[0] < peak[3]


def test_a_run_is_the_same_with_and_without(tmp_path):
    sequences = []
    for recompute in ("none", "full", "sqrt", "every_3"):
        root = tmp_path / recompute
        training = dataclasses.replace(TRAINING, recompute=recompute, precision="bf16")
        folder, _, _ = build(root, rows=16, training=training, model=dataclasses.replace(MODEL, dropout=0.1))
        run = trainer(root, folder)
        assert run.model.recompute == {"none": 0, "full": 1, "sqrt": 2, "every_3": 3}[recompute]
        run.run()
        sequences.append((losses(root), losses(root, "grad_norm"), losses(root, "heldout")))
    assert all(one == sequences[0] for one in sequences)


@given(st.integers(1, 200))
def test_sizes_of_groups(layers):
    assert [group_size(name, layers) for name in ("none", "full", "every_1", "every_12")] == [0, 1, 1, 12]
    size = group_size("sqrt", layers)
    assert size == math.ceil(math.sqrt(layers))


@pytest.mark.parametrize("name", ["every_0", "every_", "every_-1", "every_2.5", "half", ""])
def test_other_names_are_refused(name):
    with pytest.raises(RecipeError, match=r"training\.recompute"):
        group_size(name, 4)
