"""Recomputation changes no bit of loss or gradient, and keeps fewer bytes."""

from __future__ import annotations

import dataclasses
import math
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

from bench.live_bytes import LiveBytes
from schemas.errors import RecipeError
from tests.train.run_tables import Alone, losses, trainer
from tests.train.tiny_lake import MODEL, TRAINING, WORDS, build
from train.build import block_bytes, build_model
from train.compiling import compile_blocks, why_not
from train.model import Decoder
from train.policy import HALVES, NONE, SELECTIVE, BlockBytes, Policy, choose_policy, named_policy
from train.recompute import measure_block

needs_compiler = pytest.mark.skipif(bool(why_not(torch.device("cpu"))), reason="no C++ compiler or no Python headers")


def inputs(rows: int = 2, length: int = 32) -> list[torch.Tensor]:
    tokens = torch.arange(rows * length).view(rows, length) * 7 % WORDS
    documents = (torch.arange(length) // 12).expand(rows, length).contiguous()
    return [tokens, tokens.roll(-1, 1), documents, torch.arange(length).expand(rows, length) % 12]


def loss_and_gradients(settings, policy: Policy, precision: str, compiled: bool) -> list[torch.Tensor]:
    model = Decoder(settings, WORDS, 32, seed=2, recompute=policy)
    if compiled:
        compile_blocks(model)
    torch.manual_seed(5)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        found = model(*inputs())
    found.sum().backward()
    return [found.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize(
    ("policy", "precision", "compiled"),
    [
        *((policy, precision, False) for policy in (*map(Policy, (1, 2, 3, 9)), SELECTIVE, HALVES) for precision in ("fp32", "bf16")),
        pytest.param(Policy(2), "bf16", True, marks=needs_compiler),
        pytest.param(SELECTIVE, "bf16", True, marks=needs_compiler),
        pytest.param(HALVES, "bf16", True, marks=needs_compiler),
    ],
)
def test_loss_and_gradients_are_the_same_bits_with_dropout(policy, precision, compiled):
    settings = dataclasses.replace(MODEL, layers=5, dropout=0.3)
    expected = loss_and_gradients(settings, NONE, precision, compiled)
    assert all(map(torch.equal, expected, loss_and_gradients(settings, policy, precision, compiled)))
    without = loss_and_gradients(dataclasses.replace(settings, dropout=0.0), NONE, precision, False)
    assert not torch.equal(expected[0], without[0]), "dropout was on"


def bytes_kept_and_peak(policy: Policy) -> tuple[int, int]:
    """Bytes alive between forward and backward, and most at any moment beyond the gradients of the weights."""
    model, batch = Decoder(dataclasses.replace(MODEL, layers=16), WORDS, 32, seed=2, recompute=policy), inputs(8)
    with LiveBytes() as live:
        loss = model(*batch).sum()
        kept = live.now
        loss.backward()
    return kept, live.peak - sum(p.nbytes for p in model.parameters())


def test_fewer_bytes_are_kept():
    """16 blocks: a group keeps its input alone, and the backward pass holds the inside of one group at a time."""
    kept, peak = zip(*(bytes_kept_and_peak(policy) for policy in (NONE, Policy(1), Policy(4), Policy(16), SELECTIVE, HALVES)), strict=True)
    boundary = 8 * 32 * MODEL.width * 4
    assert kept[1] - kept[2] == 12 * boundary and kept[2] - kept[3] == 3 * boundary
    assert kept[1] < 0.2 * kept[0]
    assert peak[1] < 0.25 * peak[0] and peak[1] < peak[2] < 0.5 * peak[0] < peak[3]
    assert kept[1] < kept[4] < 0.75 * kept[0] and peak[4] < 0.75 * peak[0], "selective lies between"
    assert kept[5] < 0.2 * kept[0] and peak[5] < 0.25 * peak[0]


def test_a_run_is_the_same_with_and_without(tmp_path):
    sequences = []
    for recompute in ("none", "full", "sqrt", "every_3", "selective", "halves", "auto"):
        root = tmp_path / recompute
        training = dataclasses.replace(TRAINING, recompute=recompute, precision="bf16")
        folder, _, _ = build(root, rows=16, training=training, model=dataclasses.replace(MODEL, dropout=0.1))
        run = trainer(root, folder)
        assert run.model.recompute == (named_policy(recompute, MODEL.layers) or Policy(1))
        run.run()
        sequences.append((losses(root), losses(root, "grad_norm"), losses(root, "heldout")))
    assert all(one == sequences[0] for one in sequences)


@given(st.integers(1, 200))
def test_names_of_policies(layers):
    assert [named_policy(name, layers) for name in ("none", "full", "every_1", "every_12")] == [NONE, Policy(1), Policy(1), Policy(12)]
    assert named_policy("sqrt", layers) == Policy(math.ceil(math.sqrt(layers)))
    assert [named_policy(name, layers) for name in ("selective", "halves")] == [SELECTIVE, HALVES] and named_policy("auto", layers) is None


@pytest.mark.parametrize("name", ["every_0", "every_", "every_-1", "every_2.5", "half", ""])
def test_other_names_are_refused(name):
    with pytest.raises(RecipeError, match=r"training\.recompute"):
        named_policy(name, 4)


SIZES = st.builds(lambda b, i, p, a: BlockBytes(b, b + i, p, a), *(st.integers(1, most) for most in (99, 999, 99, 99)))


@given(SIZES, st.integers(1, 40), st.integers(1, 50_000))
def test_auto_is_the_fastest_within_a_fifth_or_within_the_budget(sizes, layers, budget):
    peaks = {k: -(-layers // k) * sizes.boundary + k * sizes.inside for k in range(1, layers + 1)}
    everything, smallest = layers * sizes.inside, min(peaks.values())
    halves = layers * (2 * sizes.boundary + sizes.attention) + sizes.inside
    found = choose_policy(sizes, layers)
    assert found == HALVES if 5 * halves <= everything else peaks[found.group] == smallest
    for peak, policy in ((everything, NONE), (halves, HALVES), (layers * (sizes.boundary + sizes.products) + sizes.inside, SELECTIVE)):
        if peak <= budget:
            assert choose_policy(sizes, layers, budget) == policy
            return
    if smallest <= budget:
        assert peaks[choose_policy(sizes, layers, budget).group] == smallest
    else:
        with pytest.raises(RecipeError, match="recompute_budget_mib"):
            choose_policy(sizes, layers, budget)


def test_what_is_measured_foretells_what_is_held(tmp_path):
    """Bytes held by 16 blocks after the forward pass, as counted, are those of the measurement within a tenth (the head's left out)."""
    model = dataclasses.replace(MODEL, layers=16)
    training = dataclasses.replace(TRAINING, recompute="auto", micro_batch_rows=8, batch_rows=8)
    folder, _, _ = build(tmp_path, rows=16, training=training, model=model)
    stage = trainer(tmp_path, folder).stage
    decoder = build_model(stage, Alone())
    sizes = block_bytes(stage, decoder, Alone())
    head = bytes_kept_and_peak(NONE)[0] - bytes_kept_and_peak(Policy(16))[0] - 15 * sizes.inside
    assert sizes.boundary == 8 * 32 * model.width * 4 and head == pytest.approx(sizes.inside, rel=0.1)
    assert decoder.recompute == choose_policy(sizes, 16) == Policy(1)


def test_a_budget_is_for_auto_alone(tmp_path):
    for recompute, expected in (("auto", NONE), ("full", None)):
        training = dataclasses.replace(TRAINING, recompute=recompute, recompute_budget_mib=64)
        folder, _, _ = build(tmp_path / recompute, training=training)
        if expected is None:
            with pytest.raises(RecipeError, match="only recompute: auto"):
                trainer(tmp_path / recompute, folder)
        else:
            assert trainer(tmp_path / recompute, folder).model.recompute == expected


def test_measuring_a_block_leaves_compiled_what_it_compiles_by_itself():
    """Flex attention uncompiled has all its scores in memory, which would be measured as held."""
    counter = CompileCounter()
    compiled = torch.compile(lambda x: x.exp() * 2, backend=counter)
    measure_block(lambda x, shared: compiled(x), torch.zeros(2, 3), types.SimpleNamespace())
    assert counter.frame_count == 1
