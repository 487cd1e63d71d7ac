"""Held-out documents: drawn by hash, taken with everything similar to them, and nothing similar is left in training.

Similarity here is exact and complete (no LSH): every surviving document is compared with all held-out ones through an index of their
shingles. A document at least ``holdout.threshold`` similar to a held-out one is held out too, as one connected component, up to
``COMPONENT`` documents each and ``ROUNDS`` steps from the drawn one; beyond that it is dropped as ``near_holdout``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curate.corpus import ROW_BITS, Corpus, column_array, id_hashes, locators
from curate.curation import Curation, source_of
from curate.dedup.overlap import OVERLAP_VERSION, ReferenceIndex
from curate.identity import draw
from curate.step import Shard, ShardWriter, Step
from curate.survivors import surviving_rows
from schemas.manifest import Entry
from schemas.tables import HOLDOUT

Json = Any
COMPONENT = 16
ROUNDS = 3

SHINGLE = 5
"""Words per shingle of the similarity, whatever near-dedup uses (it may be off)."""

MEMBERS = pa.schema([*HOLDOUT, pa.field("component", pa.uint64())])


def hold_out(c: Curation) -> None:
    """Draw held-out documents, grow them by similarity, and remember the holdout table as step ``holdout``.

    The set is frozen with the lake's first generation: what is similar to it in a later one is ``near_holdout``.
    """
    c.steps["holdout"] = c.before("holdout")
    if len(c.steps["holdout"]) == len(c.generations):
        return
    if c.steps["holdout"]:
        index = c.run(*_index_step(c))[0]
        scans = c.run(*_scan_step(c, index, 0)) if "references" in index.files else []
        c.steps["holdout"] += c.run(*_grow_step(c, index, scans, ROUNDS))
        return
    drawn = c.run(*_draw_step(c))[0]
    last = drawn
    for turn in range(ROUNDS + 1):
        if "references" not in last.files:
            break
        scans = c.run(*_scan_step(c, last, turn))
        last = c.run(*_grow_step(c, last, scans, turn))[0]
    c.steps["holdout"] = [last]


def _survivor_paths(c: Curation, shard: int) -> Json:
    return [shard, c.path("rules", "failures", shard), c.path("repeats", "repeats"), c.common("dedup", "clusters", shard)]


def _index_step(c: Curation) -> tuple[Step, list[Shard]]:
    """A step that gathers the texts of the frozen set, for a later generation to be compared with."""
    task = {"holdout": c.path("holdout", "members"), "documents": c.paths("read", "documents")}
    return Step("holdout_index", 1, {}, _index), [Shard("all", c.steps["holdout"][0].content, task)]


def _index(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["holdout"] is None:
        return {"held_out": 0}
    frozen = pq.read_table(writer.root / task["holdout"], filters=[("state", "=", "held_out")], partitioning=None)
    members = [Member(**row) for row in frozen.to_pylist()]
    counts = _write(writer, members, members, Corpus(writer.root, task["documents"]))
    del writer.files["holdout"]
    return counts


def _draw_step(c: Curation) -> tuple[Step, list[Shard]]:
    shards = [shard for shard, entry in enumerate(c.documents) if c.recipe.sources[source_of(entry)].holdout]
    settings = {"share": c.recipe.holdout.share, "max_documents": c.recipe.holdout.max_documents, "seed": c.recipe.seed}
    inputs = [shards, [entry.content for step in ("rules", "repeats", "dedup") for entry in c.steps[step]]]
    task = settings | {"survivors": [_survivor_paths(c, shard) for shard in shards], "documents": c.paths("read", "documents")}
    return Step("holdout_draw", 2, settings, _draw), [Shard("all", inputs, task)]


def _draw(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    """Of each source the documents whose hash is in the lowest share, and at least the first of them by hash, if another is left."""
    corpus = Corpus(writer.root, task["documents"])
    drawn: dict[str, list[pa.Table]] = {}
    for paths in task["survivors"] if task["share"] else ():
        rows = surviving_rows(writer.root, *paths)
        table = corpus.table(paths[0], ["doc_id", "source"]) if len(rows) else None
        if table is None:
            continue
        table = table.append_column("locator", pa.array(locators(paths[0], table.num_rows))).take(pa.array(rows))
        table = table.append_column("hash", pa.array(id_hashes(column_array(table, "doc_id"), task["seed"]))).sort_by("hash")
        inside = int(draw(table.column("hash").to_numpy(), task["share"]).sum())
        # Two more than are drawn tell whether the source has any, and another.
        drawn.setdefault(table.column("source")[0].as_py(), []).append(table.slice(0, inside + 2))
    chosen = [_chosen(pa.concat_tables(parts).sort_by("hash"), task) for parts in drawn.values()]
    members = [
        Member(row["locator"], row["doc_id"], row["source"], "held_out", row["doc_id"], 1.0, row["locator"])
        for row in (pa.concat_tables(chosen).to_pylist() if chosen else [])
    ]
    return _write(writer, members, members, corpus)


def _chosen(first: pa.Table, task: Json) -> pa.Table:
    """What a source holds out, of its first documents by hash."""
    inside = int(draw(first.column("hash").to_numpy(), task["share"]).sum())
    return first.slice(0, min(inside or int(first.num_rows > 1), task["max_documents"]))


@dataclass(frozen=True, order=True)
class Member:
    """A row of the holdout table, and the locator of the drawn document at the root of its component."""

    locator: int
    doc_id: bytes
    source: str
    state: str
    reference: bytes
    similarity: float
    component: int


def _write(writer: ShardWriter, members: Sequence[Member], new: Sequence[Member], corpus: Corpus) -> Mapping[str, int]:
    """Publish the members given, and the new held-out ones with their text, to be compared with next."""
    everyone = pa.Table.from_pylist([asdict(member) for member in sorted(members)], schema=MEMBERS)
    writer.table("holdout", everyone)
    if members:
        writer.publish("members", "parquet", lambda path: pq.write_table(everyone, path), everyone.num_rows)
    if new:
        places = np.array(sorted(member.locator for member in new), dtype=np.uint64)
        references = pa.table({"locator": places, "text": corpus.fetch(places)})
        writer.publish("references", "parquet", lambda path: pq.write_table(references, path), references.num_rows)
    return {"held_out": sum(m.state == "held_out" for m in members), "near_holdout": sum(m.state != "held_out" for m in members)}


def _scan_step(c: Curation, last: Entry, turn: int) -> tuple[Step, list[Shard]]:
    references = last.files["references"].path
    judged = [entry.content for step in ("repeats", "dedup") for entry in c.steps[step]]
    shards = [
        Shard(
            entry.label,
            [last.content, entry.content, c.steps["rules"][shard].content, judged],
            {
                "survivors": _survivor_paths(c, shard),
                "documents": c.path("read", "documents", shard),
                "references": references,
                "batch_rows": c.batch_rows,
            },
        )
        for shard, entry in enumerate(c.documents)
        if shard in c.new
    ]
    settings = {"threshold": c.recipe.holdout.threshold, "shingle": SHINGLE, "overlap": OVERLAP_VERSION}
    return Step(f"holdout_scan_{turn}", 1, settings, _scan), [replace(shard, task=shard.task | settings) for shard in shards]


def _scan(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    shard, rows = task["survivors"][0], surviving_rows(writer.root, *task["survivors"])
    if len(rows) == 0:
        return {"similar": 0}
    references = pq.read_table(writer.root / task["references"], partitioning=None)
    index = ReferenceIndex(column_array(references, "text"), task["shingle"])
    table = pq.read_table(writer.root / task["documents"], columns=["text"], memory_map=True, partitioning=None)
    texts = column_array(table, "text")
    found = []
    for first in range(0, len(rows), task["batch_rows"]):
        batch = rows[first : first + task["batch_rows"]]
        row, reference, similarity = index.similar(texts.take(pa.array(batch)), task["threshold"])
        found.append((locators(shard, table.num_rows)[batch[row]], references.column("locator").to_numpy()[reference], similarity))
    place, reference, similarity = (np.concatenate(parts) for parts in zip(*found, strict=True))
    different = place != reference
    similar = pa.table({"locator": place[different], "reference": reference[different], "similarity": similarity[different]})
    if similar.num_rows:
        writer.publish("similar", "parquet", lambda path: pq.write_table(similar, path), similar.num_rows)
    return {"similar": similar.num_rows}


def _grow_step(c: Curation, last: Entry, scans: Sequence[Entry], turn: int) -> tuple[Step, list[Shard]]:
    task = {
        "members": last.files["members"].path if "members" in last.files else None,
        "frozen": bool(c.before("holdout")),
        "similar": [entry.files["similar"].path for entry in scans if "similar" in entry.files],
        "documents": c.paths("read", "documents"),
        "may_grow": turn < ROUNDS,
    }
    return Step(f"holdout_grow_{turn}", 1, {"component": COMPONENT}, _grow), [
        Shard("all", [last.content, [e.content for e in scans], task["frozen"]], task)
    ]


def _grow(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    corpus = Corpus(writer.root, task["documents"])
    known = [] if task["members"] is None else pq.read_table(writer.root / task["members"], partitioning=None).to_pylist()
    members = {row["locator"]: Member(**row) for row in known}
    before = set(members) if task["frozen"] else set()
    sizes = Counter(member.component for member in members.values())
    pairs = [pair for path in task["similar"] for pair in pq.read_table(writer.root / path, partitioning=None).to_pylist()]
    new = []
    for pair in sorted(pairs, key=lambda pair: (pair["locator"], -pair["similarity"], pair["reference"])):
        if pair["locator"] in members:
            continue
        near = members[pair["reference"]]
        grows = task["may_grow"] and sizes[near.component] < COMPONENT
        doc_id, source = _identity(corpus, pair["locator"])
        state = "held_out" if grows else "near_holdout"
        member = Member(pair["locator"], doc_id, source, state, near.doc_id, pair["similarity"], near.component)
        members[member.locator] = member
        sizes[near.component] += 1
        if grows:
            new.append(member)
    return _write(writer, [member for place, member in members.items() if place not in before], new, corpus)


def _identity(corpus: Corpus, place: int) -> tuple[bytes, str]:
    shard, row = divmod(place, 1 << ROW_BITS)
    table = corpus.table(shard, ["doc_id", "source"])
    if table is None:
        raise ValueError(f"locator {place} is in an empty documents shard")
    return table.column("doc_id")[row].as_py(), table.column("source")[row].as_py()
