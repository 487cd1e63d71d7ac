"""A step does only what its manifest lacks, and its result does not depend on who did it or when."""

import random
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.engine import LocalExecutor
from curate.step import Shard, Silent, Step, run_step
from schemas.errors import LakeError
from schemas.store import checksum


def write_repeats(writer, task):
    time.sleep(random.random() / 50)
    rows = [{"doc_id": bytes([task]) * 16, "locator": task, "bytes": task * 10}]
    writer.table("repeats", pa.Table.from_pylist(rows))
    return {"rows": 1}


def fail_on_seven(writer, task):
    if task == 7:
        raise ValueError("seven")
    return write_repeats(writer, task)


def write_nothing(writer, task):
    writer.table(
        "repeats", pa.Table.from_pylist([], schema=pa.schema([("doc_id", pa.binary(16)), ("locator", pa.uint64()), ("bytes", pa.int64())]))
    )
    return {"rows": 0}


def shards(count):
    return [Shard(f"s/{number:05d}", {"number": number}, number) for number in range(count)]


def result(root, entries):
    return [(e.key, e.label, [(f.path, checksum(root / f.path)) for f in e.files.values()], dict(e.counts)) for e in entries]


def test_workers_processes_and_completion_order_change_nothing(tmp_path):
    results = []
    for name, workers, processes in (("a", 1, False), ("b", 4, False), ("c", 3, True)):
        root = tmp_path / name
        entries = run_step(root, Step("demo", 1, {}, write_repeats, processes), shards(24), LocalExecutor(workers), Silent())
        results.append(result(root, entries))
    assert results[0] == results[1] == results[2]
    assert [label for _, label, _, _ in results[0]] == [f"s/{n:05d}" for n in range(24)]


def test_the_largest_shards_begin_first(tmp_path):
    begun = []

    def note(writer, task):
        begun.append(task)
        return {}

    sized = [Shard(f"s/{size}", size, size, size) for size in (3, 9, 1, 7)]
    entries = run_step(tmp_path, Step("demo", 1, {}, note), sized, LocalExecutor(1), Silent())
    assert begun == [9, 7, 3, 1]
    assert [entry.label for entry in entries] == ["s/3", "s/9", "s/1", "s/7"]


def test_a_rerun_does_only_what_is_missing(tmp_path):
    done = []

    class Watch(Silent):
        def finish(self, step, ran, skipped):
            done.append((ran, skipped))

    step = Step("demo", 1, {}, fail_on_seven)
    with pytest.raises(ValueError, match="seven"):
        run_step(tmp_path, step, shards(10), LocalExecutor(1), Watch())
    first = run_step(tmp_path, Step("demo", 1, {}, write_repeats), shards(10), LocalExecutor(1), Watch())
    assert done == [(3, 7)]
    (tmp_path / first[2].files["repeats"].path).unlink()
    (tmp_path / first[3].files["repeats"].path).write_bytes(b"cut")
    again = run_step(tmp_path, Step("demo", 1, {}, write_repeats), shards(10), LocalExecutor(1), Watch())
    assert done[-1] == (2, 8)
    assert result(tmp_path, again) == result(tmp_path, first)


@pytest.mark.parametrize("change", [{"version": 2}, {"settings": {"x": 1}}, {"name": "other"}])
def test_another_version_setting_or_step_is_done_anew(tmp_path, change):
    before = Step("demo", 1, {}, write_repeats)
    after = Step(**({"name": "demo", "version": 1, "settings": {}, "function": write_repeats} | change))
    assert {before.key(s) for s in shards(3)}.isdisjoint({after.key(s) for s in shards(3)})


def test_a_shard_without_rows_publishes_no_file_but_counts_as_done(tmp_path):
    entries = run_step(tmp_path, Step("demo", 1, {}, write_nothing), shards(1), LocalExecutor(1), Silent())
    assert entries[0].files == {}
    assert not (tmp_path / "repeats").exists()


def read_repeats(writer, task):
    pq.read_table(writer.root / task["file"])
    return {}


def test_a_changed_file_of_the_lake_is_named_in_place_of_what_its_reader_met(tmp_path):
    (entry,) = run_step(tmp_path, Step("demo", 1, {}, write_repeats), shards(1), LocalExecutor(1), Silent())
    file = entry.files["repeats"]
    reading = [Shard("s", "s", {"file": file.path})]
    (tmp_path / file.path).write_bytes(b"x" * file.bytes)
    with pytest.raises(LakeError, match=f"{file.path}: a published file was changed.*\n.*delete it and run again"):
        run_step(tmp_path, Step("reader", 1, {}, read_repeats), reading, LocalExecutor(1), Silent())
    (tmp_path / file.path).unlink()
    run_step(tmp_path, Step("demo", 1, {}, write_repeats), shards(1), LocalExecutor(1), Silent())
    assert run_step(tmp_path, Step("reader", 1, {}, read_repeats), reading, LocalExecutor(1), Silent())
