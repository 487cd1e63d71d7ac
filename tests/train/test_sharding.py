"""Two ranks that share parameters, gradients and optimizer states get one rank's losses, and resume each other's checkpoints."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from tests.train.run_tables import finish, losses, start, trainer, valid
from tests.train.test_resume import After
from tests.train.tiny_lake import TRAINING, build
from train.checkpoint import load
from train.interrupt import Interrupted
from train.sharding import join

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


def test_pieces_join_whatever_their_number():
    whole = torch.arange(30.0).view(5, 6)
    parts = [
        {"a": [{"gristmill.piece": whole[first:end], "offset": [first, 0], "shape": [5, 6]}, 7]} for first, end in ((0, 3), (3, 5), (5, 5))
    ]
    found = join(parts)
    assert torch.equal(found["a"][0], whole) and found["a"][1] == 7
