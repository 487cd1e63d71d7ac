"""What happened, as tables: which rows each step saw, the loss of each document piece, metrics and events.

Failure model. Records wait in memory and are published as parts named ``a<attempt>-s<from>-<to>.parquet`` (steps from, inclusive, to
``to``, exclusive) just before each checkpoint, so every step that a checkpoint counts is in the tables. Steps after the last checkpoint
are lost with a killed process, or stay as rows of an attempt that a later one voids: a process attempt has a number of its own in the
run, and one that starts at or before a step voids that step's rows of earlier attempts. The event that says where an attempt starts is
published before its first step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from schemas.store import publish
from schemas.tables import EVENTS, LEDGER, LOSSES, METRICS
from train.order import Rows
from train.parallel import Ranks
from train.stage import MicroBatch


class Recorder:
    """Collects the records of one attempt at one stage, and publishes them; only rank 0 writes.

    Args:
        root: the lake.
        folder: the stage's folder in it.
        attempt: this attempt's number in the run.
        step: first step of the attempt.
        sources: names that ``Rows.source`` refers to.
        lots: names that ``Rows.lot`` refers to.
        ranks: all ranks.
    """

    def __init__(self, root: Path, folder: str, attempt: int, step: int, sources: Sequence[str], lots: Sequence[str], ranks: Ranks) -> None:
        self.root, self.folder, self.attempt, self.ranks = root, folder, attempt, ranks
        self.sources, self.lots = pa.array(sources, pa.string()), pa.array(lots, pa.string())
        self._from = step
        self._ledger: list[tuple[int, int, Rows]] = []
        self._losses: list[tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.float64]]] = []
        self._metrics: list[tuple[int, str, float]] = []
        self._events: list[tuple[int, str, str]] = []
        self._published_events: list[tuple[int, str, str]] = []  # those of the part last published, should its name come again

    def rows(self, step: int, first: int, rows: Rows) -> None:
        """Note the rows of a step, which begin at position ``first`` of the run's order."""
        if self.ranks.first:
            self._ledger.append((step, first, rows))

    def pieces(self, step: int, micro: MicroBatch, losses: NDArray[np.float64]) -> None:
        """Note the loss of each piece of a micro-batch."""
        batch = micro.batch
        at = batch.row_of_piece
        keys = np.stack([np.full(len(at), step), micro.place[at], micro.lot[at], micro.row[at], batch.predicted])
        self._losses.append((keys, batch.doc_ids, losses))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Note metrics of a step."""
        self._metrics += [(step, name, value) for name, value in values.items()]

    def event(self, step: int, kind: str, **detail: Any) -> None:
        """Note an event."""
        self._events.append((step, kind, json.dumps(detail, sort_keys=True)))

    def flush(self, step: int) -> None:
        """Publish everything noted, as the parts of steps up to ``step``; every rank must call."""
        gathered = self.ranks.gather(self._losses)
        self._losses = []
        if self.ranks.first:
            name = f"a{self.attempt:04d}-s{self._from:08d}-{step:08d}.parquet"
            if self._from == step:
                self._events = self._published_events + self._events
            self._publish("ledger", name, self._ledger_table())
            self._publish("losses", name, self._losses_table([part for parts in gathered for part in parts]))
            self._publish("metrics", name, self._table(METRICS, self._metrics))
            self._publish("events", name, self._table(EVENTS, self._events))
            self._published_events = self._events if self._from == step else []
        self._ledger, self._metrics, self._events, self._from = [], [], [], step

    def _publish(self, table: str, name: str, value: pa.Table) -> None:
        if value.num_rows:
            publish(
                self.root, f"{self.folder}/{table}/{name}", lambda path: pq.write_table(value, path, compression="zstd"), value.num_rows
            )

    def _table(self, schema: pa.Schema, lines: Sequence[tuple[Any, ...]]) -> pa.Table:
        columns = list(zip(*lines, strict=True)) or [()] * (len(schema) - 1)
        return (
            pa.table([pa.array([self.attempt] * len(lines), pa.int32()), *map(pa.array, columns)], schema=schema)
            if lines
            else (schema.empty_table())
        )

    def _ledger_table(self) -> pa.Table:
        if not self._ledger:
            return LEDGER.empty_table()
        counts = [len(rows.row) for _, _, rows in self._ledger]
        lot, source, row, use = (np.concatenate([getattr(r, n) for _, _, r in self._ledger]) for n in ("lot", "source", "row", "use"))
        columns = [
            np.full(sum(counts), self.attempt, dtype=np.int32),
            np.repeat([step for step, _, _ in self._ledger], counts),
            np.concatenate([np.arange(first, first + count) for (_, first, _), count in zip(self._ledger, counts, strict=True)]),
            self.sources.take(pa.array(source)),
            self.lots.take(pa.array(lot)),
            row,
            use,
        ]
        return pa.table(columns, schema=LEDGER)

    def _losses_table(self, parts: Sequence[tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.float64]]]) -> pa.Table:
        if not parts:
            return LOSSES.empty_table()
        keys = np.concatenate([keys for keys, _, _ in parts], axis=1)
        order = np.lexsort((keys[1], keys[0]))  # stable: pieces stay in their row's order
        step, _, lot, row, tokens = keys[:, order]
        doc_ids = np.concatenate([ids for _, ids, _ in parts])[order]
        columns = [
            np.full(len(order), self.attempt, dtype=np.int32),
            step,
            self.lots.take(pa.array(lot)),
            row,
            pa.FixedSizeBinaryArray.from_buffers(LOSSES.field("doc_id").type, len(order), [None, pa.py_buffer(doc_ids.tobytes())]),
            tokens.astype(np.int32),
            np.concatenate([losses for _, _, losses in parts])[order],
        ]
        return pa.table(columns, schema=LOSSES)
