"""A stage as the trainer sees it: its settings, its steps, and the rows of each step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from schemas.errors import LakeError, PlanError, RecipeError
from schemas.manifest import fingerprint
from schemas.segments import Allotment, allotments, ends, read_segments, segment_at, segments_hash, stage_segments, unused
from schemas.settings import LotShard, PlateauSettings, StageSettings, read_stage
from schemas.working_copy import copy_of
from train.data import Batch, RowReader, StepRows
from train.order import Ints, Order, Rows, step_rows
from train.read_ahead import ReadAhead
from train.schedule import check_schedule
from train.written import written_readers


@dataclass(frozen=True)
class MicroBatch:
    """Some of a step's rows: the tokens, and for each row its place in the step, source, lot and number."""

    batch: Batch
    place: Ints
    source: Ints
    lot: Ints
    row: Ints


class Stage:
    """A stage's settings, order and rows; a shard's length is checked at once, its checksum when it is first read from.

    Args:
        root: the lake.
        settings: the stage.

    Raises:
        LakeError: the segments are not those the stage was planned with, or a shard was changed.
        PlanError: a segment cannot be dealt from its allotments.
    """

    def __init__(self, root: Path, settings: StageSettings) -> None:
        self.root, self.settings = root, settings
        _check_training(settings)
        path = root / settings.segments
        every = read_segments(path)
        if segments_hash(every[: settings.last_segment + 1]) != settings.segments_hash:
            raise LakeError(
                f"the run's segments are not those that stage {settings.stage!r} was planned with",
                where=str(path),
                fix="plan the stage again; segments that were already trained on must stay as they were",
            )
        self.segments = stage_segments(every, settings)
        self.fingerprints = [segments_hash([segment]) for segment in every[: settings.first_segment + len(self.segments)]]
        self._ends = ends(self.segments)
        lots = {lot.lot: lot for lot in settings.lots}
        try:
            self.order = Order(self.segments, {lot: [shard.rows for shard in lots[lot].shards] for lot in lots})
        except ValueError as error:
            raise PlanError(str(error), where=str(path), fix="plan the stage again") from error
        self.sources = self.order.sources
        mine = [lots[lot] for lot in self.order.lots]
        by_length = {length: [lot for lot in mine if lot.row_length == length] for length in sorted({lot.row_length for lot in mine})}
        self._readers = {length: RowReader(root, same, checksums=True) for length, same in by_length.items()}
        self._length = np.array([lot.row_length for lot in mine], dtype=np.int64)
        self._place = np.array([by_length[lot.row_length].index(lot) for lot in mine], dtype=np.int64)
        self._written = written_readers(root, settings.folder, self.segments)
        self.holdout = RowReader(root, settings.holdout, checksums=True)
        self._rows = StepRows(self.order)
        self.first_step = self.segments[0].first_step
        self.end_step = self.segments[-1].first_step + self.segments[-1].steps
        copy = copy_of(root)
        self._ahead = None if copy is None else ReadAhead(copy, self._shards, self._ends[-1], self._release)
        self.batch_rows = max(s.batch * self.row_length_of(i) // settings.row_length for i, s in enumerate(self.segments))

    @classmethod
    def open(cls, root: Path, folder: str) -> Stage:
        """Open the stage whose ``stage.json`` lies in a folder of the lake."""
        return cls(root, read_stage(root / folder / "stage.json"))

    @property
    def steps(self) -> int:
        """Optimizer steps planned."""
        return self.end_step - self.first_step

    def span(self, step: int) -> tuple[int, int]:
        """Positions (first, end) of a step in the run's order."""
        index = self._segment(step)
        first, end = step_rows(self.segments[index], step)
        return first, min(end, self._ends[index])

    def rows(self, step: int) -> Rows:
        """Rows of a step, over all ranks."""
        return self._rows(*self.span(step))

    def next_row(self, step: int) -> int:
        """Position in the run's order of the first row that was not trained on before a step."""
        return self.span(step)[0] if step < self.end_step else self._ends[-1]

    def leftover(self, step: int) -> list[Allotment]:
        """What the stage was allotted and did not use when it ends before a step, by lot."""
        return unused(self.segments, self.next_row(step))

    def past(self, step: int) -> str:
        """Fingerprint of the segments up to the one that the row before a step came from."""
        row = self.next_row(step)
        done = segment_at(self.segments, row - 1) + 1 if row > self.segments[0].first_row else 0
        return fingerprint(self.fingerprints[: self.settings.first_segment + done])

    def micro_rows(self, ranks: int) -> int:
        """Rows of a forward pass on one rank; every micro-batch has this many, the last ones with empty rows. Of shorter rows, more."""
        return min(self.settings.training.micro_batch_rows, -(-self.batch_rows // ranks))

    def micro_batches(self, step: int, rank: int, ranks: int, *, alike: bool = False) -> list[MicroBatch]:
        """A rank's share of a step: rows ``rank::ranks`` of it, in micro-batches; ``alike``: as many as the first rank has."""
        rows, index, (first, end) = self.rows(step), self._segment(step), self.span(step)
        if self._ahead is not None:
            self._ahead.need(first, end)
        height = self.micro_rows(ranks) * (self.settings.row_length // self.row_length_of(index))
        mine = np.arange(rank, len(rows.row), ranks)
        made = []
        for begin in range(0, -(-len(rows.row) // ranks) if alike else len(mine), height):
            place = mine[begin : begin + height]
            if index in self._written:
                at = first - self.segments[index].first_row + place
                batch = self._written[index].read(np.zeros(len(at), dtype=np.int64), at, height)
            else:
                batch = self._read(rows.lot[place], rows.row[place], height, self.row_length_of(index))
            made.append(MicroBatch(batch, place, rows.source[place], rows.lot[place], rows.row[place]))
        return made

    def gather(self, positions: Ints) -> Batch:
        """Read the rows at consecutive positions of the run's order, all of one row length, from their lots."""
        if self._ahead is not None:
            self._ahead.need(int(positions[0]), int(positions[-1]) + 1)
        rows = self.order.rows(positions)
        return self._read(rows.lot, rows.row, 0, int(self._length[rows.lot[0]]))

    def close(self) -> None:
        """Stop reading ahead."""
        if self._ahead is not None:
            self._ahead.close()

    def _shards(self, first: int, end: int) -> list[LotShard]:
        """The shards of the rows at positions of the run's order, in order of use."""
        found: dict[str, LotShard] = {}
        for index, segment in enumerate(self.segments):
            positions = np.arange(max(first, segment.first_row), min(end, self._ends[index]))
            if not len(positions):
                continue
            if index in self._written:
                shards = self._written[index].shards(np.zeros(len(positions), dtype=np.int64), positions - segment.first_row)
            else:
                rows = self.order.rows(positions)
                shards = self._readers[self.row_length_of(index)].shards(self._place[rows.lot], rows.row)
            found |= {shard.path: shard for shard in shards if shard.path not in found}
        return list(found.values())

    def _release(self, keep: set[str]) -> None:
        for reader in (*self._readers.values(), *self._written.values()):
            reader.release(keep)

    def end_of(self, index: int) -> int:
        """Position at which a segment of the stage stops being in force."""
        return self._ends[index]

    def row_length_of(self, index: int) -> int:
        """Tokens of a row of one of the stage's segments."""
        lot = next(a.lot for a in allotments(self.segments[index]))
        return int(self._length[self.order.lots.index(lot)])

    def _read(self, lots: Ints, rows: Ints, height: int, length: int) -> Batch:
        return self._readers[length].read(self._place[lots], rows, height)

    def _segment(self, step: int) -> int:
        for index in range(len(self.segments) - 1, -1, -1):
            if self.segments[index].first_step <= step:
                return index
        raise IndexError(f"step {step} is before the stage's first, {self.first_step}")


MOST_THREADS = 1024
"""Threads that a trainer may be told to use: tens of thousands end the process, and others on the machine."""


def _check_training(settings: StageSettings) -> None:
    training = settings.training
    for field, value, least in (
        ("batch_rows", training.batch_rows, 1),
        ("micro_batch_rows", training.micro_batch_rows, 1),
        ("z_loss", training.z_loss, 0),
        ("clip", training.clip, 0),
        ("max_skips", training.max_skips, 1),
        ("recompute_budget_mib", training.recompute_budget_mib, 0),
        ("eval_every", training.eval_every, 0),
        ("eval_rows", training.eval_rows, 0),
        ("checkpoint_every", training.checkpoint_every, 0),
        ("keep_last", training.keep_last, 1),
        ("keep_every", training.keep_every, 0),
        ("log_every", training.log_every, 1),
        ("threads", training.threads, 0),
    ):
        if value < least:
            raise RecipeError(f"{value} is below {least}", where=f"training.{field}")
    if training.threads > MOST_THREADS:
        raise RecipeError(f"{training.threads} is above {MOST_THREADS}", where="training.threads", fix="0 is all cores")
    check_schedule(training.schedule)
    if settings.adaptive is not None and settings.adaptive.every and not (settings.holdout and training.eval_every and training.eval_rows):
        raise RecipeError(
            "adaptive weights move with held-out losses, and none are measured",
            where="training.eval_every",
            fix="set it and eval_rows above 0",
        )
    if training.schedule.start != "fresh" and (settings.init_from is None or not settings.position):
        raise RecipeError(f"the first stage has nothing to {training.schedule.start} from", where="training.schedule.start", fix="fresh")
    if training.plateau is not None:
        _check_plateau(training.plateau)
    if training.spikes is not None and (training.spikes.window < 3 or training.spikes.threshold <= 0 or training.spikes.rewinds < 0):
        raise RecipeError("window must be at least 3, threshold above 0 and rewinds not below 0", where="training.spikes")
    stop, sources = training.early_stop, {lot.source for lot in settings.holdout}
    if stop is not None and (stop.on_stop == "cooldown") != (stop.cooldown > 0):
        raise RecipeError(f"{stop.cooldown} goes with on_stop: cooldown, and that with at least 1", where="training.early_stop.cooldown")
    names = {"heldout", *(f"heldout/{source}" for source in sources)}
    for field, watching in (("early_stop", stop), ("plateau", training.plateau)):
        if watching is not None and (not sources or watching.monitor not in names):
            measured = ", ".join(sorted(names)) if sources else "no held-out rows"
            raise RecipeError(f"{watching.monitor!r} is not measured: the stage has {measured}", where=f"training.{field}.monitor")


def _check_plateau(plateau: PlateauSettings) -> None:
    for field, holds, wanted in (
        ("factor", 0 < plateau.factor < 1, "in (0, 1)"),
        ("patience", plateau.patience >= 1, "at least 1"),
        ("min_ratio", 0 <= plateau.min_ratio < 1, "in [0, 1)"),
    ):
        if not holds:
            raise RecipeError(f"{getattr(plateau, field)} is not {wanted}", where=f"training.plateau.{field}")
