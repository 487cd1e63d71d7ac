"""Sources in a real S3 store on loopback: the same documents as from a folder, also when connections break; a dead store is an error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from curate.read import list_shards, read_shard
from curate.read.files import find_files
from curate.step import ShardWriter
from schemas.errors import InputError
from schemas.sources import Source
from tests.object_store import client, proxy


@pytest.fixture(scope="module")
def corpus(store: int, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Port of a store that has files under ``lakes/corpus``."""
    folder = tmp_path_factory.mktemp("corpus")
    fill(folder)
    fs.copy_files(str(folder), "lakes/corpus", destination_filesystem=client(store))
    return store


@pytest.fixture
def reached(corpus: int, machine: Callable[..., Path]) -> int:
    """The same, told to this process."""
    machine("cache")
    return corpus


def fill(folder: Path) -> None:
    """A plain file that is cut, a packed one, Parquet, one in a hidden folder."""
    lines = [json.dumps({"id": f"d{n}", "text": f"document {n} " * 40}) + "\n" for n in range(4000)]
    for name, content in {
        "web/a.jsonl": "".join(lines[:3000]).encode(),
        "web/deep/b.jsonl.gz": gzip.compress("".join(lines[3000:]).encode()),
        "web/.cache/c.jsonl": b"not seen",
        "web/note.txt": b"other",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "books").mkdir()
    pq.write_table(pa.table({"text": [f"book {n} " * 50 for n in range(500)]}), folder / "books/all.parquet", row_group_size=100)


def documents(root: Path, source: Source) -> tuple[list[dict], list[str]]:
    rows, labels = [], []
    for number, shard in enumerate(list_shards("s", source, 400_000)):
        writer = ShardWriter(root, "read", f"{number:032d}", shard.label)
        read_shard(writer, shard.task)
        rows += pq.read_table(root / writer.files["documents"].path).to_pylist()
        labels.append(json.dumps([piece[0] for piece in shard.task["pieces"]]))
    return rows, labels


@pytest.mark.parametrize(
    ("reader", "pattern"), [("jsonl", "web/**/*.jsonl*"), ("jsonl", "web/deep"), ("parquet", "books"), ("parquet", "books/all.parquet")]
)
def test_objects_give_the_documents_of_the_same_files(reached: int, tmp_path: Path, reader: str, pattern: str) -> None:
    fill(tmp_path / "local")
    there, here = (
        documents(tmp_path / name, Source(reader=reader, paths=[f"{base}/{pattern}"]))
        for name, base in (("there", "s3://lakes/corpus"), ("here", tmp_path / "local"))
    )
    assert there == here and there[0]


def test_broken_connections_are_taken_up_where_they_broke(reached: int, tmp_path: Path, machine: Callable[..., Path]) -> None:
    whole = documents(tmp_path / "whole", source := Source(reader="jsonl", paths=["s3://lakes/corpus/web/a.jsonl"]))
    breaking = proxy(reached, after=300_000, times=6)
    machine("cache", breaking.port)
    assert documents(tmp_path / "cut", source) == whole
    assert breaking.broken


def test_a_store_that_does_not_answer_is_an_error_not_quarantine(reached: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = list_shards("s", Source(reader="jsonl", paths=["s3://lakes/corpus/web/a.jsonl"]), 1 << 30)[0]
    monkeypatch.setattr("schemas.objects.WAITS", ())
    shard.task["places"] = ["s3://lakes/corpus/web/gone.jsonl"]
    with pytest.raises(InputError, match="object store fails"):
        read_shard(ShardWriter(tmp_path, "read", "0" * 32, shard.label), shard.task)


@pytest.mark.parametrize(
    ("patterns", "told"),
    [(["s3://lakes/corpus/none*"], "no file matches"), (["s3://lakes/corpus/web", "/tmp"], "here and elsewhere together")],
)
def test_what_matches_nothing_or_mixes_places_is_refused(reached: int, patterns: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        find_files("s", patterns)
