"""Ids of documents, and which go on after reading: a sample by choice, and only the first of each declared id."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.corpus import column_array, id_hashes
from curate.curation import Curation, source_of
from curate.sql import connect, scan
from curate.step import Shard, ShardWriter, Step
from schemas.manifest import Entry
from schemas.store import Published

Json = Any
SAMPLE_DRAW = 0x5A3B1E
"""Added to the seed: a sample drawn as held-out documents are would be all held out."""


def user_doc_id(source: str, own: str) -> bytes:
    """The doc_id of a record that has an id of the user's own."""
    return hashlib.blake2b(b"id\0" + source.encode() + b"\0" + own.encode(), digest_size=16).digest()


def sample_step(c: Curation, entries: Sequence[Entry]) -> tuple[Step, list[Shard]]:
    """A step that keeps the documents whose hash of doc_id is in the lowest share; the quarantine is passed on."""
    settings = {"share": c.sample, "seed": c.recipe.seed}
    shards = [
        Shard(
            entry.label,
            entry.content,
            settings | {"files": {name: vars(file) for name, file in entry.files.items()}, "counts": dict(entry.counts)},
        )
        for entry in entries
    ]
    return Step("sample", 2, settings, _sample), shards


def _sample(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    counts: dict[str, int] = task["counts"]
    files = {name: Published(**file) for name, file in task["files"].items()}
    if "quarantine" in files:
        writer.files["quarantine"] = files["quarantine"]
    if "documents" not in files:
        return counts | {"sampled_out": 0}
    table = pq.read_table(writer.root / files["documents"].path, partitioning=None)
    drawn = draw(id_hashes(column_array(table, "doc_id"), task["seed"] + SAMPLE_DRAW), task["share"])
    kept = table.filter(pa.array(drawn))
    writer.table("documents", kept)
    return counts | {
        "documents": kept.num_rows,
        "bytes_in": int(np.sum(kept.column("bytes").to_numpy(), dtype=np.int64)),
        "sampled_out": table.num_rows - kept.num_rows,
    }


def draw(hashes: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """True where a uniform hash falls into the lowest share."""
    return np.asarray(hashes < np.uint64(min(int(share * 2**64), 2**64 - 1)), dtype=np.bool_)


def repeats_step(c: Curation) -> tuple[Step, list[Shard]]:
    """A step over the whole lake that finds second and later records of one declared id; ids made from places cannot repeat."""
    declared = {name for name, source in c.recipe.sources.items() if source.id_field is not None}
    paths = [
        (shard, entry.files["documents"].path)
        for shard, entry in enumerate(c.documents)
        if source_of(entry) in declared and "documents" in entry.files
    ]
    inputs = [[shard, c.documents[shard].content] for shard, _ in paths]
    return Step("repeats", 1, {}, _repeats), [Shard("all", inputs, {"documents": paths})]


def _repeats(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if not task["documents"]:
        return {"repeats": 0}
    with connect() as db:
        scan(db, "documents", writer.root, task["documents"], ["doc_id", "source", "path", "record", "id", "bytes"])
        repeats = db.sql(
            """
            SELECT *
            FROM documents JOIN (SELECT doc_id, min(locator) AS first FROM documents GROUP BY doc_id HAVING count(*) > 1) USING (doc_id)
            WHERE locator > first ORDER BY locator
            """
        ).to_arrow_table()
    writer.table("repeats", repeats)
    quarantine = repeats.append_column("reason", pa.array(["duplicate_id"] * repeats.num_rows, pa.string()))
    details = [f"id {value!r} was seen before in this source" for value in repeats.column("id").to_pylist()]
    writer.table("quarantine", quarantine.append_column("detail", pa.array(details, pa.string())))
    return {"repeats": repeats.num_rows}
