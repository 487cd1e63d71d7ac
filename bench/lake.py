"""Questions to a lake of 10 million documents: made by hand in the declared schemas, asked through the command line, one process each.

python bench/lake.py build FOLDER [DOCUMENTS]       tables of 20 sources, an index by the product's step, one epoch's ledger and losses
python bench/lake.py ask FOLDER                     seconds and peak memory of each command
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.curation import Curation
from curate.doc_index import index_step
from curate.engine import LocalExecutor
from curate.step import ShardWriter, Silent
from schemas.manifest import Entry, Snapshot, read_snapshot, write_snapshot
from schemas.recipe import Recipe
from schemas.segments import Allotment, Segment, SourceShare, Stream, write_segments
from schemas.store import Published
from schemas.tables import DOC_ID, TABLES
from train.order import Order

SOURCES, SHARD, ROW_LENGTH, DOCUMENTS_A_ROW, ROWS_A_SHARD, BATCH, STEPS_A_PART = 20, 40_000, 2048, 8, 4096, 512, 200
WORDS = ("the", "lake", "holds", "a", "made", "text", "of", "few", "words", "each")


def ids(shard: int) -> pa.Array:
    """doc_ids of a shard's documents."""
    return pa.FixedSizeBinaryArray.from_buffers(DOC_ID, SHARD, [None, pa.py_buffer(np.random.default_rng(shard).bytes(16 * SHARD))])


@cache
def same_everywhere() -> dict[str, pa.Array]:
    """What the documents of every shard have in common: texts, sizes, fates."""
    draw = np.random.default_rng(0)
    words, fate = draw.integers(4, 12, SHARD), draw.integers(0, 10, SHARD)
    near, short = fate == 0, fate == 1
    texts = [" ".join(WORDS[(n + k) % 10] for k in range(count)) for n, count in enumerate(words.tolist())]
    reasons = [(None, "near_duplicate", "too_short")[code] for code in (near + 2 * short).tolist()]
    failed = [[{"rule": "too_short", "value": 5.0, "threshold": 8.0}] if bad else [] for bad in short.tolist()]
    return {
        "texts": pa.array(texts, pa.large_string()),
        "bytes": pa.array([len(text) for text in texts]),
        "words": pa.array(words),
        "kept": pa.array(np.flatnonzero(~(near | short))),
        "near": pa.array(np.flatnonzero(near)),
        "state": pa.array(np.where(near | short, "dropped", "kept").tolist()),
        "reason": pa.array(reasons, pa.string()),
        "failures": pa.array(failed, TABLES["verdicts"].field("failures").type),
        "similarity": pa.array([0.9 if n else None for n in near.tolist()], pa.float64()),
    }


def table(name: str, rows: int, columns: dict[str, Any]) -> pa.Table:
    """A table of the declared schema; columns not given are 0, empty or null."""
    made = []
    for field in TABLES[name]:
        if field.name in columns:
            value = columns[field.name]
            made.append((value if isinstance(value, pa.Array) else pa.array(value)).cast(field.type))
        elif field.nullable:
            made.append(pa.nulls(rows, field.type))
        else:
            zero = "" if pa.types.is_string(field.type) else 0
            made.append(pa.array([[]] * rows, field.type) if pa.types.is_list(field.type) else pa.repeat(pa.scalar(zero, field.type), rows))
    return pa.table(made, schema=TABLES[name])


def entry(root: Path, step: str, label: str, counts: dict[str, int], **tables: pa.Table) -> Entry:
    """Publish tables as an entry of a step."""
    writer = ShardWriter(root, step, hashlib.blake2b(f"{step}/{label}".encode(), digest_size=16).hexdigest(), label)
    for name, rows in tables.items():
        writer.table(name, rows)
    return Entry(writer.key, step, label, writer.files, counts)


def documents_shard(root: Path, source: str, shard: int, steps: dict[str, list[Entry]]) -> pa.Table:
    """Documents, signals, verdicts and clusters of a shard; returns doc_id and locator of what is kept."""
    same, doc_ids, places = same_everywhere(), ids(shard), pa.array((shard << 32) + np.arange(SHARD), pa.uint64())
    near, kept = same["near"], same["kept"]
    instead = doc_ids[kept[0].as_py()]
    common = {"doc_id": doc_ids, "source": pa.repeat(source, SHARD), "locator": places, "bytes": same["bytes"]}
    verdict = common | {name: same[name] for name in ("state", "reason", "failures", "similarity")}
    verdict["kept_doc_id"] = pc.if_else(pc.is_valid(same["similarity"]), instead, pa.scalar(None, DOC_ID))
    cluster = {name: common[name].take(near) for name in ("doc_id", "source", "locator")}
    cluster |= {"kind": pa.repeat("near", len(near)), "kept_doc_id": pa.array([instead] * len(near), DOC_ID)}
    cluster |= {"similarity": pa.repeat(0.9, len(near))}
    label, read = f"{source}/{shard:05d}", {"path": pa.repeat(f"{source}.jsonl", SHARD), "record": np.arange(SHARD), "text": same["texts"]}
    counted = {"doc_id": doc_ids, "n_bytes": same["bytes"], "n_words": same["words"], "n_characters": same["bytes"]}
    signals = table("signals", SHARD, {name: value for name, value in counted.items() if name in TABLES["signals"].names})
    steps["read"].append(entry(root, "read", label, {}, documents=table("documents", SHARD, common | read)))
    steps["signals"].append(entry(root, "signals", label, {}, signals=signals))
    steps["verdicts"].append(entry(root, "verdicts", label, {}, verdicts=table("verdicts", SHARD, verdict)))
    steps["clusters"].append(entry(root, "clusters", label, {}, clusters=table("clusters", len(near), cluster)))
    size = pc.sum(same["bytes"]).as_py()
    counts = {"records_in": SHARD, "dropped": SHARD - len(kept), "kept": len(kept), "bytes_in": size}
    conserved = table("conservation", 1, {"source": [source], **{name: [value] for name, value in counts.items()}})
    steps["conservation"].append(entry(root, "conservation", label, {}, conservation=conserved))
    return pa.table({"doc_id": doc_ids.take(kept), "locator": places.take(kept)})


def packed_source(root: Path, source: str, kept: pa.Table, steps: dict[str, list[Entry]]) -> None:
    """Layout, rows and lot of a source: eight documents to a row."""
    lot, span = f"{source}-train-x1-b0-l{ROW_LENGTH}-00000000", ROWS_A_SHARD * DOCUMENTS_A_ROW
    whole = kept.num_rows // DOCUMENTS_A_ROW * DOCUMENTS_A_ROW
    writer = ShardWriter(root, "layout", hashlib.blake2b(source.encode(), digest_size=16).hexdigest(), f"{source}/00000")

    def groups(path: Path) -> None:
        with pq.ParquetWriter(path, kept.schema, compression="zstd") as out:
            for first in range(0, whole, span):
                out.write_table(kept.slice(first, min(span, whole - first)), row_group_size=span)

    writer.publish("layout", "parquet", groups, whole)
    steps["layout"].append(Entry(writer.key, "layout", writer.label, writer.files, {}))
    for number, first in enumerate(range(0, whole, span)):
        count = min(span, whole - first)
        at = np.arange(first, first + count)
        length = ROW_LENGTH // DOCUMENTS_A_ROW
        columns = {"lot": [lot] * count, "row": at // DOCUMENTS_A_ROW, "doc_id": kept.column("doc_id").slice(first, count).combine_chunks()}
        columns |= {"start": at % DOCUMENTS_A_ROW * length, "tokens": np.full(count, length)}
        made = entry(root, "pack", f"{lot}/{number:05d}", {"generation": 0}, rows=table("rows", count, columns))
        made.files["shards"] = Published(f"shards/{lot}/{number}", 0, "", count // DOCUMENTS_A_ROW)  # type: ignore[index]
        steps["pack"].append(made)
    rows = whole // DOCUMENTS_A_ROW
    facts = {"lot": lot, "source": source, "split": "train", "repeats": 1, "row_length": ROW_LENGTH, "rows": rows, "documents": whole}
    facts |= {"tokens": rows * ROW_LENGTH, "pieces": whole}
    steps["lots"].append(entry(root, "lots", source, {}, lots=table("lots", 1, {name: [value] for name, value in facts.items()})))


def train(root: Path, steps: dict[str, list[Entry]], kept: dict[str, pa.Array]) -> None:
    """One epoch over all rows, as if it had been trained."""
    shard_rows: dict[str, list[int]] = {}
    for made in steps["pack"]:
        shard_rows.setdefault(made.label.partition("/")[0], []).append(made.files["shards"].rows)
    totals = {lot: sum(rows) for lot, rows in shard_rows.items()}
    shares = tuple(SourceShare(lot.partition("-")[0], 1, (Stream(1, (Allotment(lot, 0, n),)),)) for lot, n in totals.items())
    segment = Segment("all", 0, min(totals.values()) * len(totals) // BATCH * BATCH, 0, BATCH, 0, 4, shares)
    write_segments(root, "runs/big/segments.json", [segment])
    order, folder = Order([segment], shard_rows), root / "runs/big/0-all"
    for name in ("ledger", "losses", "events"):
        (folder / name).mkdir(parents=True)
    first_event = table("events", 1, {"kind": ["started"], "detail": ["{}"]})
    pq.write_table(first_event, folder / "events/a0000-s00000000-00000000.parquet")
    for first in range(0, segment.steps, STEPS_A_PART):
        end = min(first + STEPS_A_PART, segment.steps)
        index = np.arange(first * BATCH, end * BATCH)
        rows = order.rows(index)
        lot = pa.array(order.lots).take(pa.array(rows.lot))
        used = {"step": index // BATCH, "index": index, "source": pa.array(order.sources).take(pa.array(rows.source)), "lot": lot}
        used |= {"row": rows.row, "use": rows.use}
        part = f"a0000-s{first:08d}-{end:08d}.parquet"
        pq.write_table(table("ledger", len(index), used), folder / "ledger" / part, compression="zstd")
        which = np.repeat(np.arange(len(index)), DOCUMENTS_A_ROW)
        document = rows.row[which] * DOCUMENTS_A_ROW + np.tile(np.arange(DOCUMENTS_A_ROW), len(index))
        found = np.empty((len(which), 16), dtype=np.uint8)
        for number, name in enumerate(order.lots):
            mine = rows.lot[which] == number
            raw = np.frombuffer(kept[name].buffers()[1], dtype=np.uint8).reshape(-1, 16)
            found[mine] = raw[document[mine]]
        doc_ids = pa.FixedSizeBinaryArray.from_buffers(DOC_ID, len(which), [None, pa.py_buffer(found.tobytes())])
        columns = {"step": (index // BATCH)[which], "lot": lot.take(pa.array(which)), "row": rows.row[which], "doc_id": doc_ids}
        columns |= {"tokens": np.full(len(which), 255), "loss": np.random.default_rng(first).normal(800, 50, len(which))}
        pq.write_table(table("losses", len(which), columns), folder / "losses" / part, compression="zstd")


def build(root: Path, documents: int) -> None:
    steps: dict[str, list[Entry]] = {
        name: [] for name in ("read", "signals", "clusters", "verdicts", "conservation", "layout", "pack", "lots")
    }
    each, kept = max(1, documents // (SOURCES * SHARD)), {}
    for number in range(SOURCES):
        source = f"s{number:02d}"
        parts = [documents_shard(root, source, number * each + shard, steps) for shard in range(each)]
        together = pa.concat_tables(parts).combine_chunks()
        kept[f"{source}-train-x1-b0-l{ROW_LENGTH}-00000000"] = together.column("doc_id").chunk(0)
        packed_source(root, source, together, steps)
        print(f"{source}: {each * SHARD:,} documents", flush=True)
    recipe = Recipe.model_validate({"name": "big", "sources": {"s00": {"reader": "jsonl", "paths": ["x"]}}})
    c = Curation(root, recipe, LocalExecutor(1), Silent(), steps={"read": steps["read"]}, memory_bytes=1 << 30)
    started = time.perf_counter()
    steps["doc_index"] = c.run(*index_step(c))
    print(f"index {time.perf_counter() - started:.1f} s")
    train(root, steps, kept)
    write_snapshot(root, Snapshot("made", steps))


def ask(root: Path) -> None:
    snapshot = read_snapshot(root)
    read = pq.read_table(root / snapshot.steps["pack"][7].files["rows"].path, columns=["doc_id"]).column(0)
    docs = [read[number].as_py().hex() for number in (5, 5000, 20000)]
    loss = "SELECT source, count(*), avg(loss) FROM loss_by_source('all') GROUP BY ALL ORDER BY ALL"
    lengths = "SELECT source, count(*), avg(bytes), quantile_cont(bytes, .5) FROM verdicts GROUP BY ALL ORDER BY ALL"
    commands = [
        ("the first question after a change (builds the catalogue)", ["sql", "SELECT 1"]),
        *((f"why {doc[:12]}", ["why", doc[:12]]) for doc in docs),
        ("steps 100..107, 20 documents", ["steps", "100..107"]),
        ("steps 100..107, all documents, JSON", ["steps", "100..107", "--limit", "0", "--json"]),
        ("stats", ["stats"]),
        ("sql: funnel", ["sql", "FROM funnel()"]),
        ("sql: lengths by source", ["sql", lengths]),
        ("sql: epochs_by_source", ["sql", "FROM epochs_by_source()"]),
        ("sql: loss by source of all steps", ["sql", loss]),
    ]
    for title, command in commands:
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "pipelines.cli", *command, "--lake", str(root)], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        print(
            f"{title:60} {wall:6.2f} s  {usage.ru_utime + usage.ru_stime:6.2f} s of CPU  {usage.ru_maxrss / 1024:6.0f} MiB  rc {status}",
            flush=True,
        )


if __name__ == "__main__":
    folder = Path(sys.argv[2]).absolute()
    build(folder, int(sys.argv[3]) if len(sys.argv) > 3 else 10_000_000) if sys.argv[1] == "build" else ask(folder)
