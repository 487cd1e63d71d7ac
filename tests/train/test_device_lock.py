"""The lock of a GPU, between real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from schemas.errors import GristmillError
from train.device_lock import device_lock, exclusive

HOLD = """
import sys
from train.device_lock import exclusive
with exclusive(sys.argv[1], 'cuda:0'):
    print('held', flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(monkeypatch, tmp_path):
    """A process that holds the lock of the device `d`, in a temporary folder of its own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, "d"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_trainer_is_refused_until_the_first_is_dead(holder):
    with pytest.raises(GristmillError, match=f"process {holder.pid}"), exclusive("d", "cuda:0"):
        pass
    with exclusive("another", "cuda:1"):
        pass
    holder.kill()
    holder.wait()
    with exclusive("d", "cuda:0"), pytest.raises(GristmillError, match="at work on this device"), exclusive("d", "cuda:0"):
        pass


def test_a_cpu_is_shared(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with device_lock(torch.device("cpu")), device_lock(torch.device("cpu")):
        assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_locked_by_its_own_name(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with device_lock(torch.device("cuda", 0)):
        assert len(list(tmp_path.iterdir())) == 1
        with pytest.raises(GristmillError, match="at work on this device"), device_lock(torch.device("cuda", 0)):
            pass
