"""Held-out loss of the demo's model under AdamW, CAME, Sophia and Adafactor at equal tokens, each after a learning-rate sweep of its own.

    python bench/optimizer_losses.py LAKE [--steps 200] [--rows 4] [--seeds 3] [--layers 2] [--width 128] [--log losses.jsonl]

LAKE is the demo's (`make demo`), with its first stage planned: the tokenizer, the rows and the held-out rows of the source they are from
are that stage's, and so is the model unless told otherwise. Every run is the trainer's own loop in FP32 from random weights over the same
rows for a seed. The sweep is at seed 0 over rates a factor 2 apart, and goes on while the best lies at an edge; the best rate then runs
with the other seeds. Runs found in the log are not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
from pathlib import Path

from schemas.segments import Allotment, Segment, SourceShare, Stream, segments_hash, write_segments
from schemas.settings import OptimizerSettings, ScheduleSettings, StageSettings, read_stage
from schemas.store import publish_json
from train.interrupt import Interrupt
from train.loop import Trainer
from train.parallel import ranks
from train.stage import Stage

SWEEPS = {
    "adamw": (1e-3, 2e-3, 4e-3),
    "came": (1e-4, 2e-4, 4e-4),
    "sophia": (5e-4, 1e-3, 2e-3),
    "adafactor": (5e-2, 1e-1, 2e-1),
}
ALLOWED = {"came": 1.02, "sophia": 1.02, "adafactor": 1.04}


def planned(lake: Path) -> StageSettings:
    """The demo's first stage."""
    found = sorted(lake.glob("runs/*/0-*/stage.json"))
    if not found:
        raise SystemExit(f"{lake} has no planned stage: run the demo on it first")
    return read_stage(found[0])


def train(lake: Path, base: StageSettings, name: str, lr: float, seed: int, steps: int, rows: int) -> float:
    """Train from random weights; returns the held-out loss at the end, in nats per token."""
    training = dataclasses.replace(
        base.training,
        precision="fp32",
        batch_rows=rows,
        micro_batch_rows=rows,
        eval_every=0,
        eval_rows=64,
        checkpoint_every=0,
        early_stop=None,
        optimizer=OptimizerSettings(name=name, lr=lr, weight_decay=0.1),
        schedule=ScheduleSettings(name="cosine", warmup_steps=max(1, steps // 10)),
    )
    lots = [lot for lot in base.lots if lot.rows]
    streams = tuple(Stream(lot.rows, (Allotment(lot.lot, 0, lot.rows),)) for lot in lots)
    segment = Segment("bench", 0, steps * rows, 0, rows, seed, 1 << 16, (SourceShare(lots[0].source, 1, streams),))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for entry in lake.iterdir():
            if entry.name != "runs":
                (root / entry.name).symlink_to(entry.resolve())
        write_segments(root, "runs/r/segments.json", [segment])
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
            lots=tuple(lots),
            training=training,
        )
        publish_json(root, "runs/r/0-bench/stage.json", json.loads(json.dumps(dataclasses.asdict(stage))))
        with ranks() as place:
            outcome = Trainer(Stage.open(root, stage.folder), place, Interrupt(), threads=int(os.environ.get("OMP_NUM_THREADS", "1"))).run()
    return outcome.heldout[lots[0].source]


class Runs:
    """Runs by optimizer, rate and seed, kept in a log so that none is done twice."""

    def __init__(self, lake: Path, base: StageSettings, steps: int, rows: int, log: Path) -> None:
        self.lake, self.base, self.steps, self.rows, self.log = lake, base, steps, rows, log
        lines = log.read_text().splitlines() if log.exists() else []
        self.size = steps, rows, base.model.layers, base.model.width
        self.done = {tuple(key): loss for key, loss in map(json.loads, lines)}

    def loss(self, name: str, lr: float, seed: int) -> float:
        key = (name, lr, seed, *self.size)
        if key not in self.done:
            self.done[key] = train(self.lake, self.base, name, lr, seed, self.steps, self.rows)
            with self.log.open("a") as file:
                file.write(json.dumps([key, self.done[key]]) + "\n")
        return self.done[key]

    def best_rate(self, name: str) -> float:
        """Sweep at seed 0 until the best rate has a worse one on either side."""
        rates = sorted(SWEEPS[name])
        while True:
            losses = [self.loss(name, rate, 0) for rate in rates]
            best = losses.index(min(losses))
            if 0 < best < len(rates) - 1:
                return rates[best]
            rates = [rates[0] / 2, *rates] if best == 0 else [*rates, rates[-1] * 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lake", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--log", type=Path, default=Path("losses.jsonl"))
    arguments = parser.parse_args()
    base = planned(arguments.lake)
    size = {name: value for name in ("layers", "width") if (value := getattr(arguments, name))}
    base = dataclasses.replace(base, model=dataclasses.replace(base.model, **size))
    runs = Runs(arguments.lake, base, arguments.steps, arguments.rows, arguments.log)
    found = {}
    for name in SWEEPS:
        rate = runs.best_rate(name)
        found[name] = rate, [runs.loss(name, rate, seed) for seed in range(arguments.seeds)]
    tokens = arguments.steps * arguments.rows * runs.base.row_length
    print(f"\n{base.model}\n{tokens:,} tokens, {arguments.steps} steps; held-out loss in nats per token\n")
    for (name, lr, seed, *size), loss in sorted(runs.done.items()):
        if tuple(size) == runs.size:
            print(f"{name} at {lr:g}, seed {seed}: {loss:.3f}")
    print(f"\n| optimizer | lr | {' | '.join(f'seed {seed}' for seed in range(arguments.seeds))} | mean | of AdamW | allowed |")
    print("|" + "---|" * (arguments.seeds + 5))
    reference = statistics.fmean(found["adamw"][1])
    for name, (rate, losses) in found.items():
        ratio = statistics.fmean(losses) / reference
        shown = " | ".join(f"{loss:.3f}" for loss in losses)
        print(f"| {name} | {rate:g} | {shown} | {statistics.fmean(losses):.3f} | {ratio:.3f} | {ALLOWED.get(name, '')} |")


if __name__ == "__main__":
    main()
