"""The index: where each document lies, sorted by doc_id, so that one is found among many millions without a scan.

One file a generation, Parquet of three whole numbers a document: the halves of its doc_id and its locator. Its row groups are small and
their statistics exclude one another, so that a look-up reads one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.corpus import raw_column
from curate.sql import connect, scan
from curate.step import Shard, ShardWriter, Step
from schemas.manifest import Snapshot
from schemas.store import here

if TYPE_CHECKING:
    from curate.curation import Curation

Json = Any

SCHEMA = pa.schema([pa.field(name, pa.uint64(), nullable=False) for name in ("high", "low", "locator")])
ROW_GROUP = 1 << 16


def index_step(c: Curation) -> tuple[Step, list[Shard]]:
    """The step, one shard a generation, that sorts the places of all documents by doc_id (file ``doc_index``)."""
    shards = []
    for generation, (begin, end) in enumerate(zip([0, *c.generations], c.generations, strict=False)):
        mine = [(shard, path) for shard in range(begin, end) if (path := c.path("read", "documents", shard)) is not None]
        inputs = [[shard, c.documents[shard].files["documents"].checksum] for shard, _ in mine]
        shards.append(Shard(f"{generation:05d}", inputs, {"documents": mine, "memory_bytes": c.memory_bytes}))
    return Step("doc_index", 1, {}, _index), shards


def _index(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if not task["documents"]:
        return {"documents": 0}
    with connect(task["memory_bytes"]) as db:
        scan(db, "documents", writer.root, task["documents"], ["doc_id"])
        batches = db.sql("SELECT doc_id, locator FROM documents ORDER BY doc_id, locator").to_arrow_reader(ROW_GROUP)
        writer.publish("doc_index", "parquet", lambda path: _write(path, batches))
    return {"documents": pq.read_metadata(writer.root / writer.files["doc_index"].path).num_rows}


def _write(path: Path, batches: Iterator[Any]) -> None:
    with pq.ParquetWriter(path, SCHEMA, compression="none", use_dictionary=False) as out:
        waiting = SCHEMA.empty_table()
        for batch in batches:
            halves = _halves(b"".join(batch.column(0).to_pylist()))
            columns = [halves[:, 0], halves[:, 1], batch.column(1)]
            waiting = pa.concat_tables([waiting, pa.table([pa.array(column) for column in columns], schema=SCHEMA)])
            while waiting.num_rows >= ROW_GROUP:
                out.write_table(waiting.slice(0, ROW_GROUP), row_group_size=ROW_GROUP)
                waiting = waiting.slice(ROW_GROUP)
        if waiting.num_rows:
            out.write_table(waiting, row_group_size=ROW_GROUP)


def _halves(ids: bytes) -> NDArray[np.uint64]:
    """(n, 2) halves of doc_ids that lie one after another, in the order of their bytes."""
    return np.frombuffer(ids, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def is_indexed(snapshot: Snapshot) -> bool:
    """Whether a snapshot has an index; lakes of earlier versions have one after the next curation."""
    return "doc_index" in snapshot.steps


def beginning_with(root: Path, snapshot: Snapshot, prefix: str) -> dict[bytes, int]:
    """Locators of the documents whose doc_id in hex begins so, by doc_id; of a repeated one the first."""
    low, high = (bytes.fromhex(prefix.ljust(32, digit)) for digit in "0f")
    first, last = (np.uint64(int.from_bytes(bound[:8], "big")) for bound in (low, high))
    found: dict[bytes, int] = {}
    for file in snapshot.files("doc_index"):
        source = pq.ParquetFile(here(root, file.path))
        near = [group for group, (least, most) in enumerate(_bounds(source)) if least <= last and first <= most]
        for doc, place in _documents(source, near, np.array([first]), np.array([last])):
            if low <= doc <= high:
                found[doc] = min(place, found.get(doc, place))
    return found


def locators_of(root: Path, snapshot: Snapshot, documents: Sequence[bytes]) -> dict[bytes, int]:
    """Locators of documents by doc_id; of a repeated one the first; those that the snapshot lacks are left out."""
    wanted = set(documents)
    high = np.unique(_halves(b"".join(documents))[:, 0])
    found: dict[bytes, int] = {}
    for file in snapshot.files("doc_index"):
        source = pq.ParquetFile(here(root, file.path))
        for doc, place in _documents(source, _groups_with(source, high), high, high):
            if doc in wanted:
                found[doc] = min(place, found.get(doc, place))
    return found


def _bounds(source: pq.ParquetFile) -> Iterator[tuple[int, int]]:
    """Least and greatest first half of each row group."""
    for group in range(source.metadata.num_row_groups):
        bounds = source.metadata.row_group(group).column(0).statistics
        yield bounds.min, bounds.max


def _groups_with(source: pq.ParquetFile, high: NDArray[np.uint64]) -> list[int]:
    """Row groups in whose range one of the values lies."""
    return [
        group
        for group, (least, most) in enumerate(_bounds(source))
        if np.searchsorted(high, least) < np.searchsorted(high, most, side="right")
    ]


def _documents(
    source: pq.ParquetFile, groups: Sequence[int], least: NDArray[np.uint64], most: NDArray[np.uint64]
) -> Iterator[tuple[bytes, int]]:
    """doc_id and locator of the rows of some groups whose first half lies in one of some ranges, which are apart and ascending."""
    for group in groups:
        rows = source.read_row_group(group)
        high, low, places = (raw_column(rows, name, np.uint64) for name in SCHEMA.names)
        begins, stops = np.searchsorted(high, least), np.searchsorted(high, most, side="right")
        for which in np.flatnonzero(begins < stops).tolist():
            for at in range(int(begins[which]), int(stops[which])):
                yield int(high[at]).to_bytes(8, "big") + int(low[at]).to_bytes(8, "big"), int(places[at])
