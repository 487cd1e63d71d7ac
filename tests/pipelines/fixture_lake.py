"""A small lake written by hand with the declared schemas: what the catalogue and its readers are tested on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.manifest import Entry, Snapshot, write_snapshot
from schemas.segments import Allotment, Segment, SourceShare, Stream, write_segments
from schemas.settings import Outcome
from schemas.store import publish, publish_json
from schemas.tables import TABLES

TEXTS = ["the first text", "a dull text", "the first text!", "a fourth text, kept", "held out"]


def doc(number: int) -> bytes:
    """doc_id of the fixture's document."""
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def locator(number: int) -> int:
    """Place of the fixture's document: three in shard 0, two in shard 1."""
    return number if number < 3 else (1 << 32) + number - 3


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of a declared table; columns not given are 0, empty or null."""
    schema = TABLES[name]
    empty = {pa.string(): "", pa.int64(): 0, pa.int32(): 0, pa.float64(): 0.0, pa.uint64(): 0, pa.large_string(): "", pa.bool_(): False}
    full = [{field.name: None if field.nullable else empty.get(field.type, []) for field in schema} | row for row in rows]
    return pa.Table.from_pylist(full, schema=schema)


def put(root: Path, step: str, tables: dict[str, list[dict[str, Any]]], label: str = "all") -> Entry:
    """Publish tables as one entry of a step."""
    files = {}
    for name, rows in tables.items():
        data = table(name, rows)
        place = f"{name}/{step}-{label.replace('/', '-')}.parquet"
        files[name] = publish(root, place, lambda path, data=data: pq.write_table(data, path), data.num_rows)
    return Entry(f"{step}-{label}", step, label, files)


def put_stage(root: Path, folder: str, **tables: list[dict[str, Any]]) -> None:
    """Write run tables of a stage."""
    for name, rows in tables.items():
        data = table(name, rows)
        part = len(list((root / folder / name).glob("*"))) if (root / folder / name).is_dir() else 0
        publish(root, f"{folder}/{name}/{part:05d}.parquet", lambda path, data=data: pq.write_table(data, path))


def write_lake(root: Path) -> Path:
    """Five documents (kept, failed, near duplicate, kept, held out), one bad record, a run whose attempt 1 redid step 1."""
    documents = [
        {"doc_id": doc(n), "source": "web", "id": f"user-{n}", "path": "a.jsonl", "record": n, "text": text, "bytes": len(text)}
        for n, text in enumerate(TEXTS)
    ]
    fault = {"source": "web", "path": "a.jsonl", "record": 5, "reason": "broken_json", "detail": "line 6", "bytes": 9}
    failure = {"rule": "too_dull", "value": 0.9, "threshold": 0.5}
    near = {"kept_doc_id": doc(0), "similarity": 0.875}
    states: list[dict[str, Any]] = [
        {"state": "kept"},
        {"state": "dropped", "reason": "too_dull", "failures": [failure]},
        {"state": "dropped", "reason": "near_duplicate", **near},
        {"state": "kept"},
        {"state": "held_out"},
    ]
    judged = {"source": "web", "failures": []}
    verdicts = [judged | {"doc_id": doc(n), "locator": locator(n), "bytes": len(TEXTS[n])} | state for n, state in enumerate(states)]
    conservation = {"source": "web", "records_in": 6, "quarantined": 1, "dropped": 2, "held_out": 1, "kept": 2}
    size = sum(map(len, TEXTS))
    lot = {"lot": "web-r2", "source": "web", "split": "train", "repeats": 2, "row_length": 8, "rows": 2, "tokens": 14, "documents": 2}
    rows = [
        {"lot": "web-r2", "row": 0, "doc_id": doc(0), "tokens": 6},
        {"lot": "web-r2", "row": 1, "doc_id": doc(3), "tokens": 8},
    ]
    signals = [{"doc_id": doc(n), "n_bytes": len(text), "n_words": len(text.split())} for n, text in enumerate(TEXTS)]
    steps = {
        "read": [
            put(root, "read", {"documents": documents[:3], "quarantine": [fault]}, "web/00000"),
            put(root, "read", {"documents": documents[3:]}, "web/00001"),
        ],
        "signals": [put(root, "signals", {"signals": signals})],
        "dedup": [put(root, "dedup", {"clusters": [{"doc_id": doc(2), "source": "web", "locator": 2, "kind": "near", **near}]})],
        "verdicts": [
            put(root, "verdicts", {"verdicts": verdicts[:3]}, "web/00000"),
            put(root, "verdicts", {"verdicts": verdicts[3:]}, "web/00001"),
        ],
        "conservation": [put(root, "conservation", {"conservation": [conservation | {"bytes_in": size, "bytes_out": size}]})],
        "lots": [put(root, "lots", {"lots": [lot], "rows": rows})],
    }
    write_snapshot(root, Snapshot("recipe-key", steps))
    _run(root)
    return root


def _run(root: Path) -> None:
    share = SourceShare("web", 1, (Stream(1, (Allotment("web-r2", 0, 4),)),))
    write_segments(root, "runs/demo/segments.json", [Segment("first", 0, 3, 0, 1, 0, 1, (share,))])

    def used(attempt: int, step: int, row: int, use: int) -> dict[str, Any]:
        return {"attempt": attempt, "step": step, "index": step, "source": "web", "lot": "web-r2", "row": row, "use": use}

    def lost(attempt: int, step: int, row: int, loss: float) -> dict[str, Any]:
        document = doc(0 if row == 0 else 3)
        return {"attempt": attempt, "step": step, "lot": "web-r2", "row": row, "doc_id": document, "tokens": 5, "loss": loss}

    put_stage(
        root,
        "runs/demo/0-first",
        ledger=[used(0, 0, 0, 0), used(0, 1, 1, 1), used(1, 1, 1, 1), used(1, 2, 0, 2)],
        losses=[lost(0, 0, 0, 20.0), lost(0, 1, 1, 16.0), lost(1, 1, 1, 15.0), lost(1, 2, 0, 10.0)],
        metrics=[{"attempt": 0, "step": 0, "name": "loss", "value": 4.0}],
        events=[{"attempt": 0, "step": 0, "kind": "started", "detail": "{}"}, {"attempt": 1, "step": 1, "kind": "resumed", "detail": "{}"}],
    )
    checkpoint = "runs/demo/0-first/checkpoints/3"
    outcome = Outcome("early_stop", "no improvement in 3 evaluations", 3, 3, checkpoint, 4.0, 2.0, {"all": 2.1}, (("web-r2", 3, 4),))
    publish_json(root, "runs/demo/0-first/outcome.json", json.loads(json.dumps(asdict(outcome))))
