"""A store that does not answer is no damaged checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import train.checkpoint
from schemas.errors import LakeError, StoreError
from train.checkpoint import FORMAT, newest


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
