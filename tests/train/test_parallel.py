"""Two ranks under torchrun see the rows that one sees, and get its losses."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from schemas.errors import GristmillError
from tests.train.run_tables import REPOSITORY, After, finish, losses, start, table, trainer, valid
from tests.train.tiny_lake import TRAINING, build
from train.__main__ import main
from train.interrupt import Interrupted
from train.parallel import ranks


@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo")
def test_two_ranks_equal_one_also_when_they_take_over_midway(tmp_path):
    """Ragged: 26 rows in steps of 5, so the last step has one row and the second rank none."""
    training = dataclasses.replace(TRAINING, batch_rows=5, micro_batch_rows=2, eval_rows=3)
    lakes = [tmp_path / name for name in ("one", "two", "taken")]
    folders = [build(lake, rows=26, training=training)[0] for lake in lakes]
    trainer(lakes[0], folders[0]).run()
    with pytest.raises(Interrupted):
        trainer(lakes[2], folders[2], After(2)).run()
    finish(start(lakes[1], folders[1], ranks=2))
    assert "2 ranks, 1 before: the same rows" in finish(start(lakes[2], folders[2], ranks=2))
    ends = [json.loads((folder / "outcome.json").read_text()) for folder in folders]
    for lake, end in zip(lakes[1:], ends[1:], strict=True):
        assert [r["row"] for r in valid(lake, "ledger")] == [r["row"] for r in valid(lakes[0], "ledger")]
        for name in ("loss", "loss/prose", "grad_norm", "heldout", "bits_per_byte/code"):
            one, two = losses(lakes[0], name), losses(lake, name)
            assert one.keys() == two.keys()
            np.testing.assert_allclose(list(two.values()), list(one.values()), rtol=1e-5)
        pieces = [valid(lakes[0], "losses"), valid(lake, "losses")]
        assert [(r["step"], r["lot"], r["row"], r["doc_id"], r["tokens"]) for r in pieces[1]] == [
            (r["step"], r["lot"], r["row"], r["doc_id"], r["tokens"]) for r in pieces[0]
        ]
        np.testing.assert_allclose([r["loss"] for r in pieces[1]], [r["loss"] for r in pieces[0]], rtol=1e-4, atol=1e-4)
        assert (end["reason"], end["next_row"], end["returned"]) == (ends[0]["reason"], 26, ends[0]["returned"])
    assert {e["attempt"] for e in table(lakes[1], "events")} == {0}, "one process writes"


@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo")
def test_a_batch_is_the_same_however_it_is_split(tmp_path):
    """32 ragged rows at once, eight micro-batches of 4, and two ranks with 16 each: the same losses and norms to a millionth."""
    sequences = {}
    for name, micro, world in (("1x32", 32, 1), ("8x4", 4, 1), ("2 ranks x16", 16, 2)):
        training = dataclasses.replace(TRAINING, batch_rows=32, micro_batch_rows=micro, eval_every=0, checkpoint_every=0)
        folder, _, _ = build(tmp_path / name, rows=90, epochs=8, training=training)
        finish(start(tmp_path / name, folder, ranks=2)) if world == 2 else trainer(tmp_path / name, folder).run()
        sequences[name] = [[*losses(tmp_path / name, metric).values()] for metric in ("loss", "loss/code", "grad_norm")]
    for name in ("8x4", "2 ranks x16"):
        np.testing.assert_allclose(sequences[name], sequences["1x32"], rtol=1e-6)


def leave(rank, world, folder):
    """Join and leave as the trainer does, with what it imports in between; then list the threads that are left."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": (folder / "port").read_text()}
    with ranks() as group:
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
        group.sum(torch.ones(2))
        optimizer.step()
    began = time.monotonic()
    while left := [name for name in threads() if "gloo" in name]:  # the kernel lists one for a moment after it was joined
        time.sleep(0.01)
        assert time.monotonic() < began + 60, left


def threads():
    """Names of this process's threads."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            yield (task / "comm").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are listed by /proc")
def test_no_thread_of_the_group_outlives_it(tmp_path):
    """A thread that gives back a tensor while the interpreter ends aborts the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (tmp_path / "port").write_text(str(free.getsockname()[1]))
    torch.multiprocessing.spawn(leave, (2, tmp_path), nprocs=2)


LEFT_ALONE = """
import contextlib, runpy, sys, time
import torch, torch.distributed as dist
import train.__main__, train.device_lock, train.loop
join, met = dist.init_process_group, sys.argv.pop()
dist.init_process_group = lambda *_, **__: join("gloo", init_method="file://" + met, rank=0, world_size=1)
dist.destroy_process_group = lambda: time.sleep(3600)  # as NCCL does while other ranks are in a collective
torch.cuda.is_available, torch.cuda.device_count, torch.cuda.set_device = lambda: True, lambda: 1, lambda _: None
train.device_lock.device_lock = lambda _: contextlib.nullcontext()
def fail(*_, **__):
    raise {error}
train.loop.Trainer = fail
runpy.run_module("train", run_name="__main__")
"""


@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo")
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [("train.__main__.GristmillError('no room')", 2, "error: no room"), ("ValueError('a fault')", 1, "ValueError: a fault")],
)
def test_an_error_of_one_rank_on_cuda_ends_its_process_whatever_the_others_wait_for(tmp_path, error, code, said):
    lake = tmp_path / "lake"
    folder = build(lake, rows=8)[0]
    script = [sys.executable, "-c", LEFT_ALONE.format(error=error), str(lake), str(folder), str(tmp_path / "met")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    done = subprocess.run(script, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_more_ranks_than_devices_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(GristmillError, match="number 2 on this machine, and 2 CUDA devices"), ranks():
        pass


def test_a_device_without_memory_is_told_and_what_to_do(tmp_path, monkeypatch, capsys):
    def run(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("train.__main__._run", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # main takes two over
    assert main([str(tmp_path), "runs/r/0-first"]) == 2
    assert "micro_batch_rows" in capsys.readouterr().err
