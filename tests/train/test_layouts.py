"""Tensor- and pipeline-parallel ranks, with and without data-parallel ones, train as one process does and resume its checkpoints."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from schemas.errors import RecipeError
from schemas.parallel import ParallelSettings
from schemas.settings import StageSettings, read_stage
from schemas.settings import build as from_json
from tests.train.layout_cases import BASE, CASES, FOLDER, RESUMED, Case, prepare, train, work
from tests.train.processes import run_ranks
from tests.train.run_tables import Alone, losses, valid
from tests.train.tiny_lake import build
from train.checkpoint import load
from train.layout import layout_for

gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available()
METRICS = ("loss", "loss/prose", "grad_norm", "heldout", "bits_per_byte/code", "accuracy/quiz", "accuracy_raw/quiz")


@pytest.fixture(scope="module")
def lakes(tmp_path_factory):
    """What every layout trained, by ranks; one process trained ``one <case>``."""
    if not gloo:
        pytest.skip("no gloo")
    root = tmp_path_factory.mktemp("layouts")
    every = [case for cases in CASES.values() for case in cases.values()]
    for case in {case.whole: case for case in [*every, Case("replicate")]}.values():
        prepare(root / case.whole, case, whole=True)
        train(root / case.whole, Alone())
    for world, cases in CASES.items():
        for name, case in cases.items():
            prepare(root / name, case, whole=False)
        for name, layout in RESUMED[world].items():
            for way in (f"{name} to one", f"one to {name}"):
                prepare(root / way, Case(layout), whole=False)
            train(root / f"one to {name}", Alone(), steps=2)
        run_ranks(work, world, root, str(root))
        (root / "rendezvous").unlink(missing_ok=True)
        for name in RESUMED[world]:
            train(root / f"{name} to one", Alone())
    return root


def assert_same(root, other):
    """Rows, losses of every kind, answers, losses by document, and weights."""
    assert [r["row"] for r in valid(root, "ledger")] == [r["row"] for r in valid(other, "ledger")]
    for name in METRICS:
        one, two = losses(root, name), losses(other, name)
        assert one.keys() == two.keys()
        np.testing.assert_allclose(list(two.values()), list(one.values()), rtol=1e-5, err_msg=name)
    pieces = [valid(lake, "losses") for lake in (root, other)]
    assert [(r["step"], r["lot"], r["row"], r["doc_id"]) for r in pieces[1]] == [
        (r["step"], r["lot"], r["row"], r["doc_id"]) for r in pieces[0]
    ]
    np.testing.assert_allclose([r["loss"] for r in pieces[1]], [r["loss"] for r in pieces[0]], rtol=1e-4, atol=1e-4)
    whole = [load(lake, json.loads((lake / FOLDER / "outcome.json").read_text())["checkpoint"]) for lake in (root, other)]
    weights = [checkpoint.tensors("model") for checkpoint in whole]
    assert weights[0].keys() == weights[1].keys()
    for key, value in weights[0].items():
        torch.testing.assert_close(weights[1][key], value, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(("name", "case"), [pair for cases in CASES.values() for pair in cases.items()])
def test_every_layout_trains_as_one_process_does(lakes, name, case):
    """Ragged: 26 rows in steps of 5, documents of all lengths, clipping that always acts."""
    assert min(losses(lakes / name, "grad_norm").values()) > 0.5
    assert_same(lakes / case.whole, lakes / name)


@pytest.mark.parametrize("name", [f"{name} to one" for cases in RESUMED.values() for name in cases])
def test_one_process_takes_over_from_a_layout(lakes, name):
    assert_same(lakes / Case("replicate").whole, lakes / name)


@pytest.mark.parametrize("name", [f"one to {name}" for cases in RESUMED.values() for name in cases])
def test_a_layout_takes_over_from_one_process(lakes, name):
    assert_same(lakes / Case("replicate").whole, lakes / name)


def stage(tmp_path, **training) -> StageSettings:
    folder, _, _ = build(tmp_path, training=dataclasses.replace(BASE, **training))
    return read_stage(folder / "stage.json")


@pytest.mark.parametrize(
    ("training", "world", "said"),
    [
        ({"parallel": ParallelSettings(tensor=2)}, 3, "do not divide 3 ranks"),
        ({"parallel": ParallelSettings(tensor=4)}, 4, "kv_heads, 2"),
        ({"parallel": ParallelSettings(tensor=0)}, 1, "0 is below 1"),
        ({"parallel": ParallelSettings(sequence=True)}, 1, "there is one"),
        ({"parallel": ParallelSettings(pipeline=4)}, 4, "4 ranks for 2 blocks"),
        ({"parallel": "shard", "precision": "bf16_weights"}, 2, "training.precision"),
        ({"parallel": ParallelSettings(tensor=2), "compile": True}, 2, "training.compile"),
    ],
)
def test_what_a_layout_cannot_do_is_refused_by_field(tmp_path, training, world, said):
    with pytest.raises(RecipeError, match=said):
        layout_for(stage(tmp_path, **training), world)


def test_one_rank_is_whole_whatever_the_layout(tmp_path):
    assert layout_for(stage(tmp_path, parallel=ParallelSettings(data="shard", tensor=2)), 1) == ParallelSettings()
    assert layout_for(stage(tmp_path, parallel="shard"), 2) == ParallelSettings(data="shard")


def test_a_layout_is_read_as_a_word_or_by_its_fields():
    settings = from_json(type(BASE), {"parallel": {"data": "shard", "tensor": 2}})
    assert settings.parallel == ParallelSettings(data="shard", tensor=2)
    with pytest.raises(RecipeError, match="'both' is no choice; one of replicate, shard"):
        from_json(type(BASE), {"parallel": "both"})
    with pytest.raises(RecipeError, match="unknown field 'tensors'"):
        from_json(type(BASE), {"parallel": {"tensors": 2}})
