"""Reading a source into a lake of its own."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from curate.engine import LocalExecutor
from curate.read import READ_VERSION, list_shards, read_shard
from curate.step import Silent, Step, run_step
from schemas.sources import Source
from schemas.tables import DOCUMENTS, QUARANTINE


@dataclass
class Outcome:
    """What a source was read into."""

    documents: list[dict[str, Any]]
    quarantine: list[dict[str, Any]]
    counts: Counter[str]
    digests: list[str]
    groups: list[int]

    @property
    def texts(self) -> list[str]:
        return [row["text"] for row in self.documents]

    @property
    def faults(self) -> list[tuple[int | None, str]]:
        return [(row["record"], row["reason"]) for row in self.quarantine]


Read = Callable[..., Outcome]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read ``paths`` as a source; checks that the counts agree with the tables."""
    turns = iter(range(10**6))

    def run(
        *paths: Path | str, shard_bytes: int = 32_000_000, reader: str = "jsonl", name: str = "src", workers: int = 1, **more: Any
    ) -> Outcome:
        source = Source(reader=reader, paths=[str(path) for path in paths], **more)
        root = tmp_path / f"lake-{next(turns)}"
        shards = list_shards(name, source, shard_bytes)
        step = Step("read", READ_VERSION, {}, read_shard, processes=True)
        entries = run_step(root, step, shards, LocalExecutor(workers), Silent())
        counts: Counter[str] = Counter()
        found: dict[str, list[dict[str, Any]]] = {"documents": [], "quarantine": []}
        digests, groups = [], []
        for entry in entries:
            counts.update(entry.counts)
            for table, file in sorted(entry.files.items()):
                path = root / file.path
                rows = pq.read_table(path, partitioning=None)
                assert rows.schema.equals({"documents": DOCUMENTS, "quarantine": QUARANTINE}[table])
                assert rows.num_rows == file.rows
                found[table] += rows.to_pylist()
                digests.append(hashlib.sha256(path.read_bytes()).hexdigest())
                if table == "documents":
                    metadata = pq.read_metadata(path)
                    groups += [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        assert counts["documents"] == len(found["documents"])
        assert counts["quarantined"] == sum(row["record"] is not None for row in found["quarantine"])
        assert counts["broken_files"] == sum(row["record"] is None for row in found["quarantine"])
        assert counts["records"] == counts["documents"] + counts["quarantined"]
        assert (
            counts["bytes_in"]
            == sum(len(row["text"].encode()) for row in found["documents"])
            == sum(row["bytes"] for row in found["documents"])
        )
        return Outcome(found["documents"], found["quarantine"], counts, digests, groups)

    return run


PACK: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "gzip_members": lambda data: b"".join(gzip.compress(data[i : i + 37], mtime=0) for i in range(0, len(data), 37)),
    "zstd": lambda data: zstandard.compress(data),
    "zstd_frames": lambda data: b"".join(zstandard.compress(data[i : i + 37]) for i in range(0, len(data), 37)),
}


@pytest.fixture(params=sorted(PACK))
def pack(request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
    """Each way in which a file may be compressed."""
    return PACK[request.param]


@pytest.fixture
def parquet(tmp_path: Path) -> Callable[..., Path]:
    """Write a table as a Parquet file."""

    def write(table: pa.Table, name: str = "x.parquet", **more: Any) -> Path:
        pq.write_table(table, tmp_path / name, **more)
        return tmp_path / name

    return write


@pytest.fixture(params=["plain", "gzip", "zstd"])
def pack_whole(request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
    """Each compression, in one piece."""
    return PACK[request.param]
