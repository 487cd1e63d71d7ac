"""A published name holds nothing or the whole file, whatever happens to the writer."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from schemas.errors import LakeError
from schemas.manifest import read_snapshot
from schemas.segments import read_segments
from schemas.settings import read_outcome
from schemas.store import lock, publish, publish_json, remove_temporary, verify


def test_a_published_file_verifies_until_it_is_changed(tmp_path):
    done = publish_json(tmp_path, "a/b.json", {"x": 1})
    verify(tmp_path, done)
    (tmp_path / "a/b.json").write_text('{"x": 2}')
    with pytest.raises(LakeError, match="changed or cut short"):
        verify(tmp_path, done)
    (tmp_path / "a/b.json").unlink()
    with pytest.raises(LakeError, match="missing"):
        verify(tmp_path, done)


def test_a_failed_write_leaves_nothing_and_says_the_disk_is_full(tmp_path):
    def write(path):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LakeError, match="disk is full"):
        publish(tmp_path, "a.bin", write)
    assert list(tmp_path.rglob("*.bin")) == []


def test_a_writer_killed_halfway_leaves_the_name_empty_and_a_temporary_that_is_removed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from schemas.store import publish\n"
        "def write(path):\n"
        "    with path.open('wb') as file:\n"
        "        file.write(b'x' * 1000); file.flush(); print('writing', flush=True); time.sleep(3600)\n"
        "publish(Path(sys.argv[1]), 'a.bin', write)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "a.bin").exists()
    assert remove_temporary(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_exclusive_names_its_holder_and_dies_with_it(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from schemas.store import lock\n"
        "with lock(Path(sys.argv[1]), 'curate'):\n    print('held', flush=True); time.sleep(3600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / ".lock")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with pytest.raises(LakeError, match=f"process {process.pid} \\(curate\\)"), lock(tmp_path / ".lock", "train"):
        pass
    process.kill()
    process.wait()
    for _ in range(1200):
        try:
            with lock(tmp_path / ".lock", "train"):
                return
        except LakeError:
            time.sleep(0.05)
    pytest.fail("the lock outlived its holder")


def test_publishing_again_replaces_the_whole_file(tmp_path):
    publish(tmp_path, "a.bin", lambda path: path.write_bytes(b"long " * 100))
    done = publish(tmp_path, "a.bin", lambda path: path.write_bytes(b"short"))
    assert (tmp_path / "a.bin").read_bytes() == b"short"
    assert done.bytes == 5
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_lock_where_nothing_can_be_written_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LakeError, match="cannot write"), lock(tmp_path / "file" / ".lock", "test"):
        pass


@pytest.mark.parametrize(
    "read", [lambda root: read_snapshot(root), lambda root: read_segments(root / "segments.json"), lambda root: read_outcome(root)]
)
def test_damaged_json_is_an_error_of_the_lake_that_names_the_file(tmp_path, read):
    (tmp_path / "snapshots").mkdir()
    for name in ("snapshots/current.json", "segments.json", "outcome.json"):
        (tmp_path / name).write_text('{"half": ')
    with pytest.raises(LakeError, match=r"(current|segments|outcome)\.json: damaged"):
        read(tmp_path)
