"""Held-out loss of the demo's model under AdamW, CAME, Sophia and Adafactor at equal tokens, each after a sweep of its own.

    python bench/optimizer_losses.py LAKE [--steps 200] [--rows 4] [--seeds 3] [--layers 2] [--width 128] [--precision fp32] [--sweep rate]
        [--log losses.jsonl]

LAKE is the demo's (`make demo`), with its first stage planned: the tokenizer, the rows and the held-out rows of the source they are from
are that stage's, and so are the model and the precision unless told otherwise. Every run is the trainer's own loop from random weights over
the same rows for a seed. The sweep, the same procedure for all, is at seed 0 over the rate, over how many times it the embeddings' rate is
and over the share of the steps that warms up (or, with ``--sweep``, over fewer of these), all in factors of 2: it moves to the best
neighbour until none is better. The best then runs with the other seeds. ``--one-rate`` keeps the embeddings at the rate of the rest. Runs
found in the log are not repeated. Sophia's win rate is the mean share of elements that were not clipped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

from small_runs import planned, train

from schemas.settings import OptimizerSettings, ScheduleSettings, StageSettings


@dataclasses.dataclass(frozen=True)
class Rule:
    """An optimizer with its options, and where its sweep begins: rate, the embeddings' over it, share of the steps that warms up."""

    name: str
    start: tuple[float, float, float]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


SOPHIA = {"rho": 1.0, "betas": (0.9, 0.95), "every": 5}
RULES = {
    "adamw": Rule("adamw", (2e-3, 16, 0.1)),
    "came": Rule("came", (1e-4, 16, 0.2)),
    # Memories of 50 and 100 steps: CAME's own, of 1,000 and 10,000, are for long runs, and it corrects no bias.
    "came_short": Rule("came", (5e-4, 16, 0.1), {"betas": (0.9, 0.98, 0.99)}),
    "sophia": Rule("sophia", (8e-4, 8, 0.1), SOPHIA),
    # Half of Hutchinson's estimates are below 0, of noise, and those elements are clipped whatever rho is: the rest wants a smaller one.
    "sophia_h": Rule("sophia", (4e-4, 8, 0.1), {"rho": 0.25, "betas": (0.9, 0.99), "every": 5, "estimator": "hutchinson"}),
    "adafactor": Rule("adafactor", (1e-1, 1, 0.1)),
}
MOVES = {"rate": (2, 1, 1), "embeddings": (1, 2, 1), "warmup": (1, 1, 2)}
ALLOWED = {"came": 1.02, "came_short": 1.02, "sophia": 1.02, "sophia_h": 1.02, "adafactor": 1.04}


class Runs:
    """Held-out losses by rule, rate, the embeddings' multiple of it, warm-up and seed, kept in a log so that none is done twice."""

    def __init__(self, lake: Path, base: StageSettings, steps: int, rows: int, log: Path) -> None:
        self.lake, self.base, self.steps, self.rows, self.log = lake, base, steps, rows, log
        lines = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
        self.done: dict[str, float] = {key: loss for key, loss, *_ in lines}

    def loss(self, rule: str, lr: float, multiple: float, warm: float, seed: int = 0) -> float:
        """Held-out nats per token at the end of a run."""
        (name, options), model = (RULES[rule].name, RULES[rule].options), self.base.model
        key = f"{name} {options}" if options else name
        key += f" at {lr:g}, embeddings x {multiple:g}, warm-up {warm:g}, seed {seed}"
        key += f" {self.steps} x {self.rows} {model.layers} layers of {model.width} {self.base.training.precision}"
        if key not in self.done:
            optimizer = OptimizerSettings(name=name, lr=lr, weight_decay=0.1, embedding_lr=lr * multiple, options=options)
            training = dataclasses.replace(
                self.base.training,
                batch_rows=self.rows,
                micro_batch_rows=self.rows,
                eval_every=0,
                eval_rows=64,
                checkpoint_every=0,
                early_stop=None,
                optimizer=optimizer,
                schedule=ScheduleSettings(name="cosine", warmup_steps=max(1, round(self.steps * warm))),
            )
            outcome, curve = train(self.lake, self.base, training, self.steps, seed)
            self.done[key] = outcome.heldout[self.base.lots[0].source]
            with self.log.open("a") as file:
                file.write(json.dumps([key, self.done[key], 1 - statistics.fmean(curve.clipped or [0.0])]) + "\n")
            wins = f", win rate {1 - statistics.fmean(curve.clipped):.0%}" if name == "sophia" else ""
            print(f"{key}: {self.done[key]:.4f}{wins}", flush=True)
        return self.done[key]

    def best(self, rule: str, sweep: list[str], one_rate: bool) -> tuple[float, float, float]:
        """Rate, multiple and warm-up that no neighbour a factor 2 away betters, at seed 0."""
        lr, multiple, warm = RULES[rule].start
        at = (lr * multiple**0.5, 1.0, warm) if one_rate else (lr, multiple, warm)
        moves = [tuple(factor**way for factor in MOVES[name]) for name in sweep for way in (1, -1)]
        while True:
            near = [(at[0] * rate, at[1] * more, at[2] * longer) for rate, more, longer in moves if at[2] * longer < 1]
            better = min(near, key=lambda other: self.loss(rule, *other))
            if self.loss(rule, *better) >= self.loss(rule, *at):
                return at
            at = better


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lake", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", choices=("fp32", "bf16"))
    parser.add_argument("--sweep", choices=MOVES, nargs="+", default=[*MOVES])
    parser.add_argument("--one-rate", action="store_true")
    parser.add_argument("--log", type=Path, default=Path("losses.jsonl"))
    parser.add_argument("--only", choices=RULES, nargs="+", default=[*RULES])
    options = parser.parse_args()
    base = planned(options.lake, options.layers, options.width)
    base = dataclasses.replace(
        base, training=dataclasses.replace(base.training, precision=options.precision or base.training.precision, compile=False)
    )
    sweep = [name for name in options.sweep if not (options.one_rate and name == "embeddings")]
    runs = Runs(options.lake, base, options.steps, options.rows, options.log)
    found = {}
    for name in options.only:
        best = runs.best(name, sweep, options.one_rate)
        found[name] = best, [runs.loss(name, *best, seed) for seed in range(options.seeds)]
    tokens = options.steps * options.rows * base.row_length
    print(f"\n{base.model}\n{tokens:,} tokens, {options.steps} steps; held-out loss in nats per token\n")
    seeds = " | ".join(f"seed {seed}" for seed in range(options.seeds))
    print(f"| optimizer | lr, embeddings' lr, warm-up | {seeds} | mean | of AdamW | allowed |")
    print("|" + "---|" * (options.seeds + 5))
    reference = statistics.fmean(found["adamw"][1]) if "adamw" in found else float("nan")
    for name, ((rate, multiple, warm), losses) in found.items():
        ratio = statistics.fmean(losses) / reference
        shown = " | ".join(f"{loss:.3f}" for loss in losses)
        rates = f"{rate:.3g}, {rate * multiple:.3g}, {warm:.0%}"
        print(f"| {name} | {rates} | {shown} | {statistics.fmean(losses):.3f} | {ratio:.3f} | {ALLOWED.get(name, '')} |")


if __name__ == "__main__":
    main()
