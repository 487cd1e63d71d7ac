"""Two ranks that share parameters, gradients and optimizer states get one rank's losses, and resume each other's checkpoints."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.train.processes import run_ranks
from tests.train.run_tables import Never, finish, losses, start, trainer, valid
from tests.train.test_resume import After
from tests.train.tiny_lake import MODEL, TRAINING, build
from train.checkpoint import load
from train.interrupt import Interrupted
from train.loop import Trainer
from train.parallel import Ranks
from train.sharding import join
from train.stage import Stage

SHARDED = dataclasses.replace(TRAINING, parallel="shard", batch_rows=5, micro_batch_rows=2, eval_rows=3, clip=0.5, checkpoint_async=True)


@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo")
@pytest.mark.parametrize("name", ["adamw", "came"])
def test_shards_on_two_ranks_equal_one_rank_and_either_resumes_the_other(tmp_path, name):
    """Ragged: 26 rows in steps of 5, so the last step has one row and the second rank none; clipping always acts."""
    training = dataclasses.replace(SHARDED, optimizer=dataclasses.replace(SHARDED.optimizer, name=name, lr=1e-3))
    lakes = [tmp_path / each for each in ("one", "two", "taken")]
    folders = [build(lake, rows=26, training=training)[0] for lake in lakes]
    trainer(lakes[0], folders[0]).run()
    with pytest.raises(Interrupted):
        trainer(lakes[2], folders[2], After(2)).run()
    for lake, folder in zip(lakes[1:], folders[1:], strict=True):
        finish(start(lake, folder, ranks=2))
    assert max(losses(lakes[0], "grad_norm").values()) > 0.5
    ends = [json.loads((folder / "outcome.json").read_text()) for folder in folders]
    whole = [load(lake, end["checkpoint"]) for lake, end in zip(lakes, ends, strict=True)]
    assert [checkpoint.state["parts"] for checkpoint in whole] == [1, 2, 2]
    for lake, checkpoint in zip(lakes[1:], whole[1:], strict=True):
        assert [r["row"] for r in valid(lake, "ledger")] == [r["row"] for r in valid(lakes[0], "ledger")]
        for metric in ("loss", "loss/prose", "grad_norm", "heldout"):
            one, two = losses(lakes[0], metric), losses(lake, metric)
            assert one.keys() == two.keys()
            np.testing.assert_allclose(list(two.values()), list(one.values()), rtol=1e-5)
        for key, value in whole[0].tensors("model").items():
            torch.testing.assert_close(checkpoint.tensors("model")[key], value, rtol=1e-3, atol=1e-5)
    (folders[1] / "outcome.json").unlink()
    resumed = trainer(lakes[1], folders[1])
    assert resumed.step == 6
    for key, value in resumed.model.state_dict().items():
        assert torch.equal(value, whole[1].tensors("model")[key])


def watch(rank: int, world: int, root: str) -> None:
    """Train a stage and note what the weights of some modules were computed with."""
    run = Trainer(Stage.open(Path(root), "runs/r/0-first"), Ranks(rank, world, torch.device("cpu")), Never())
    seen = {}

    def note(module, arguments, name):
        seen.update({f"{name}.{key}": str(p.dtype) for key, p in module.named_parameters(recurse=False)})

    for name, module in run.model.named_modules():
        module.register_forward_pre_hook(functools.partial(note, name=name))
    run.run()
    Path(root, f"seen-{rank}.json").write_text(json.dumps(seen))


@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo")
@pytest.mark.parametrize(("kind", "recompute"), [("llama", "halves"), ("gpt2", "every_2")])
def test_products_are_gathered_in_their_precision_and_the_rest_as_it_is(tmp_path, kind, recompute):
    training = dataclasses.replace(SHARDED, precision="bf16", recompute=recompute)
    model = dataclasses.replace(MODEL, kind=kind, kv_heads=0)
    for name in ("one", "two"):
        build(tmp_path / name, rows=26, training=training, model=model)
    trainer(tmp_path / "one", tmp_path / "one/runs/r/0-first").run()
    run_ranks(watch, 2, tmp_path, str(tmp_path / "two"))
    for metric in ("loss", "grad_norm", "heldout"):
        one, two = losses(tmp_path / "one", metric), losses(tmp_path / "two", metric)
        np.testing.assert_allclose(list(two.values()), list(one.values()), rtol=2e-3)  # as far as BF16 sums of other rows agree
    for rank in range(2):
        seen = json.loads((tmp_path / f"two/seen-{rank}.json").read_text())
        rounded = {name for name, dtype in seen.items() if dtype == "torch.bfloat16"}
        products = ("attention.q", "attention.k", "attention.v", "attention.out", "gate", "up", "down")
        assert rounded == {name for name in seen if name.startswith("blocks.") and name.rsplit(".", 1)[0].endswith(products)}
        assert {"blocks.1.attention_norm.weight", "norm.weight"} < seen.keys() - rounded
        assert kind == "llama" or "blocks.0.feed_forward.up_bias" in seen.keys() - rounded
        assert set(seen.values()) == {"torch.bfloat16", "torch.float32"}
    end = json.loads((tmp_path / "two/runs/r/0-first/outcome.json").read_text())
    saved = load(tmp_path / "two", end["checkpoint"]).tensors("model")
    assert {value.dtype for value in saved.values()} == {torch.float32}


def test_pieces_join_whatever_their_number():
    whole = torch.arange(30.0).view(5, 6)
    parts = [
        {"a": [{"gristmill.piece": whole[first:end], "offset": [first, 0], "shape": [5, 6]}, 7]} for first, end in ((0, 3), (3, 5), (5, 5))
    ]
    found = join(parts)
    assert torch.equal(found["a"][0], whole) and found["a"][1] == 7
