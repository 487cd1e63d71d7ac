"""Builds small real lakes for the trainer's tests: lots as Arrow shards, ``segments.json`` and ``stage.json``.

Documents follow ``next = (current * 3 + source) % words`` with some noise, so that a small model learns them in a few steps.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from schemas.segments import Allotment, Segment, SourceShare, Stream, read_segments, segments_hash, write_segments
from schemas.settings import Lot, LotShard, ModelSettings, OptimizerSettings, ScheduleSettings, StageSettings, TrainSettings
from schemas.store import publish, publish_json
from schemas.tables import row_schema

BOS, EOS, WORDS, LENGTH = 0, 1, 64, 32
MODEL = ModelSettings(layers=2, width=32, heads=4, kv_heads=2, ff_width=64)
TRAINING = TrainSettings(
    precision="fp32",
    batch_rows=4,
    micro_batch_rows=2,
    eval_every=4,
    eval_rows=3,
    checkpoint_every=3,
    log_every=1,
    threads=1,
    optimizer=OptimizerSettings(lr=3e-3),
    schedule=ScheduleSettings(warmup_steps=2),
)


def documents(source: int, count: int, seed: int) -> list[tuple[bytes, list[int]]]:
    """(doc_id, tokens with BOS and EOS) of some documents."""
    random = np.random.default_rng([seed, source])
    made = []
    for number in range(count):
        word, tokens = int(random.integers(2, WORDS)), [BOS]
        for _ in range(int(random.integers(1, 40))):
            tokens.append(word)
            word = (word * 3 + source) % (WORDS - 2) + 2 if random.random() > 0.1 else int(random.integers(2, WORDS))
        tokens.append(EOS)
        made.append((hashlib.blake2b(f"{seed}/{source}/{number}".encode(), digest_size=16).digest(), tokens))
    return made


def pack(docs: list[tuple[bytes, list[int]]], length: int = LENGTH) -> list[tuple[list[int], list[int], list[bytes]]]:
    """(tokens, ends, doc_ids) of rows: documents one after another, cut at row ends; a rest shorter than four is padding."""
    rows: list[tuple[list[int], list[int], list[bytes]]] = []
    tokens: list[int] = []
    ends: list[int] = []
    ids: list[bytes] = []
    for doc_id, document in docs:
        while document:
            if length - len(tokens) < 4:
                rows.append((tokens + [0] * (length - len(tokens)), ends, ids))
                tokens, ends, ids = [], [], []
            piece, document = document[: length - len(tokens)], document[length - len(tokens) :]
            tokens = tokens + piece
            ends, ids = [*ends, len(tokens)], [*ids, doc_id]
    if tokens:
        rows.append((tokens + [0] * (length - len(tokens)), ends, ids))
    return rows


def write_lot(root: Path, lot: str, source: str, rows: list[tuple[list[int], list[int], list[bytes]]], shard_rows: int = 8) -> Lot:
    """Write a lot's shards; each is one Arrow IPC file of one record batch."""
    schema = row_schema(LENGTH, WORDS, {"lot": lot, "source": source, "tokenizer": "tiny", "row_length": str(LENGTH)})
    shards = []
    for number, first in enumerate(range(0, len(rows), shard_rows)):
        part = rows[first : first + shard_rows]
        flat = pa.array(np.array([row[0] for row in part], dtype=np.uint16).ravel(), type=schema.field("tokens").type.value_type)
        columns = [
            pa.FixedSizeListArray.from_arrays(flat, type=schema.field("tokens").type),
            pa.array([row[1] for row in part], type=schema.field("ends").type),
            pa.array([row[2] for row in part], type=schema.field("doc_ids").type),
        ]

        def write(path: Path, columns=columns) -> None:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

        done = publish(root, f"lots/{lot}/{number:05d}.arrow", write, len(part))
        shards.append(LotShard(done.path, done.rows, done.bytes, done.checksum))
    return Lot(lot, source, LENGTH, tuple(shards), bytes_per_token=4.0)


def write_stage(
    root: Path,
    name: str,
    lots: list[Lot],
    holdout: list[Lot],
    allotments: dict[str, tuple[int, int]],
    rows: int,
    *,
    quotas: dict[str, int] | None = None,
    training: TrainSettings = TRAINING,
    model: ModelSettings = MODEL,
    init_from: str | None = None,
    first: tuple[int, int] = (0, 0),
    batch: int | None = None,
    seed: int = 7,
) -> Path:
    """Append one segment to the run ``r`` and write its stage; returns the stage's folder.

    ``allotments`` holds (start, stop) by lot id, ``first`` the stage's first row and step.
    """
    shares: dict[str, list[Allotment]] = {}
    for lot in lots:
        if lot.lot in allotments:
            shares.setdefault(lot.source, []).append(Allotment(lot.lot, *allotments[lot.lot]))
    sources = tuple(SourceShare(s, (quotas or {}).get(s, 1), (Stream(1, tuple(a)),)) for s, a in shares.items())
    segments = read_segments(root / "runs/r/segments.json")
    segments.append(Segment(name, first[0], rows, first[1], batch or training.batch_rows, seed, 2, sources))
    write_segments(root, "runs/r/segments.json", segments)
    position = len(segments) - 1
    folder = f"runs/r/{position}-{name}"
    stage = StageSettings(
        run="r",
        stage=name,
        position=position,
        folder=folder,
        segments="runs/r/segments.json",
        segments_hash=segments_hash(segments),
        first_segment=position,
        last_segment=position,
        init_from=init_from,
        seed=seed,
        vocabulary=WORDS,
        row_length=LENGTH,
        model=model,
        training=training,
        lots=tuple(lots),
        holdout=tuple(holdout),
    )
    publish_json(root, f"{folder}/stage.json", json.loads(json.dumps(dataclasses.asdict(stage))))
    return root / folder


def build(root: Path, *, rows: int = 48, epochs: int = 4, **stage: object) -> tuple[Path, list[Lot], list[Lot]]:
    """A lake with sources ``code`` and ``prose``, a held-out lot each, and a first stage of ``rows`` rows out of ``epochs``."""
    lots = [write_lot(root, f"{s}-0", s, pack(documents(i, 60, 1))) for i, s in enumerate(("code", "prose"))]
    held = [write_lot(root, f"{s}-held", s, pack(documents(i, 8, 2))) for i, s in enumerate(("code", "prose"))]
    uses = {lot.lot: (0, epochs * lot.rows) for lot in lots}
    return write_stage(root, "first", lots, held, uses, rows, quotas={"code": 3, "prose": 1}, **stage), lots, held  # type: ignore[arg-type]
