"""Small trainings for benches: the trainer's own loop, from random weights, over the rows of a lake's first stage, in a passing folder."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from schemas.segments import Allotment, Segment, SourceShare, Stream, segments_hash, write_segments
from schemas.settings import Outcome, StageSettings, TrainSettings, read_stage
from schemas.store import publish_json
from train.callbacks import Callback, StepReport
from train.interrupt import Interrupt
from train.loop import Trainer
from train.parallel import ranks
from train.stage import Stage


class Curve(Callback):
    """Held-out loss of the source trained on, by steps done, and the optimizer's share of clipped elements, where it has one."""

    def __init__(self, source: str) -> None:
        self.name, self.points = f"heldout/{source}", dict[int, float]()
        self.clipped = list[float]()

    def on_step(self, run: Trainer, report: StepReport) -> None:
        """Note what was clipped."""
        if "share_clipped" in report.values:
            self.clipped.append(report.values["share_clipped"])

    def on_evaluation(self, run: Trainer, values: Mapping[str, float]) -> None:
        """Note the loss."""
        self.points[run.step] = values[self.name]


def planned(lake: Path, layers: int | None = None, width: int | None = None, *, source: str = "") -> StageSettings:
    """The first stage planned in the demo's lake that has a source, that source alone, its model in another size where one is given."""
    for path in sorted(lake.glob("runs/*/*-*/stage.json")):
        stage = read_stage(path)
        lots = [lot for lot in stage.lots if lot.rows]
        lots = [lot for lot in lots if lot.source == (source or lots[0].source)]
        if lots:
            model = dataclasses.replace(stage.model, layers=layers or stage.model.layers, width=width or stage.model.width)
            return dataclasses.replace(stage, model=model, lots=tuple(lots))
    raise SystemExit(f"{lake} has no planned stage{' with ' + source if source else ''}: run the demo on it first")


def train(lake: Path, base: StageSettings, training: TrainSettings, steps: int, seed: int) -> tuple[Outcome, Curve]:
    """Train for so many steps on the base's source; returns the outcome and the held-out losses on the way.

    Args:
        lake: a lake; nothing is written to it.
        base: see ``planned``.
        training: how; ``threads`` of 0 is the environment's OMP_NUM_THREADS, or 1.
        steps: optimizer steps planned; rows that are too few for them come again and again.
        seed: of weights and order.
    """
    rows = steps * training.batch_rows
    epochs = -(-rows // sum(lot.rows for lot in base.lots))
    streams = tuple(Stream(lot.rows, (Allotment(lot.lot, 0, epochs * lot.rows),)) for lot in base.lots)
    segment = Segment("bench", 0, rows, 0, training.batch_rows, seed, 1 << 16, (SourceShare(base.lots[0].source, 1, streams),))
    stage = dataclasses.replace(
        base,
        run="r",
        stage="bench",
        position=0,
        folder="runs/r/0-bench",
        segments="runs/r/segments.json",
        segments_hash=segments_hash([segment]),
        first_segment=0,
        last_segment=0,
        init_from=None,
        seed=seed,
        training=training,
    )
    curve = Curve(base.lots[0].source)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for entry in lake.iterdir():
            if entry.name != "runs":
                (root / entry.name).symlink_to(entry.resolve())
        write_segments(root, stage.segments, [segment])
        publish_json(root, f"{stage.folder}/stage.json", json.loads(json.dumps(dataclasses.asdict(stage))))
        threads = training.threads or int(os.environ.get("OMP_NUM_THREADS", "1"))
        with ranks() as place:
            trainer = Trainer(Stage.open(root, stage.folder), place, Interrupt(), threads=threads)
            trainer.callbacks[:] = [curve]
            return trainer.run(), curve
