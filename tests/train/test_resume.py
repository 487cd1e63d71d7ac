"""A run that is interrupted or killed anywhere ends as one that was not: same rows, same losses bit for bit, same weights."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import threading
import time

import pytest
import torch

from schemas.errors import LakeError, RecipeError
from schemas.settings import EarlyStopSettings
from tests.train.hold import HOLD, hold_file
from tests.train.run_tables import After, finish, losses, start, table, trainer, until, valid
from tests.train.tiny_lake import MODEL, TRAINING, build, documents, pack, write_lot, write_stage
from train.interrupt import SAME_SECONDS, Interrupted
from train.kernels.native import library
from train.optim import OPTIMIZERS
from train.resume import _circumstances, _computed
from train.schedule import scale


def weights(root, checkpoint):
    return torch.load(root / checkpoint / "model.pt", weights_only=True), torch.load(root / checkpoint / "optimizer.pt", weights_only=True)


def equal(one, two) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[k], two[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(equal, one, two))
    return one == two


def assert_same_run(root, other):
    """Everything that counts is equal: losses, held-out losses, rows, loss by document, weights, moments, and the outcome."""
    assert [r["index"] for r in valid(root, "ledger")] == [r["index"] for r in valid(other, "ledger")]
    for name in ("loss", "heldout", "heldout/code", "grad_norm", "lr"):
        assert losses(root, name) == losses(other, name), name
    keys = ("step", "lot", "row", "doc_id", "loss")
    assert [[r[k] for k in keys] for r in valid(root, "losses")] == [[r[k] for k in keys] for r in valid(other, "losses")]
    ends = [json.loads((r / "runs/r/0-first/outcome.json").read_text()) for r in (root, other)]
    assert equal(weights(root, ends[0]["checkpoint"]), weights(other, ends[1]["checkpoint"]))
    for end in ends:
        end.pop("checkpoint")
    assert ends[0] == ends[1]


TRICKY = dataclasses.replace(TRAINING, eval_every=4, checkpoint_every=3, keep_last=1, log_every=3, early_stop=EarlyStopSettings(patience=9))


@pytest.mark.parametrize(("precision", "dropout"), [("fp32", 0.0), ("bf16", 0.1)])
def test_an_interrupt_at_any_moment_changes_nothing(tmp_path, precision, dropout):
    """Between steps and between the forward passes of evaluations: 6 steps ask once each, 3 evaluations of 6 rows three times each."""
    training = dataclasses.replace(TRICKY, precision=precision, eval_every=2)
    stage = {"rows": 24, "training": training, "model": dataclasses.replace(MODEL, dropout=dropout)}
    folder, _, _ = build(tmp_path / "whole", **stage)
    trainer(tmp_path / "whole", folder).run()
    for checks in range(0, 15, 2 if precision == "fp32" else 5):
        root = tmp_path / str(checks)
        folder, _, _ = build(root, **stage)
        with pytest.raises(Interrupted):
            trainer(root, folder, After(checks)).run()
        again = trainer(root, folder)
        assert again.step < 6 or again.evaluated < 6
        again.run()
        assert_same_run(tmp_path / "whole", root)


OPTIONS = {
    "sophia": {"every": 2},
    "sophia with second derivatives": {"every": 2, "estimator": "hutchinson"},
    "kfac": {"every": 2},
    "lbfgs": {"allow_stochastic": True, "max_iter": 3},
}
PACKAGES = {"adamw8bit": "torchao", "schedule_free": "schedulefree", "soap": "pytorch_optimizer"}


@pytest.mark.parametrize("name", sorted({*OPTIMIZERS, *OPTIONS}))
def test_every_optimizer_resumes_bit_for_bit(tmp_path, name, monkeypatch):
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name], reason=f"{PACKAGES[name]} is not installed: {name} left out")
    options, kind = OPTIONS.get(name, {}), name.split()[0]
    decay = 0.0 if name == "lbfgs" else 0.1
    optimizer = dataclasses.replace(TRAINING.optimizer, name=kind, lr=1e-3, weight_decay=decay, options=options)
    stage = {"rows": 24, "training": dataclasses.replace(TRICKY, optimizer=optimizer)}
    if name == "adamw8bit":  # torchao compiles its step for every shape: the lines are the same
        monkeypatch.setattr(torch, "compile", lambda lines, **options: lines)
    interrupted_equals_whole(tmp_path, kind, stage)


def interrupted_equals_whole(tmp_path, name, stage):
    folder, _, _ = build(tmp_path / "whole", **stage)
    trainer(tmp_path / "whole", folder).run()
    assert len(set(losses(tmp_path / "whole").values())) == 6
    if name == "sophia":
        end = json.loads((folder / "outcome.json").read_text())
        states = weights(tmp_path / "whole", end["checkpoint"])[1]["state"].values()
        assert all(float(state["curvature"].max()) > 0 for state in states), "curvature was estimated"
    folder, _, _ = build(tmp_path / "stopped", **stage)
    with pytest.raises(Interrupted):
        trainer(tmp_path / "stopped", folder, After(3)).run()
    trainer(tmp_path / "stopped", folder).run()
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_lbfgs_trains_on_the_whole_batch_and_refuses_to_on_parts_of_it(tmp_path):
    optimizer = dataclasses.replace(TRAINING.optimizer, name="lbfgs", lr=1.0, weight_decay=0.0, options={"max_iter": 4})
    found = {}
    for rows, name in ((16, "whole"), (4, "parts")):
        training = dataclasses.replace(TRICKY, optimizer=optimizer, batch_rows=rows, checkpoint_every=0)
        lots = [write_lot(tmp_path / name, "code-0", "code", pack(documents(0, 60, 1))[:16])]
        folder = write_stage(tmp_path / name, "first", lots, lots, {"code-0": (0, 48)}, 48, training=training)
        if name == "parts":
            with pytest.raises(RecipeError, match="give it the whole batch"):
                trainer(tmp_path / name, folder).run()
        else:
            found = trainer(tmp_path / name, folder).run()
    assert found.heldout["all"] < 2.5, "the rows it was trained on, from 4.2 in 3 steps"


def test_a_stage_that_stops_early_cools_down_and_resumes_bit_for_bit(tmp_path):
    """It fires at step 4, and has three steps more; an interrupt comes before, at and within the cool-down."""
    stop = EarlyStopSettings(patience=1, min_delta=10.0, on_stop="cooldown", cooldown=3)
    stage = {"rows": 80, "training": dataclasses.replace(TRICKY, eval_every=2, early_stop=stop)}
    folder, lots, _ = build(tmp_path / "whole", **stage)
    outcome = trainer(tmp_path / "whole", folder).run()
    assert (outcome.reason, outcome.next_step, outcome.next_row) == ("early_stop", 7, 28) and "last 3 steps cooled" in outcome.detail
    assert sum(end - start for _, start, end in outcome.returned) == 4 * sum(lot.rows for lot in lots) - 28
    assert [(e["step"], e["kind"]) for e in valid(tmp_path / "whole", "events") if e["kind"] == "cooldown"] == [(3, "cooldown")]
    rates = losses(tmp_path / "whole", "lr")
    for step, part in zip((4, 5, 6), (3 / 4, 2 / 4, 1 / 4), strict=True):
        planned = stage["training"].optimizer.lr * scale(stage["training"].schedule, step, 20)
        assert rates[step] == pytest.approx(planned * part)
    assert 6 in losses(tmp_path / "whole", "heldout"), "the end of the cool-down is measured"
    for checks in range(2, 16, 3):
        folder, _, _ = build(tmp_path / str(checks), **stage)
        with pytest.raises(Interrupted):
            trainer(tmp_path / str(checks), folder, After(checks)).run()
        trainer(tmp_path / str(checks), folder).run()
        assert_same_run(tmp_path / "whole", tmp_path / str(checks))


def test_a_process_killed_at_random_moments_ends_as_one_that_was_not(tmp_path):
    kill_and_compare(tmp_path, kills=3, seed=11)


@pytest.mark.soak
def test_a_process_killed_twenty_times_ends_as_one_that_was_not(tmp_path):
    kill_and_compare(tmp_path, kills=20, seed=12)


def kill_and_compare(tmp_path, kills: int, seed: int) -> None:
    """Kill trainers at random moments from their first event on; checkpoints are so frequent that some die in a save."""
    chance, training = random.Random(seed), dataclasses.replace(TRICKY, precision="bf16", checkpoint_every=2, callbacks=(HOLD,))
    lakes = [tmp_path / "whole", tmp_path / "killed"]
    folders = [build(lake, rows=240, epochs=20, training=training)[0] for lake in lakes]
    finish(start(lakes[0], folders[0]))
    hold_file(lakes[1]).write_text("-1")
    for attempt in range(kills):
        process = start(lakes[1], folders[1])
        until(lambda attempt=attempt: list((folders[1] / "events").glob(f"a{attempt:04d}-*")), process)
        time.sleep(chance.uniform(0, 0.6))
        process.kill()
        process.communicate()
    hold_file(lakes[1]).unlink()
    finish(start(lakes[1], folders[1]))
    assert sum(e["kind"] in ("started", "resumed") for e in table(lakes[1], "events")) == kills + 1
    assert_same_run(*lakes)
    assert not list(lakes[1].rglob(".tmp-*"))


def test_signals_save_and_exit_with_75_and_the_same_command_goes_on(tmp_path):
    lakes = [tmp_path / "whole", tmp_path / "stopped"]
    training = dataclasses.replace(TRICKY, checkpoint_every=0, callbacks=(HOLD,))
    folders = [build(lake, rows=200, epochs=20, training=training)[0] for lake in lakes]
    trainer(lakes[0], folders[0]).run()
    hold_file(lakes[1]).write_text("12")
    for attempt, name in enumerate((signal.SIGTERM, signal.SIGINT)):
        process = start(lakes[1], folders[1])
        until(lambda attempt=attempt: list((folders[1] / "events").glob(f"a{attempt:04d}-*")), process)
        time.sleep(0.05)
        process.send_signal(name)
        assert "the same command goes on" in finish(process, 75)
    hold_file(lakes[1]).unlink()
    assert "resumed first" in finish(start(lakes[1], folders[1]))
    assert_same_run(*lakes)
    assert "has ended already" in finish(start(lakes[1], folders[1]))


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    """In a step that never ends; nothing is lost but the steps since the last checkpoint."""
    (tmp_path / "slow.py").write_text(
        "import time\nfrom train.callbacks import Callback\n"
        "class Slow(Callback):\n    def on_step(self, run, report):\n        while report.done == 4:\n"
        "            open('told' if run.interrupt.came else 'asleep', 'w').close()\n            time.sleep(0.01)\n"
        "def make():\n    return Slow()\n"
    )
    folder, _, _ = build(tmp_path, training=dataclasses.replace(TRICKY, callbacks=("slow:make",)))
    process = start(tmp_path, folder)
    until((tmp_path / "asleep").exists, process)
    process.send_signal(signal.SIGINT)
    until((tmp_path / "told").exists, process)
    process.send_signal(signal.SIGTERM)
    time.sleep(2 * SAME_SECONDS)
    assert process.poll() is None, "the first one waits for the step's end, and another's signal is the same wish"
    process.send_signal(signal.SIGINT)
    said = finish(process, 128 + signal.SIGINT)
    assert "saves and stops within the time of a checkpoint and one step; a second one stops at once" in said
    (folder / "stage.json").write_text((folder / "stage.json").read_text().replace('"slow:make"', ""))
    run = trainer(tmp_path, folder)
    assert run.step == 3
    run.run()


@pytest.mark.parametrize("checks", [1, 4, 8])
def test_a_pending_save_changes_nothing_and_an_interrupt_waits_for_it(tmp_path, checks, monkeypatch):
    """Saves take so long that one is always pending, at the interrupt too; every second checkpoint stays."""
    training = dataclasses.replace(TRICKY, checkpoint_async=True, checkpoint_every=1, keep_every=2)
    folder, _, _ = build(tmp_path / "whole", rows=24, training=dataclasses.replace(training, checkpoint_async=False))
    trainer(tmp_path / "whole", folder).run()
    original = torch.save

    def slow(value, path):
        assert threading.current_thread() is not threading.main_thread()
        time.sleep(0.02)
        original(value, path)

    monkeypatch.setattr(torch, "save", slow)
    folder, _, _ = build(tmp_path / "pending", rows=24, training=training)
    with pytest.raises(Interrupted):
        trainer(tmp_path / "pending", folder, After(checks)).run()
    trainer(tmp_path / "pending", folder).run()
    assert_same_run(tmp_path / "whole", tmp_path / "pending")
    names = {path.name[-8:] for path in (folder / "checkpoints").iterdir()}
    assert {f"{step:08d}" for step in (2, 4, 6)} <= names and "00000003" not in names


def test_a_pending_save_that_fails_is_an_error_and_the_one_before_stays(tmp_path, monkeypatch):
    folder, _, _ = build(tmp_path, rows=24, training=dataclasses.replace(TRICKY, checkpoint_async=True, checkpoint_every=2, eval_every=0))
    original = torch.save

    def full(value, path):
        if "s00000004" in str(path):
            raise OSError(28, "No space left on device")
        original(value, path)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(LakeError, match="cannot save a checkpoint"):
        trainer(tmp_path, folder).run()
    monkeypatch.undo()
    assert trainer(tmp_path, folder).step == 2


def test_two_trainers_of_one_run_do_not_mix(tmp_path):
    root = tmp_path / "lake"
    folder, _, _ = build(root, training=dataclasses.replace(TRAINING, callbacks=(HOLD,)))
    hold_file(root).write_text("1")
    first = start(root, folder)
    until(lambda: list((folder / "events").glob("*")), first)
    assert f"in use by process {first.pid}" in finish(start(root, folder), 2)
    first.kill()
    first.communicate()


def test_what_would_break_the_sequence_is_refused_unless_allowed(tmp_path):
    folder, _, _ = build(tmp_path, training=TRICKY)
    with pytest.raises(Interrupted):
        trainer(tmp_path, folder, After(5)).run()
    with pytest.raises(LakeError, match="threads is 2, was 1"):
        trainer(tmp_path, folder, threads=2)
    trainer(tmp_path, folder, threads=2, allow_mismatch=True)
    path = folder / "stage.json"
    text = path.read_text()
    for change, message in (
        ({"precision": "bf16"}, "precision is bf16, was fp32"),
        ({"clip": 2.0}, "clip is 2.0, was 1.0"),
        ({"z_loss": 1e-4}, "z_loss is 0.0001, was 0.0"),
    ):
        value = json.loads(text)
        value["training"].update(change)
        path.write_text(json.dumps(value))
        with pytest.raises(LakeError, match=message):
            trainer(tmp_path, folder)
    value = json.loads(text)
    value["model"]["layers"] = 1
    path.write_text(json.dumps(value))
    with pytest.raises(LakeError, match="model is another"):
        trainer(tmp_path, folder, allow_mismatch=True)


@pytest.mark.skipif(bool(library.why_not()), reason=library.why_not())
def test_another_implementation_of_the_optimizers_step_is_refused_and_the_checkpoints_own_goes_on(tmp_path, monkeypatch):
    """The recipe says nothing of it: a C++ step where there was a compiled or an eager one, or one of another source or compiler."""
    adafactor = dataclasses.replace(TRAINING.optimizer, name="adafactor", lr=1e-2, weight_decay=0.0)
    folder, _, _ = build(tmp_path, training=dataclasses.replace(TRICKY, optimizer=adafactor))
    with pytest.raises(Interrupted):
        trainer(tmp_path, folder, After(5)).run()
    stage = json.loads((folder / "stage.json").read_text())

    def ask(impl):
        stage["training"]["optimizer"]["options"] = {"impl": impl}
        (folder / "stage.json").write_text(json.dumps(stage))

    ask("native")
    with pytest.raises(LakeError, match=r"optimizer_impl is native \(\w+\), was eager") as refused:
        trainer(tmp_path, folder)
    assert "optimizer.options.impl: eager" in str(refused.value)
    with pytest.raises(Interrupted):
        trainer(tmp_path, folder, After(1), allow_mismatch=True).run()
    trainer(tmp_path, folder)
    monkeypatch.setattr(library, "key", lambda: "another")
    with pytest.raises(LakeError, match=r"optimizer_impl is native \(another\), was native \(\w+\)"):
        trainer(tmp_path, folder)
    ask("eager")
    with pytest.raises(LakeError, match=r"optimizer_impl is eager, was native"):
        trainer(tmp_path, folder)


def test_checkpoints_older_than_the_record_of_the_implementation_go_on_where_it_is_certain():
    """Before, compiled steps of Adafactor and CAME were by torch.compile or C++, and nothing told which."""
    native, eager = {"optimizer_impl": "native (1)"}, {"optimizer_impl": "eager"}
    for now, compiled, before in ((eager, True, "eager"), (native, False, "native (1)"), (native, True, None), ({}, True, None)):
        assert _circumstances({"circumstances": {"compiled": compiled}}, now).get("optimizer_impl") == before
    saved = {"computed": {"optimizer": {"options": {"impl": "compile", "clip": 1.0}}}}
    assert _computed(saved) == {"optimizer": {"options": {"clip": 1.0}}}


def test_a_changed_past_is_refused(tmp_path):
    folder, lots, held = build(tmp_path, training=TRICKY)
    with pytest.raises(Interrupted):
        trainer(tmp_path, folder, After(5)).run()
    (tmp_path / "runs/r/segments.json").unlink()
    folder = write_stage(tmp_path, "first", lots, held, {"code-0": (0, 90)}, 48, training=TRICKY)
    with pytest.raises(LakeError, match="already trained on have changed"):
        trainer(tmp_path, folder)


def test_a_damaged_checkpoint_is_passed_over_and_none_left_is_an_error(tmp_path):
    stage = {"training": dataclasses.replace(TRICKY, keep_last=3)}
    folder, _, _ = build(tmp_path / "whole", **stage)
    trainer(tmp_path / "whole", folder).run()
    root = tmp_path / "damaged"
    folder, _, _ = build(root, **stage)
    with pytest.raises(Interrupted):
        trainer(root, folder, After(10)).run()
    checkpoints = sorted((folder / "checkpoints").iterdir())
    assert len(checkpoints) >= 3
    broken = checkpoints[-1] / "optimizer.pt"
    data = bytearray(broken.read_bytes())
    data[len(data) // 2] ^= 1
    broken.write_bytes(data)
    again = trainer(root, folder)
    assert again.step == int(checkpoints[-2].name[-8:])
    again.run()
    assert_same_run(tmp_path / "whole", root)
    (folder / "outcome.json").unlink()
    for checkpoint in (folder / "checkpoints").iterdir():
        (checkpoint / "manifest.json").unlink()
    with pytest.raises(LakeError, match="can be used"):
        trainer(root, folder)


def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch):
    folder, _, _ = build(tmp_path, training=TRICKY)
    original = torch.save

    def full(value, path):
        if "s00000006" in str(path) and "optimizer" in str(path):
            raise OSError(28, "No space left on device")
        original(value, path)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(LakeError, match="cannot save a checkpoint"):
        trainer(tmp_path, folder).run()
    monkeypatch.undo()
    assert trainer(tmp_path, folder).step == 4
    assert not list((folder / "checkpoints").glob(".tmp-*"))
