"""A store that does not answer is no damaged checkpoint, a rank that died is not waited for, a copy is of its moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import train.checkpoint
from schemas.errors import LakeError, StoreError
from train import saving
from train.checkpoint import FORMAT, checkpoint_path, load, newest, saved
from train.parallel import Ranks


def test_a_checkpoint_that_the_store_does_not_give_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20):
        folder = tmp_path / f"stage/checkpoints/a0000-s{step:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        (folder / "state.json").write_text(json.dumps({"format": FORMAT, "step": step}))
    wrong: list[LakeError] = [LakeError("an object is not what was published there")]

    def bringing(folder: Path) -> Path:
        if wrong and folder.name.endswith("20"):
            raise wrong[0]
        return folder

    monkeypatch.setattr(train.checkpoint, "folder_here", bringing)
    found, faults = newest(tmp_path, "stage")
    assert found is not None and found.state["step"] == 10 and faults == wrong, "a damaged one is passed over"
    wrong[0] = StoreError("the object store fails: no route")
    with pytest.raises(StoreError):
        newest(tmp_path, "stage")
    wrong.clear()
    found, faults = newest(tmp_path, "stage")
    assert found is not None and found.state["step"] == 20 and not faults


class Two(Ranks):
    """Rank 0 of two that share parameters; the other one has died."""

    parts, part = 2, 0

    def broadcast(self, value):
        return value


def test_a_run_that_ends_by_an_error_does_not_wait_for_a_dead_ranks_part(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "PARTS_SECONDS", 0.1)
    saver = saving.Saver(tmp_path, "r", Two(0, 1, torch.device("cpu")), asynchronous=True, last=1, every=0)
    saver.save(checkpoint_path("r", 0, 3), lambda: {"model": {"w": torch.ones(2)}}, {}, set())
    saver.leave()
    assert saved(tmp_path, "r") == []
    with pytest.raises(LakeError, match="before another rank had written its part"):
        saver.wait()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_what_is_saved_is_what_was_on_the_device_when_it_was_asked_for(tmp_path):
    saver = saving.Saver(tmp_path, "r", Ranks(0, 1, torch.device("cuda", 0)), asynchronous=True, last=9, every=0)
    weights = torch.zeros(1 << 26, device="cuda")
    for step in range(3):
        saver.save(checkpoint_path("r", 0, step), lambda: {"model": {"w": weights}}, {}, set())
        weights.add_(1)  # queued behind the copy
    saver.wait()
    for step in range(3):
        assert bool((load(tmp_path, checkpoint_path("r", 0, step)).tensors("model")["w"] == step).all())
