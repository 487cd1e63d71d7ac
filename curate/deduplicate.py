"""Deduplication of a lake: sign the documents that pass the rules, then choose over all shards which of them stay."""

from __future__ import annotations

import itertools
import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.corpus import Corpus, column_array, locators, rows_of
from curate.curation import Curation, file_of
from curate.dedup.exact import EXACT_VERSION, content_hash
from curate.dedup.near import NEAR_VERSION, find_near_duplicates
from curate.dedup.scratch import CHUNK, Scratch
from curate.dedup.signature_files import SignatureSpill, from_table, to_table
from curate.dedup.sketch import SIGNATURE_VERSION, Signatures, SketchSettings, sign
from curate.dedup.urls import URLS_VERSION, normal_urls
from curate.families.step import named_families
from curate.rules import validate_expression
from curate.scores.columns import step_name
from curate.sql import connect, present, scan
from curate.step import Shard, ShardWriter, Step
from curate.survivors import passing_rows, rows_in
from schemas.curation import Dedup, NearDedup
from schemas.families import FAMILIES
from schemas.signals import SIGNALS
from schemas.tables import DOCUMENTS

Json = Any
_OF_DOCUMENTS = ("bytes", "date", "license", "url", "record", "path")
PREFERENCE = pa.schema([*SIGNALS, *itertools.chain(*FAMILIES.values()), *map(DOCUMENTS.field, _OF_DOCUMENTS)])
"""Columns that expressions of ``dedup.prefer`` may name."""


def sketch_settings(near: NearDedup) -> SketchSettings:
    """The recipe's sketch."""
    return SketchSettings(kind=near.kind, k=near.permutations, bands=near.bands, rows=near.rows, shingle=near.shingle)


def sign_step(c: Curation) -> tuple[Step, list[Shard]]:
    """A step that signs the passing documents of each shard: content hash, band keys, sketch."""
    near = c.recipe.dedup.near
    settings = {"sketch": None if near is None else asdict(sketch_settings(near)), "signature": SIGNATURE_VERSION, "exact": EXACT_VERSION}
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
    places = pa.array(locators(task["passing"][0], len(texts))[rows])
    table = pa.table({"locator": places})
    if settings is not None:
        table = to_table(Signatures.concatenate(parts)).append_column("locator", places)
    for half in (0, 1):
        table = table.append_column(f"hash_{half}", pa.array(np.ascontiguousarray(content[:, half])))
    writer.arrow("signatures", table)
    return {"documents": len(rows)}


def check_preference(dedup: Dedup, own: Iterable[str] = ()) -> None:
    """Accept expressions of ``dedup.prefer`` that are each one allowed expression; ``own`` names the user's own signals.

    Raises:
        RecipeError: one that is anything else; says which.
    """
    columns = pa.schema([*PREFERENCE, *(pa.field(name, pa.float64()) for name in own)])
    for position, expression in enumerate(dedup.prefer):
        validate_expression(expression, columns, where=f"dedup.prefer[{position}]")


def deduplicate_step(c: Curation) -> tuple[Step, list[Shard]]:
    """A step, one shard a generation, that names for each duplicate among its documents the kept document it duplicates."""
    dedup = c.recipe.dedup
    settings = dedup.model_dump(mode="json", exclude={"check"})
    before = c.before("dedup")
    families = sorted(named_families(dedup.prefer))
    steps = ("read", "signals", *families, *map(step_name, c.recipe.signals), "sign")
    inputs = [[entry.content for entry in c.steps[step]] for step in steps]
    task = {
        "dedup": settings,
        "documents": c.paths("read", "documents"),
        "signals": c.paths("signals", "signals"),
        "families": {family: c.paths(family, family) for family in families},
        "scores": {name: c.paths(step_name(name), "scores") for name in c.recipe.signals},
        "sources": list(c.recipe.sources),
        "signatures": present(c.paths("sign", "signatures")),
        "earlier": [c.generations[: len(before)], [file_of(entry, "clusters") for entry in before]],
        "memory_bytes": c.memory_bytes,
        "threads": c.executor.workers,
    }
    shards = [Shard(f"{number:05d}", [inputs, [entry.content for entry in before]], task) for number in range(len(c.generations))]
    return Step(
        "dedup", 2, {"dedup": settings, "sources": list(c.recipe.sources), "near": NEAR_VERSION, "urls": URLS_VERSION}, _deduplicate
    ), shards


def _deduplicate(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    """Choose over all signed documents; what is held for each of them lies in scratch arrays, so that memory stays within the limit."""
    if not task["signatures"]:
        return {"url": 0, "exact": 0, "near": 0}
    lake = _Signed(writer.root, task)
    scratch = Scratch(lake.size, task["memory_bytes"] // 4)
    place, high, low = (scratch.array(np.uint64) for _ in range(3))
    for span, table in lake.tables(["locator", "hash_0", "hash_1"]):
        for array, name in ((place, "locator"), (high, "hash_0"), (low, "hash_1")):
            array[span] = table.column(name).to_numpy()
    rank = _preference(lake, scratch, place)
    kept, kind, alive = scratch.array(np.int64), scratch.array(np.int8), scratch.array(np.bool_, 1)
    for span in scratch.chunks():
        kept[span] = np.arange(span.start, span.stop)
    if task["dedup"]["urls"]:
        scratch.first_of_equal(*_url_hashes(lake, scratch), rank, alive, kept)
        _retire(scratch, kept, alive, kind, _URL)
    if task["dedup"]["exact"]:
        scratch.first_of_equal(high, low, rank, alive, kept)
        _retire(scratch, kept, alive, kind, _EXACT)
    similarity = scratch.array(np.float64, 1)
    if task["dedup"]["near"] is not None:
        _near(lake, scratch, place, rank, alive, kept, similarity)
    # A copy of a document that a better one replaces is a near-duplicate of that better one.
    for copies in (_EXACT, _URL):
        for rows in scratch.where(lambda span: kind[span] == copies):  # noqa: B023 (called at once)
            similarity[rows] = similarity[kept[rows]]
            kept[rows] = kept[kept[rows]]
    return _write_clusters(writer, task, scratch, place, kept, similarity, kind)


_URL, _EXACT = 1, 2
"""Kinds of copies that are told by a hash; 0 is everything else."""


def _retire(scratch: Scratch, kept: NDArray[np.int64], alive: NDArray[np.bool_], kind: NDArray[np.int8], copies: int) -> None:
    """Take documents that another one is kept for out of what follows."""
    for span in scratch.chunks():
        gone = alive[span] & (kept[span] != np.arange(span.start, span.stop))
        kind[span][gone] = copies
        alive[span][gone] = False


class _Signed:
    """The signed documents of a lake, shard by shard; of an earlier generation those that no kept one replaced.

    Attributes:
        root: the lake.
        task: the step's task.
        size: documents.
        old: documents of earlier generations, which come first.
    """

    def __init__(self, root: Path, task: Json) -> None:
        self.root, self.task = root, task
        ends = task["earlier"][0] or [0]
        counts = [(shard, table.num_rows) for (shard, _), (_, table) in zip(task["signatures"], self.tables(["locator"]), strict=True)]
        self.size = sum(count for _, count in counts)
        self.old = sum(count for shard, count in counts if shard < ends[-1])

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[tuple[slice, pa.Table]]:
        """Signatures of each shard, and which documents they are."""
        first = 0
        for shard, path in self.task["signatures"]:
            table = _undropped(self.root, self.task["earlier"], shard, path, columns)
            yield slice(first, first + table.num_rows), table
            first += table.num_rows


def _url_hashes(lake: _Signed, scratch: Scratch) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """128-bit hashes of the normal forms of the documents' addresses; where there is none, numbers that no other has."""
    corpus = Corpus(lake.root, lake.task["documents"])
    high, low = scratch.array(np.uint64), scratch.array(np.uint64)
    for (span, table), (shard, _) in zip(lake.tables(["locator"]), lake.task["signatures"], strict=True):
        documents = corpus.table(shard, ["url"])
        assert documents is not None  # signed documents exist
        places = table.column("locator").to_numpy()
        urls = normal_urls(column_array(documents, "url").take(pa.array(rows_of(places))))
        hashes = content_hash(urls.fill_null(""))
        missing = urls.is_null().to_numpy(zero_copy_only=False)
        hashes[missing, 0], hashes[missing, 1] = places[missing], np.uint64(2**64 - 1)
        high[span], low[span] = hashes[:, 0], hashes[:, 1]
    return high, low


def _near(
    lake: _Signed,
    scratch: Scratch,
    place: NDArray[np.uint64],
    rank: NDArray[np.int64],
    alive: NDArray[np.bool_],
    kept: NDArray[np.int64],
    similarity: NDArray[np.float64],
) -> None:
    """Write what near-duplicates among the living documents are kept for; their signatures are mapped from scratch files, not held."""
    task = lake.task
    near = NearDedup(**task["dedup"]["near"])
    threads = task["threads"] or os.cpu_count() or 1
    settings, corpus = sketch_settings(near), Corpus(lake.root, task["documents"], threads)
    chosen, preference, count = scratch.array(np.int64), scratch.array(np.int64), 0
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        spill = SignatureSpill(Path(folder), settings)
        for span, table in lake.tables():
            spill.append(from_table(table.filter(pa.array(alive[span])), settings))
        for rows in scratch.where(lambda span: alive[span]):
            chosen[count : count + len(rows)], preference[count : count + len(rows)] = rows, rank[rows]
            count += len(rows)
        found = find_near_duplicates(
            spill.finish(),
            preference[:count],
            lambda indices: corpus.fetch(place[chosen[indices]]),
            settings,
            threshold=near.threshold,
            policy=near.policy,
            locked=int(np.count_nonzero(alive[: lake.old])),
            memory_limit=task["memory_bytes"] // 2,
            threads=threads,
        )
    for first in range(0, len(found.document), CHUNK):
        part = slice(first, first + CHUNK)
        rows = chosen[found.document[part]]
        kept[rows], similarity[rows] = chosen[found.kept[part]], found.similarity[part]


def _undropped(root: Path, earlier: Json, shard: int, path: str, columns: Sequence[str] | None) -> pa.Table:
    """A shard's signatures, of an earlier generation those of the documents that no kept one replaced."""
    with pa.memory_map(str(root / path)) as source:
        table = pa.ipc.open_file(source).read_all()
    table = table if columns is None else table.select(columns)
    ends, clusters = earlier
    generation = bisect_right(ends, shard)
    if generation == len(ends):
        return table
    gone = rows_in(root, clusters[generation], shard)
    return table.filter(pa.array(~np.isin(rows_of(table.column("locator").to_numpy()), gone)))


def _preference(lake: _Signed, scratch: Scratch, place: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Rank of each document in the declared order of preference, 0 the most preferred; a total order, earlier generations first."""
    task, root = lake.task, lake.root
    prefer = "".join(f"({expression}) DESC NULLS LAST, " for expression in task["dedup"]["prefer"])
    rank = scratch.array(np.int64)
    with connect(task["memory_bytes"] // 2) as db:
        scan(db, "documents", root, present(task["documents"]), [name for name in DOCUMENTS.names if name not in ("text", "meta")])
        scan(db, "signals", root, present(task["signals"]), SIGNALS.names)
        own = ""
        for family, paths in task["families"].items():
            scan(db, family, root, present(paths), FAMILIES[family].names)
            own += f" JOIN {family} USING (locator)"
        for name, paths in task["scores"].items():
            if present(paths):
                scan(db, f"score_{name}", root, present(paths), [f"value AS {name}"])
            else:
                db.register(f"score_{name}", pa.table({"locator": pa.array([], pa.uint64()), name: pa.array([], pa.float64())}))
            own += f" LEFT JOIN score_{name} USING (locator)"
        spans = (pa.record_batch([place[span], np.arange(span.start, span.stop)], ["locator", "position"]) for span in scratch.chunks())
        schema = pa.schema([("locator", pa.uint64()), ("position", pa.int64())])
        db.register("passing", pa.RecordBatchReader.from_batches(schema, spans))
        ordered: Any = db.sql(
            f"""
            SELECT position FROM passing JOIN documents USING (locator) JOIN signals USING (locator){own}
            ORDER BY {prefer} list_position($sources, source), doc_id
            """,
            params={"sources": task["sources"]},
        ).to_arrow_reader(CHUNK)
        done = 0
        for batch in ordered:
            rank[batch.column(0).to_numpy()] = np.arange(done, done + batch.num_rows)
            done += batch.num_rows
    for span in scratch.chunks():
        if span.stop > lake.old:
            rank[max(span.start, lake.old) : span.stop] += len(place)
    return rank


def _write_clusters(
    writer: ShardWriter,
    task: Json,
    scratch: Scratch,
    place: NDArray[np.uint64],
    kept: NDArray[np.int64],
    similarity: NDArray[np.float64],
    kind: NDArray[np.int8],
) -> Mapping[str, int]:
    """Publish what is a duplicate of what, a row group at a time; returns how many there are of each kind."""
    counts = {"url": 0, "exact": 0, "near": 0}
    schema = pa.schema([("locator", pa.uint64()), ("kept", pa.uint64()), ("similarity", pa.float64()), ("kind", pa.int8())])

    def pairs() -> Iterator[pa.RecordBatch]:
        for span in scratch.chunks():
            rows = np.flatnonzero(kept[span] != np.arange(span.start, span.stop)) + span.start
            for name, number in (("url", _URL), ("exact", _EXACT), ("near", 0)):
                counts[name] += int(np.count_nonzero(kind[rows] == number))
            told = np.where((kind[rows] == _EXACT) & (similarity[rows] != 1), 0, kind[rows]).astype(np.int8)
            alike = pa.array(similarity[rows], mask=kind[rows] == _URL)
            yield pa.record_batch([pa.array(place[rows]), pa.array(place[kept[rows]]), alike, pa.array(told)], schema=schema)

    with connect(task["memory_bytes"] // 2) as db:
        scan(db, "documents", writer.root, present(task["documents"]), ["doc_id", "source"])
        db.register("pairs", pa.RecordBatchReader.from_batches(schema, pairs()))
        clusters: Any = db.sql(
            f"""
            SELECT d.doc_id, d.source, p.locator, CASE kind WHEN {_URL} THEN 'url' WHEN {_EXACT} THEN 'exact' ELSE 'near' END AS kind,
                k.doc_id AS kept_doc_id, p.similarity
            FROM pairs p JOIN documents d ON d.locator = p.locator JOIN documents k ON k.locator = p.kept ORDER BY p.locator
            """
        ).to_arrow_reader(1 << 16)
        writer.batches("clusters", clusters)
    return counts
