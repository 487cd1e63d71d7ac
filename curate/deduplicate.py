"""Deduplication of a lake: sign the documents that pass the rules, then choose over all shards which of them stay."""

from __future__ import annotations

import itertools
import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.corpus import Corpus, column_array, locators, rows_of, shards_of
from curate.curation import Curation, file_of
from curate.dedup.exact import EXACT_VERSION, content_hash
from curate.dedup.near import NEAR_VERSION, NearDuplicates, find_near_duplicates
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
    }
    shards = [Shard(f"{number:05d}", [inputs, [entry.content for entry in before]], task) for number in range(len(c.generations))]
    return Step(
        "dedup", 2, {"dedup": settings, "sources": list(c.recipe.sources), "near": NEAR_VERSION, "urls": URLS_VERSION}, _deduplicate
    ), shards


def _deduplicate(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if not task["signatures"]:
        return {"url": 0, "exact": 0, "near": 0}
    tables = [_undropped(writer.root, task["earlier"], shard, path) for shard, path in task["signatures"]]
    place, high, low = (np.concatenate([table.column(name).to_numpy() for table in tables]) for name in ("locator", "hash_0", "hash_1"))
    old = shards_of(place) < (task["earlier"][0] or [0])[-1]
    rank = _preference(writer.root, task, place)
    rank[~old] += len(rank)
    everyone = np.arange(len(place))
    kept = _first_of_equal(*_url_hashes(writer.root, task, tables), rank) if task["dedup"]["urls"] else everyone.copy()
    url = kept != everyone
    similarity = np.where(url, np.nan, 1.0)
    if task["dedup"]["exact"]:
        alive = np.flatnonzero(~url)
        kept[alive] = alive[_first_of_equal(high[alive], low[alive], rank[alive])]
    exact = (kept != everyone) & ~url
    if task["dedup"]["near"] is not None:
        alive = np.flatnonzero(~exact & ~url)
        found = _near(writer.root, task, tables, place, rank, ~exact & ~url, old)
        kept[alive[found.document]] = alive[found.kept]
        similarity[alive[found.document]] = found.similarity
        # A copy of a document that a better one replaces is a near-duplicate of that better one.
        similarity[exact] = similarity[kept[exact]]
        kept[exact] = kept[kept[exact]]
    kept[url] = kept[kept[url]]
    duplicates = np.flatnonzero(kept != everyone)
    kinds = np.where(url, "url", np.where(exact & (similarity == 1), "exact", "near"))
    _write_clusters(writer, task, place, duplicates, kept[duplicates], similarity[duplicates], kinds[duplicates])
    return {"url": int(url.sum()), "exact": int(exact.sum()), "near": len(duplicates) - int(exact.sum()) - int(url.sum())}


def _url_hashes(root: Path, task: Json, tables: Sequence[pa.Table]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """128-bit hashes of the normal forms of the documents' addresses; where there is none, numbers that no other has."""
    corpus, parts = Corpus(root, task["documents"]), [np.empty((0, 2), np.uint64)]
    for table, (shard, _) in zip(tables, task["signatures"], strict=True):
        documents = corpus.table(shard, ["url"])
        assert documents is not None  # signed documents exist
        urls = normal_urls(column_array(documents, "url").take(pa.array(rows_of(table.column("locator").to_numpy()))))
        hashes = content_hash(urls.fill_null(""))
        missing = urls.is_null().to_numpy(zero_copy_only=False)
        hashes[missing, 0], hashes[missing, 1] = table.column("locator").to_numpy()[missing], np.uint64(2**64 - 1)
        parts.append(hashes)
    joined = np.concatenate(parts)
    return np.ascontiguousarray(joined[:, 0]), np.ascontiguousarray(joined[:, 1])


def _near(
    root: Path,
    task: Json,
    tables: Sequence[pa.Table],
    place: NDArray[np.uint64],
    rank: NDArray[np.int64],
    alive: NDArray[np.bool_],
    old: NDArray[np.bool_],
) -> NearDuplicates:
    """Near-duplicates among the documents that are still alive; their signatures are mapped from scratch files, not held."""
    near = NearDedup(**task["dedup"]["near"])
    settings, corpus, chosen = sketch_settings(near), Corpus(root, task["documents"]), np.flatnonzero(alive)
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        spill = SignatureSpill(Path(folder), settings)
        first = 0
        for table in tables:
            spill.append(from_table(table.filter(pa.array(alive[first : first + table.num_rows])), settings))
            first += table.num_rows
        return find_near_duplicates(
            spill.finish(),
            rank[chosen],
            lambda indices: corpus.fetch(place[chosen[indices]]),
            settings,
            threshold=near.threshold,
            policy=near.policy,
            locked=int(old[chosen].sum()),
            memory_limit=task["memory_bytes"],
            threads=os.cpu_count() or 1,
        )


def _undropped(root: Path, earlier: Json, shard: int, path: str) -> pa.Table:
    """A shard's signatures, of an earlier generation those of the documents that no kept one replaced."""
    with pa.memory_map(str(root / path)) as source:
        table = pa.ipc.open_file(source).read_all()
    ends, clusters = earlier
    generation = bisect_right(ends, shard)
    if generation == len(ends):
        return table
    gone = rows_in(root, clusters[generation], shard)
    return table.filter(pa.array(~np.isin(rows_of(table.column("locator").to_numpy()), gone)))


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
    with connect(task["memory_bytes"]) as db:
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
        db.register("passing", pa.table({"locator": place, "position": np.arange(len(place))}))
        ranks = db.sql(
            f"""
            SELECT position, row_number() OVER (ORDER BY {prefer} list_position($sources, source), doc_id) - 1 AS rank
            FROM passing JOIN documents USING (locator) JOIN signals USING (locator){own}
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
    kinds: NDArray[np.str_],
) -> None:
    pairs = pa.table(
        {
            "locator": place[duplicates],
            "kept": place[kept],
            "similarity": pa.array(similarity, mask=np.isnan(similarity)),
            "kind": kinds.tolist(),
        }
    )
    with connect(task["memory_bytes"]) as db:
        scan(db, "documents", writer.root, present(task["documents"]), ["doc_id", "source"])
        db.register("pairs", pairs)
        clusters = db.sql(
            """
            SELECT d.doc_id, d.source, p.locator, p.kind, k.doc_id AS kept_doc_id, p.similarity
            FROM pairs p JOIN documents d ON d.locator = p.locator JOIN documents k ON k.locator = p.kept ORDER BY p.locator
            """
        ).to_arrow_table()
    writer.table("clusters", clusters)
