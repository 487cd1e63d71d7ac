"""Moments of a run that want care: an epoch's end, a stage's boundary, the midst of a step's micro-batches, a save that is pending."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal

import pytest

from tests.train.run_tables import After, finish, losses, start, trainer, until, valid
from tests.train.test_resume import TRICKY, assert_same_run
from tests.train.tiny_lake import build, documents, pack, write_lot, write_stage
from train.interrupt import Interrupted
from train.passes import Passes


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_an_interrupt_at_an_epochs_end_changes_nothing(tmp_path, steps):
    """A lot of 8 rows in steps of 4, three times: epochs end before steps 2 and 4."""
    folders = {}
    for name in ("whole", "stopped"):
        lots = [write_lot(tmp_path / name, "code-0", "code", pack(documents(0, 60, 1))[:8])]
        folders[name] = write_stage(tmp_path / name, "first", lots, lots, {"code-0": (0, 24)}, 24, training=TRICKY)
    trainer(tmp_path / "whole", folders["whole"]).run()
    rows = [(r["step"], r["row"]) for r in valid(tmp_path / "whole", "ledger")]
    assert [sorted(row for step, row in rows if step in pair) for pair in ((0, 1), (2, 3), (4, 5))] == [list(range(8))] * 3
    with pytest.raises(Interrupted):
        trainer(tmp_path / "stopped", folders["stopped"], After(steps)).run()
    trainer(tmp_path / "stopped", folders["stopped"]).run()
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize("checks", [0, 1])
def test_an_interrupt_at_a_stages_boundary_changes_nothing(tmp_path, checks):
    """The first stage has ended, or ended and was started again; the second is stopped before its first step, or after it."""
    for name in ("whole", "stopped"):
        root = tmp_path / name
        folder, lots, held = build(root, rows=16, training=TRICKY)
        outcome = trainer(root, folder).run()
        second = write_stage(
            root, "second", lots, held, {lot: (first, end) for lot, first, end in outcome.returned}, 16,
            quotas={"code": 3, "prose": 1}, init_from="runs/r/0-first", first=(outcome.next_row, outcome.next_step), training=TRICKY,
        )  # fmt: skip
        if name == "stopped":
            assert "has ended already" in finish(start(root, folder))
            with pytest.raises(Interrupted):
                trainer(root, second, After(checks)).run()
            assert trainer(root, second).step == outcome.next_step + checks
        trainer(root, second).run()
    assert list(losses(tmp_path / "whole")) == list(range(8))
    assert losses(tmp_path / "whole") == losses(tmp_path / "stopped")


def test_a_death_between_two_micro_batches_goes_on_from_the_last_checkpoint(tmp_path, monkeypatch):
    """Two micro-batches a step, checkpoints before steps 3 and 4: it dies in the second of step 5, and steps 4 and 5 are done again."""
    folders = [build(tmp_path / name, rows=32, training=TRICKY)[0] for name in ("whole", "dead")]
    trainer(tmp_path / "whole", folders[0]).run()
    done, original = [], Passes.backward

    def backward(passes, loss):
        done.append(passes.seed[1])
        if done.count(5) == 2:
            raise MemoryError("out of memory")
        original(passes, loss)

    monkeypatch.setattr(Passes, "backward", backward)
    with pytest.raises(MemoryError):
        trainer(tmp_path / "dead", folders[1]).run()
    monkeypatch.undo()
    assert trainer(tmp_path / "dead", folders[1]).step == 4
    trainer(tmp_path / "dead", folders[1]).run()
    assert_same_run(tmp_path / "whole", tmp_path / "dead")


def test_sigterm_while_a_save_is_pending_waits_for_it_and_loses_nothing(tmp_path):
    """A save lasts in its thread until the signal, and a quarter of a second more."""
    training = dataclasses.replace(TRICKY, checkpoint_async=True, checkpoint_every=5)
    folders = [build(tmp_path / name, rows=120, epochs=20, training=training)[0] for name in ("whole", "stopped")]
    trainer(tmp_path / "whole", folders[0]).run()
    root, path = tmp_path / "stopped", folders[1] / "stage.json"
    (root / "slow.py").write_text(
        "import time\nimport torch\nfrom train.callbacks import Callback\nfast = torch.save\n"
        "class Slow(Callback):\n    def on_start(self, run):\n        def save(value, path):\n            open('saving', 'w').close()\n"
        "            while not run.interrupt.came:\n                time.sleep(0.005)\n            time.sleep(0.25)\n"
        "            fast(value, path)\n        torch.save = save\n"
        "def make():\n    return Slow()\n"
    )
    plain = path.read_text()
    stage = json.loads(plain)
    stage["training"]["callbacks"] = ["slow:make"]
    path.write_text(json.dumps(stage))
    process = start(root, folders[1])
    until((root / "saving").exists, process)
    process.send_signal(signal.SIGTERM)
    assert "the same command goes on" in finish(process, 75)
    checkpoints = sorted(folder.name for folder in (folders[1] / "checkpoints").iterdir())
    assert checkpoints and all((folders[1] / "checkpoints" / name / "manifest.json").is_file() for name in checkpoints)
    path.write_text(plain)
    again = trainer(root, folders[1])
    assert again.step == int(checkpoints[-1][-8:]) >= 4
    again.run()
    shutil.rmtree(root / "__pycache__", ignore_errors=True)
    assert_same_run(tmp_path / "whole", root)
