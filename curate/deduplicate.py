"""Deduplication of a lake: sign the documents that pass the rules, then choose over all shards which of them stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.corpus import Corpus, column_array, locators
from curate.curation import Curation
from curate.dedup.exact import content_hash
from curate.dedup.near import find_near_duplicates
from curate.dedup.sketch import SIGNATURE_VERSION, Signatures, SketchSettings, sign
from curate.rules import validate_expression
from curate.sql import connect, scan
from curate.step import Shard, ShardWriter, Step
from curate.survivors import passing_rows
from schemas.recipe import NearDedup
from schemas.signals import SIGNALS
from schemas.tables import DOCUMENTS

Json = Any
PREFERENCE = pa.schema([*SIGNALS, *(DOCUMENTS.field(name) for name in ("bytes", "date", "license", "url", "record", "path"))])
"""Columns that expressions of ``dedup.prefer`` may name."""


def sketch_settings(near: NearDedup) -> SketchSettings:
    """The recipe's sketch."""
    return SketchSettings(kind=near.kind, k=near.permutations, bands=near.bands, rows=near.rows, shingle=near.shingle)


def sign_step(c: Curation) -> tuple[Step, list[Shard]]:
    """A step that signs the passing documents of each shard: content hash, band keys, sketch."""
    near = c.recipe.dedup.near
    settings = {"sketch": None if near is None else asdict(sketch_settings(near)), "signature": SIGNATURE_VERSION}
    shards = [
        Shard(
            entry.label,
            [shard, entry.content, c.steps["rules"][shard].content, [repeats.content for repeats in c.steps["repeats"]]],
            settings
            | {
                "passing": [shard, c.path("rules", "failures", shard), c.path("repeats", "repeats")],
                "documents": c.path("read", "documents", shard),
                "batch_rows": c.batch_rows,
            },
        )
        for shard, entry in enumerate(c.documents)
    ]
    return Step("sign", 1, settings, _sign), shards


def _sign(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    rows = passing_rows(writer.root, *task["passing"])
    if len(rows) == 0:
        return {"documents": 0}
    texts = column_array(pq.read_table(writer.root / task["documents"], columns=["text"], memory_map=True, partitioning=None), "text")
    settings = None if task["sketch"] is None else SketchSettings(**task["sketch"])
    hashes, parts = [], []
    for first in range(0, len(rows), task["batch_rows"]):
        batch = texts.take(pa.array(rows[first : first + task["batch_rows"]]))
        hashes.append(content_hash(batch))
        if settings is not None:
            parts.append(sign(batch, settings))
    content = np.concatenate(hashes)
    columns = {"locator": locators(task["passing"][0], len(texts))[rows], "hash_0": content[:, 0], "hash_1": content[:, 1]}
    if settings is not None:
        columns |= _signature_columns(Signatures.concatenate(parts))
    table = pa.table({name: pa.array(np.ascontiguousarray(column)) for name, column in columns.items()})
    writer.publish("signatures", "arrow", lambda path: _write_arrow(path, table), len(rows))
    return {"documents": len(rows)}


def _signature_columns(signatures: Signatures) -> dict[str, NDArray[Any]]:
    """Band keys, the sketch as columns of eight bytes, and the shingle counts."""
    words = -(-signatures.sketch.shape[1] // 8)
    padded = np.zeros((len(signatures), 8 * words), np.uint8)
    padded[:, : signatures.sketch.shape[1]] = signatures.sketch
    packed = padded.view(np.uint64)
    return (
        {f"band_{n}": keys for n, keys in enumerate(signatures.bands)}
        | {f"sketch_{n}": packed[:, n] for n in range(words)}
        | {"shingles": signatures.shingles}
    )


def _signatures(table: pa.Table, settings: SketchSettings) -> Signatures:
    """The inverse of ``_signature_columns``."""
    packed = np.column_stack([table.column(f"sketch_{n}").to_numpy() for n in range(-(-settings.k // 8))])
    sketch = np.ascontiguousarray(packed).view(np.uint8)[:, : settings.k]
    bands = [table.column(f"band_{n}").to_numpy() for n in range(settings.bands)]
    return Signatures(settings, bands, np.ascontiguousarray(sketch), table.column("shingles").to_numpy())


def _write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def deduplicate_step(c: Curation) -> tuple[Step, list[Shard]]:
    """A step over the whole lake that names, for each duplicate, the kept document it duplicates.

    Raises:
        RecipeError: an expression of ``dedup.prefer`` is not one allowed expression.
    """
    dedup = c.recipe.dedup
    for position, expression in enumerate(dedup.prefer):
        validate_expression(expression, PREFERENCE, where=f"dedup.prefer[{position}]")
    settings = dedup.model_dump(mode="json")
    inputs = [[entry.content for entry in c.steps[step]] for step in ("read", "signals", "sign")]
    task = {
        "dedup": settings,
        "documents": c.paths("read", "documents"),
        "signals": c.paths("signals", "signals"),
        "sources": list(c.recipe.sources),
        "signatures": [path for path in c.paths("sign", "signatures") if path is not None],
        "memory_bytes": c.memory_bytes,
    }
    return Step("dedup", 1, {"dedup": settings, "sources": list(c.recipe.sources), "signature": SIGNATURE_VERSION}, _deduplicate), [
        Shard("all", inputs, task)
    ]


def _deduplicate(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if not task["signatures"]:
        return {"exact": 0, "near": 0}
    table = pa.concat_tables([_read_arrow(writer.root / path) for path in task["signatures"]])
    place = table.column("locator").to_numpy()
    rank = _preference(writer.root, task, place)
    kept = np.arange(len(place))
    similarity = np.ones(len(place))
    if task["dedup"]["exact"]:
        kept = _first_of_equal(table.column("hash_0").to_numpy(), table.column("hash_1").to_numpy(), rank)
    exact = kept != np.arange(len(place))
    near = task["dedup"]["near"]
    if near is not None:
        alive = np.flatnonzero(~exact)
        corpus = Corpus(writer.root, task["documents"])
        found = find_near_duplicates(
            _signatures(table.take(pa.array(alive)), sketch_settings(NearDedup(**near))),
            rank[alive],
            lambda indices: corpus.fetch(place[alive[indices]]),
            sketch_settings(NearDedup(**near)),
            threshold=near["threshold"],
            policy=near["policy"],
            memory_limit=task["memory_bytes"],
        )
        kept[alive[found.document]] = alive[found.kept]
        similarity[alive[found.document]] = found.similarity
        # A copy of a document that a better one replaces is a near-duplicate of that better one.
        similarity[exact] = similarity[kept[exact]]
        kept[exact] = kept[kept[exact]]
    duplicates = np.flatnonzero(kept != np.arange(len(place)))
    _write_clusters(writer, task, place, duplicates, kept[duplicates], similarity[duplicates], exact[duplicates])
    return {"exact": int(exact.sum()), "near": len(duplicates) - int(exact.sum())}


def _read_arrow(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def _first_of_equal(high: NDArray[np.uint64], low: NDArray[np.uint64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each document, the most preferred one with the same content hash."""
    order = np.lexsort((rank, low, high))
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (high[order][1:] != high[order][:-1]) | (low[order][1:] != low[order][:-1])
    first = np.empty(len(order), dtype=np.int64)
    first[order] = order[np.flatnonzero(new)[np.cumsum(new) - 1]]
    return first


def _preference(root: Path, task: Json, place: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Rank of each document in the declared order of preference, 0 the most preferred; a total order."""
    prefer = "".join(f"({expression}) DESC NULLS LAST, " for expression in task["dedup"]["prefer"])
    documents = [(shard, path) for shard, path in enumerate(task["documents"]) if path is not None]
    signals = [(shard, path) for shard, path in enumerate(task["signals"]) if path is not None]
    with connect(task["memory_bytes"]) as db:
        scan(db, "documents", root, documents, [name for name in DOCUMENTS.names if name not in ("text", "meta")])
        scan(db, "signals", root, signals, SIGNALS.names)
        db.register("passing", pa.table({"locator": place, "position": np.arange(len(place))}))
        ranks = db.sql(
            f"""
            SELECT position, row_number() OVER (ORDER BY {prefer} list_position($sources, source), doc_id) - 1 AS rank
            FROM passing JOIN documents USING (locator) JOIN signals USING (locator)
            """,
            params={"sources": task["sources"]},
        ).fetchnumpy()
    rank = np.empty(len(place), dtype=np.int64)
    rank[ranks["position"]] = ranks["rank"]
    return rank


def _write_clusters(
    writer: ShardWriter,
    task: Json,
    place: NDArray[np.uint64],
    duplicates: NDArray[np.int64],
    kept: NDArray[np.int64],
    similarity: NDArray[np.float64],
    exact: NDArray[np.bool_],
) -> None:
    documents: Sequence[tuple[int, str]] = [(shard, path) for shard, path in enumerate(task["documents"]) if path is not None]
    pairs = pa.table(
        {
            "locator": place[duplicates],
            "kept": place[kept],
            "similarity": similarity,
            "kind": np.where(exact & (similarity == 1), "exact", "near"),
        }
    )
    with connect(task["memory_bytes"]) as db:
        scan(db, "documents", writer.root, documents, ["doc_id", "source"])
        db.register("pairs", pairs)
        clusters = db.sql(
            """
            SELECT d.doc_id, d.source, p.locator, p.kind, k.doc_id AS kept_doc_id, p.similarity
            FROM pairs p JOIN documents d ON d.locator = p.locator JOIN documents k ON k.locator = p.kept ORDER BY p.locator
            """
        ).to_arrow_table()
    writer.table("clusters", clusters)
