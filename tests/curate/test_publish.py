"""What becomes of the current snapshot, and of sources that are broken or sampled away."""

import gzip

import pytest

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.lots import build_lots
from curate.step import Silent
from schemas.errors import InputError
from schemas.manifest import UNPACKED, read_snapshot
from schemas.recipe import Recipe
from tests.curate.made_text import corpus, write_jsonl


def recipe(folder, **changes):
    source = {"reader": "jsonl", "paths": [str(folder)]}
    rules = [{"name": "short", "sql": "n_words < 5"}]
    base = {"name": "made", "sources": {"web": source}, "rules": rules, "tokenizer": {"kind": "byte"}, "pack": {"row_length": 64}}
    return Recipe.model_validate(base | changes)


def begin(root, made, sample=1.0):
    return curate(Curation(root, made, LocalExecutor(1), Silent(), sample=sample))


def test_the_current_snapshot_changes_only_once_lots_are_built(tmp_path):
    write_jsonl(tmp_path / "data/a.jsonl", corpus(1, 30))
    root, first = tmp_path / "lake", recipe(tmp_path / "data")
    curated = begin(root, first)
    assert read_snapshot(root).id == curated.id, "a lake's first can be looked into"
    packed = build_lots(root, first, curated, LocalExecutor(1), Silent())
    second = recipe(tmp_path / "data", rules=[{"name": "short", "sql": "n_words < 70"}])
    other = begin(root, second)
    assert read_snapshot(root).id == packed.id and read_snapshot(root, UNPACKED).id == other.id
    done = build_lots(root, second, other, LocalExecutor(1), Silent())
    assert read_snapshot(root).id == done.id != packed.id
    assert [path.name for path in (root / "snapshots").iterdir()] == ["current.json"]


def test_a_sample_that_holds_nothing_is_refused(tmp_path):
    write_jsonl(tmp_path / "data/a.jsonl", corpus(1, 30))
    with pytest.raises(InputError, match=r"none of the 30 documents of source 'web'.*(\n.*)*0\.33"):
        begin(tmp_path / "lake", recipe(tmp_path / "data"), sample=1e-9)


def test_files_cut_short_count_against_max_bad_share(tmp_path):
    for number in range(4):
        write_jsonl(tmp_path / f"data/{number}.jsonl", corpus(number, 30))
    path = tmp_path / "data/3.jsonl"
    whole = gzip.compress(path.read_bytes(), mtime=0)
    path.unlink()
    (tmp_path / "data/3.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    made = recipe(tmp_path / "data")
    with pytest.raises(InputError, match="1 of 4 files are broken or cut short"):
        begin(tmp_path / "lake", made)
    lenient = {"web": made.sources["web"].model_copy(update={"max_bad_share": 0.25})}
    assert begin(tmp_path / "lake", made.model_copy(update={"sources": lenient}))


def test_a_lake_among_its_source_s_files_is_not_read(tmp_path):
    write_jsonl(tmp_path / "data/a.jsonl", corpus(1, 20))
    made = recipe(tmp_path / "data")
    begin(tmp_path / "data/lake", made)
    for lake in ("data/lake", "data/../data/lake"):
        with pytest.raises(InputError, match="the lake lies among the source's files"):
            begin(tmp_path / lake, made)
