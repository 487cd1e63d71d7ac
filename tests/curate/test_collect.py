"""Garbage collection: what snapshots and runs name stays whole, a lake goes on growing, and the rest is counted and goes."""

import json
import shutil
from dataclasses import asdict

import pytest

from curate.collect import Garbage, collect
from curate.lots import read_lots
from schemas.manifest import read_snapshot, write_snapshot
from schemas.store import publish_json, verify
from tests.curate.test_generations import grow, put, recipe


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A lake of two generations under the name `kept`, whose current snapshot is that of another recipe."""
    folder = tmp_path_factory.mktemp("collect")
    put(folder / "data", 0)
    other = grow(folder / "lake", recipe(folder / "data", generations="one", pack={"row_length": 32}, tokenizer={"kind": "byte"}))
    lots = read_lots(folder / "lake", other).lots
    for number in range(2):
        if number:
            put(folder / "data", number)
        snapshot = grow(folder / "lake", recipe(folder / "data", **({"generations": "one"} if not number else {})))
    write_snapshot(folder / "lake", snapshot, "kept")
    return folder, lots, snapshot


def files(root):
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def whole(root, name):
    for entries in read_snapshot(root, name).steps.values():
        for entry in entries:
            for file in entry.files.values():
                verify(root, file)


def test_what_nothing_names_goes_and_what_a_run_names_stays(grown, tmp_path):
    folder, lots, _ = grown
    root = tmp_path / "lake"
    shutil.copytree(folder / "lake", root)
    before = files(root)
    found = collect(root, 0, dry_run=True)
    assert found.shards and found.files and found.bytes and not found.young_files
    assert files(root) == before
    kept = next(iter(lots.values()))
    publish_json(root, "runs/old/0-first/stage.void-0001.json", {"lots": [asdict(kept)]})
    publish_json(root, "verdicts/of-a-killed-writer.parquet", {})
    with_run = collect(root, 0)
    assert with_run.shards < found.shards
    assert with_run.files == len(before) - len(files(root)) - with_run.shards + 2  # the run's file stays, the killed writer's went
    whole(root, "kept"), whole(root, "current")
    shards = {shard.path for shard in kept.shards}
    names = {path.rsplit("-", 1)[1].split(".")[0] for path in shards}
    assert shards <= files(root)
    assert all(any(path.startswith("rows/") and name in path for path in files(root)) for name in names), "rows beside shards"
    assert collect(root, 0) == Garbage(0, 0, 0, 0, 0)


def test_a_collected_lake_grows_to_the_same_snapshot(grown, tmp_path):
    folder, _, _ = grown
    data = tmp_path / "data"
    shutil.copytree(folder / "data", data)
    put(data, 2)
    snapshots = []
    for name in ("plain", "collected"):
        root = tmp_path / name
        shutil.copytree(folder / "lake", root)
        if name == "collected":
            keys = [path.stem for path in (root / "manifests/holdout_index").rglob("*.json")]
            index = {path for path in files(root) if path.startswith("references/") and any(key[:12] in path for key in keys)}
            assert collect(root, 0).files
            assert index and index <= files(root)
        snapshots.append(grow(root, recipe(data)).steps)
    assert snapshots[0] == snapshots[1]


def test_young_files_stay(grown):
    folder, _, _ = grown
    before = files(folder / "lake")
    found = collect(folder / "lake", 1)
    assert (found.shards, found.files) == (0, 0) and found.young_files
    assert files(folder / "lake") == before


def test_a_damaged_stage_stops_the_collection(grown, tmp_path):
    folder, _, _ = grown
    root = tmp_path / "lake"
    shutil.copytree(folder / "lake", root)
    (root / "runs/x/0-a").mkdir(parents=True)
    (root / "runs/x/0-a/stage.json").write_text(json.dumps({"lots": []})[:-1])
    before = files(root)
    with pytest.raises(Exception, match="damaged"):
        collect(root, 0)
    assert files(root) == before
