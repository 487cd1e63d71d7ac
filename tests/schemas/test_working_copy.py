"""Lakes in a real S3 store: what one machine publishes another finds, whole or not at all; one writer at a time; a bounded cache."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from curate.collect import collect
from curate.engine import LocalExecutor
from curate.step import Shard, ShardWriter, Silent, Step, run_step
from schemas import lease
from schemas.errors import LakeError
from schemas.manifest import Snapshot, find, read_snapshot, write_snapshot
from schemas.store import Published, here, lock, open_lake, publish, remove, rename, using
from schemas.working_copy import WorkingCopy, copy_of
from tests.object_store import client, environment, proxy

REPOSITORY = Path(__file__).parents[2]
Machine = Callable[..., Path]


def write(writer: ShardWriter, task: dict[str, int]) -> dict[str, int]:
    """Publish so many bytes as data, and a little JSON."""
    writer.publish("blob", "arrow", lambda path: path.write_bytes(bytes([task["value"]]) * task["size"]) and None)
    writer.publish("note", "json", lambda path: path.write_text("{}") and None)
    return {"value": task["value"]}


def double(writer: ShardWriter, task: dict[str, str]) -> dict[str, int]:
    """Publish twice what the named file holds."""
    content = (writer.root / task["of"]).read_bytes()
    writer.publish("double", "arrow", lambda path: path.write_bytes(2 * content) and None)
    return {"bytes": len(content)}


def made(root: Path, shards: int, size: int = 1000) -> list:
    """Entries of a step that writes blobs."""
    step = Step("blobs", 1, None, write)
    return run_step(root, step, [Shard(f"s{n}", n, {"value": n, "size": size}) for n in range(shards)], LocalExecutor(1), Silent())


def whole(root: Path) -> int:
    """Bytes of data files that are in a working copy."""
    files = [path for path in root.rglob("*.arrow") if stat.S_IMODE(path.stat().st_mode) != 0]
    return sum(path.stat().st_size for path in files)


def test_what_one_machine_publishes_another_finds_and_fetches_when_it_needs_it(machine: Machine, address: str) -> None:
    machine("a")
    first = open_lake(address)
    with lock(first / ".lock", "test"):
        entries = made(first, 3)
        write_snapshot(first, Snapshot("r", {"blobs": entries}))
    machine("b")
    second = open_lake(address)
    assert second != first and read_snapshot(second).steps["blobs"] == entries
    assert made(second, 3) == entries, "nothing is done again"
    assert whole(second) == 0, "no data came"
    doubles = [Shard(f"d{n}", n, {"of": entry.files["blob"].path}) for n, entry in enumerate(entries[:2])]
    done = run_step(second, Step("double", 1, None, double), doubles, LocalExecutor(1), Silent())
    assert (second / done[1].files["double"].path).read_bytes() == b"\x01" * 2000
    assert whole(second) == 2 * 1000 + 2 * 2000
    remove(second / entries[0].files["blob"].path)
    rename(second / entries[1].files["note"].path, second / "note/renamed.json")
    machine("a")
    open_lake(address)
    assert not (first / entries[0].files["blob"].path).exists() and (first / "note/renamed.json").read_text() == "{}"
    assert find(first, "blobs", entries[0].key) is None and find(first, "blobs", entries[2].key) == entries[2]
    assert [entry.files["double"] for entry in done] == [find(first, "double", entry.key).files["double"] for entry in done]  # type: ignore[union-attr]


def test_an_object_that_is_not_what_was_published_is_refused(machine: Machine, address: str, store: int) -> None:
    machine("a")
    (entry,) = made(open_lake(address), 1)
    machine("b")
    root = open_lake(address)
    file = entry.files["blob"]
    with client(store).open_output_stream(f"{address.removeprefix('s3://')}/{file.path}") as out:
        out.write(b"x" * file.bytes)
    with pytest.raises(LakeError, match="not what was published"):
        here(root, file.path, file.checksum)
    with pytest.raises(LakeError, match="not what was published"), using(root, [file]):
        pass


def test_keys_that_lead_out_of_the_folder_or_to_its_own_files_are_not_taken(machine: Machine, address: str) -> None:
    from schemas.working_copy import _is_plain

    assert all(map(_is_plain, ("a.json", "runs/r/0-a/stage.json")))
    assert not any(map(_is_plain, ("", "../a", "a/../../b", "/a", "a//b", ".origin.json", "a/.hidden/b", "catalog.duckdb")))


def test_a_process_killed_while_it_uploads_leaves_no_half_commit_and_garbage_that_is_collected(
    machine: Machine, address: str, store: int, tmp_path: Path
) -> None:
    stalling = proxy(store)
    stalling.stall = "/note/s1"
    code = "from tests.schemas.test_working_copy import *; import sys; made(open_lake(sys.argv[1]), 3)"
    variables = {**os.environ, **environment(stalling.port, tmp_path / "a"), "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen([sys.executable, "-c", code, address], env=variables)
    assert stalling.stalled.wait(600)
    process.send_signal(signal.SIGKILL)
    process.wait()
    machine("a")
    root = open_lake(address)
    assert len(list(root.glob("manifests/blobs/*/*.json"))) == 1, "the first shard is finished"
    assert len(list(root.glob("blob/*.arrow"))) == 2, "the second one's data is there, and nothing names it"
    machine("b")
    other = open_lake(address)
    write_snapshot(other, Snapshot("r", {"blobs": made(other, 1)}))
    with lock(other / ".lock", "collect"):
        found = collect(other, 0.0)
    assert (found.files, found.shards) == (1, 0)
    machine("a")
    assert len(list(open_lake(address).glob("blob/*.arrow"))) == 1
    entries = made(root, 3)
    assert len(entries) == 3 and len(list(root.glob("blob/*.arrow"))) == 3


def test_broken_connections_are_taken_up_again(machine: Machine, address: str, store: int) -> None:
    breaking = proxy(store, after=50_000, times=4)
    machine("a", breaking.port)
    entries = made(open_lake(address), 2, size=400_000)
    machine("b", breaking.port)
    root = open_lake(address)
    assert [here(root, each.files["blob"].path, each.files["blob"].checksum).stat().st_size for each in entries] == [400_000] * 2
    assert breaking.broken == 4


def test_two_writers_cannot_both_hold_a_lake(machine: Machine, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "TRIES", 2)
    machine("a")
    first = open_lake(address)
    with lock(first / ".lock", "curate"):
        machine("b")
        second = open_lake(address)
        with pytest.raises(LakeError, match=r"in use by process \d+ on .* \(curate\)"), lock(second / ".lock", "forget"):
            pass
    with lock(second / ".lock", "forget"):
        pass
    assert not copy_of(second).held  # type: ignore[union-attr]


def test_who_holds_a_lock_elsewhere_is_told_under_its_own_name(machine: Machine, address: str) -> None:
    machine("a")
    first = open_lake(address)
    names = {".lock": "lock", "runs/one--two-/.lock": "runs/one--two-/.lock"}
    with contextlib.ExitStack() as held:
        for name in names:
            held.enter_context(lock(first / name, "train"))
        machine("b")
        told = lease.living(copy_of(open_lake(address)))  # type: ignore[arg-type]
    assert sorted(told) == sorted(names.values()) and all("(train)" in text for text in told.values())


def test_of_writers_that_come_at_once_never_two_are_in(machine: Machine, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "TRIES", 1000)
    copies = []
    for name in "abc":
        machine(name)
        copies.append(copy_of(open_lake(address)))
    inside: list[str] = []
    most: list[int] = []

    def enter(copy: WorkingCopy) -> None:
        with lease.lease(copy, ".lock", "test"):
            inside.append(copy.copy)
            most.append(len(inside))
            time.sleep(0.05)
            inside.remove(copy.copy)

    threads = [threading.Thread(target=enter, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


def test_a_dead_holder_is_followed_at_once_here_and_when_its_claim_has_run_out_elsewhere(
    machine: Machine, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "TRIES", 1)
    machine("a")
    first = open_lake(address)
    claim = lease._Claim(copy_of(first), ".lock", "process 1 on somewhere (curate)")  # type: ignore[arg-type]
    claim.take()  # and its process dies
    copy_of(first).held.clear()  # type: ignore[union-attr]
    machine("b")
    second = open_lake(address)
    with pytest.raises(LakeError, match="in use by process 1 on somewhere"), lock(second / ".lock", "curate"):
        pass
    with lock(first / ".lock", "curate"):
        pass
    claim.take()
    copy_of(first).held.clear()  # type: ignore[union-attr]
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
    time.sleep(2.1)
    with lock(second / ".lock", "curate"):
        pass


def test_a_holder_that_was_stopped_too_long_writes_nothing_more(machine: Machine, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("a")
    root = open_lake(address)
    with lock(root / ".lock", "curate"):
        monkeypatch.setattr(copy_of(root), "held", {".lock": time.monotonic() - 1})
        with pytest.raises(LakeError, match="not renewed in time"):
            write_snapshot(root, Snapshot("r", {}))
    assert not (root / "snapshots/current.json").exists()


def test_a_cache_stays_within_its_bound_but_for_what_is_in_use(machine: Machine, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_CACHE_BYTES", "25000")
    machine("a")
    root = open_lake(address)
    entries = made(root, 6, size=10_000)
    assert whole(root) <= 25_000
    files = [Published(file.path, file.bytes, file.checksum) for entry in entries for file in (entry.files["blob"],)]
    copy = copy_of(root)
    assert copy is not None
    with using(root, files):
        copy.shrink()
        assert whole(root) == 60_000, "in use"
        assert [(root / file.path).read_bytes()[0] for file in files] == list(range(6))
    copy.shrink()
    assert 0 < whole(root) <= 25_000


@pytest.mark.parametrize(
    ("lake", "endpoint", "told"),
    [
        ("s3://nobucket/lake", None, "no bucket 'nobucket'"),
        ("s3://lakes", None, "write s3://BUCKET/PREFIX"),
        ("s3://KEYID:SECRETKEY@lakes/x", None, "keys belong in"),
        ("s3://lakes/x", "http://KEYID:SECRETKEY@127.0.0.1:1", "the object store fails"),
        ("s3://lakes/x", "127.0.0.1:8333", "not an address"),
    ],
)
def test_a_place_that_cannot_be_is_a_clear_error_without_keys(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, lake: str, endpoint: str | None, told: str
) -> None:
    machine("a")
    monkeypatch.setattr("schemas.objects.WAITS", ())
    if endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(LakeError) as error:
        open_lake(Path(lake))
    assert told in str(error.value) and "SECRETKEY" not in str(error.value)


def test_a_lake_that_is_a_folder_asks_nothing_of_any_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schemas.objects.client", None)
    publish(tmp_path, "a/b.arrow", lambda path: path.write_bytes(b"x") and None)
    with lock(tmp_path / ".lock", "test"):
        assert here(open_lake(tmp_path), "a/b.arrow").read_bytes() == b"x"
    assert stat.S_IMODE((tmp_path / "a/b.arrow").stat().st_mode) & 0o200
