"""A small lake as the steps before tokenising leave it: documents, signals and verdicts, published like theirs."""

import hashlib
import random

import pyarrow as pa

from curate.corpus import locators
from curate.engine import LocalExecutor
from curate.step import Shard, Silent, Step, run_step
from schemas.manifest import Snapshot
from schemas.recipe import Recipe
from schemas.signals import SIGNALS
from schemas.tables import DOCUMENTS, VERDICTS


def doc_id(source, number):
    return hashlib.blake2b(f"{source}/{number}".encode(), digest_size=16).digest()


def publish_shard(writer, task):
    """Publish the tables of a shard: documents, signals and verdicts of (number, text, state, lines)."""
    source, shard, documents = task["source"], task["shard"], task["documents"]
    if not documents:
        return {}
    ids = [doc_id(source, number) for number, *_ in documents]
    sizes = [len(text.encode()) for _, text, *_ in documents]
    places = locators(shard, len(documents)).tolist()
    rows = []
    for (number, text, state, lines), key, size, place in zip(documents, ids, sizes, places):
        common = {"doc_id": key, "source": source, "bytes": size, "text_version": 0}
        rows.append(
            {
                "documents": common | {"path": "a", "record": number, "text": text},
                "signals": dict.fromkeys(SIGNALS.names, 0) | {"doc_id": key, "n_bytes": size, "n_full_lines": lines},
                "verdicts": common | {"locator": place, "state": state, "failures": []},
            }
        )
    table = task["table"]
    schema = {"documents": DOCUMENTS, "verdicts": VERDICTS, "signals": SIGNALS.insert(0, pa.field("doc_id", pa.binary(16)))}[table]
    writer.table(table, pa.Table.from_pylist([row[table] for row in rows], schema=schema))
    return {"documents": len(rows)}


def judged(root, shards):
    """Publish shards ``[(source, [(number, text, state, lines), ...]), ...]`` and return their snapshot."""
    steps = {}
    for name, table in (("read", "documents"), ("signals", "signals"), ("verdicts", "verdicts")):
        tasks = [{"source": s, "shard": i, "documents": d, "table": table} for i, (s, d) in enumerate(shards)]
        work = [Shard(f"{t['source']}/{t['shard']:05d}", repr(t), t) for t in tasks]
        steps[name] = run_step(root, Step(name, 1, {}, publish_shard), work, LocalExecutor(1), Silent())
    return Snapshot("recipe", steps)


def made_shards(seed=0, documents=120, per_shard=30):
    """Two sources of documents of mixed length, a tenth dropped and a tenth held out; one shard is empty."""
    draw = random.Random(seed)
    shards = []
    for source in ("web", "books"):
        made = []
        for number in range(documents):
            words = draw.choice([3, 20, 60, 150, 700])
            text = " ".join(draw.choice(["alpha", "beta", "gamma", "naïve", "日本", "🙂", "\n\n", "if x == 1:"]) for _ in range(words))
            made.append((number, text, draw.choice(["kept"] * 8 + ["dropped", "held_out"]), draw.randrange(5)))
        shards += [(source, made[first : first + per_shard]) for first in range(0, documents, per_shard)]
        shards.append((source, []))
    return shards


def recipe(**changes):
    """A recipe for the made sources."""
    base = {
        "name": "made",
        "sources": {
            "web": {"reader": "jsonl", "paths": ["web.jsonl"]},
            "books": {"reader": "jsonl", "paths": ["books.jsonl"], "clean": True, "difficulty": "n_full_lines"},
        },
        "tokenizer": {"kind": "bpe", "vocabulary": 300, "sample_bytes": 20_000},
        "pack": {"row_length": 64, "rows_per_shard": 50, "bins": 3},
    }
    return Recipe.model_validate(base | changes)
