"""Claims of the training-efficiency literature, each measured here on small models: what holds, what does not, by seed.

    python bench/claims.py LAKE [--parts schedule precision early_stop speed memory] [--log claims.jsonl]

LAKE is the demo's (`make demo`); models have 2 layers and width 128 and are trained by the trainer's own loop on its first stage's source,
AdamW at .002 (embeddings .032) unless a part says otherwise. Each row is kept in the log as it comes and is not measured again, so a part
that was cut short goes on. Claims and parts:

- schedule: 30 to 50 % fewer epochs than at a constant rate (which has a sweep of its own, at seed 0). Cosine and wsd are planned
  for 50, 70 and 100 % of the constant run's steps; the least share that reaches its loss is interpolated.
- precision: BF16 loses nothing: held-out loss over that of FP32, by seed.
- early_stop: compute saved on `packages`, few rows trained on again and again, where held-out loss turns: the trainer's rule, patience 3,
  over the held-out losses of the whole plan.
- speed: mixed precision doubles the speed, compile alone gives 20 to 30 %: the demo's model, steps in turn.
- memory: mixed precision halves memory: bytes alive at once, eager, beside weights and gradients.

Recomputation's claim (80 % of memory for 10 to 30 %, or 33 %, of time) is measured by `bench/trainer.py --recompute`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from live_bytes import LiveBytes
from small_runs import planned, train

from schemas.settings import EarlyStopSettings, ModelSettings, OptimizerSettings, ScheduleSettings, StageSettings, TrainSettings
from train.compiling import compile_blocks, why_not
from train.early_stop import EarlyStop
from train.model import Decoder
from train.optim import build_optimizer
from train.precision import precision_context

STEPS, ROWS, SEEDS, RATE, MULTIPLE = 200, 4, 3, 2e-3, 16
SHARES = (0.5, 0.7, 1.0)
Values = list[float]


class Rows:
    """Measured rows by name, kept in a log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.done: dict[str, Values] = dict(map(json.loads, log.read_text().splitlines())) if log.exists() else {}

    def get(self, name: str, measure: Callable[[], Values]) -> Values:
        """Values of a row, measured unless they are known."""
        if name not in self.done:
            self.done[name] = measure()
            with self.log.open("a") as file:
                file.write(json.dumps([name, self.done[name]]) + "\n")
            print(f"  {name}: {', '.join(f'{value:.4f}' for value in self.done[name])}", flush=True)
        return self.done[name]


def settings(base: StageSettings, schedule: str, steps: int, lr: float = RATE, precision: str = "fp32") -> TrainSettings:
    return dataclasses.replace(
        base.training,
        precision=precision,
        batch_rows=ROWS,
        micro_batch_rows=ROWS,
        eval_every=0,
        eval_rows=64,
        checkpoint_every=0,
        early_stop=None,
        optimizer=OptimizerSettings(lr=lr, embedding_lr=lr * MULTIPLE),
        schedule=ScheduleSettings(name=schedule, warmup_steps=20),
    )


class Losses:
    """Held-out losses at the end of runs."""

    def __init__(self, rows: Rows, lake: Path, base: StageSettings) -> None:
        self.rows, self.lake, self.base = rows, lake, base

    def at(self, schedule: str, steps: int, seed: int, lr: float = RATE, precision: str = "fp32") -> float:
        """Held-out nats per token after a run."""

        def measure() -> Values:
            outcome, _ = train(self.lake, self.base, settings(self.base, schedule, steps, lr, precision), steps, seed)
            return [outcome.heldout[self.base.lots[0].source]]

        return self.rows.get(f"{schedule} {steps} steps at {lr:g}, {precision}, seed {seed}", measure)[0]


def schedule(losses: Losses) -> None:
    """Steps that a schedule needs to reach the loss of the best constant rate."""
    rate = min((RATE / 4, RATE / 2, RATE, RATE * 2), key=lambda lr: losses.at("constant", STEPS, 0, lr))
    constant = [losses.at("constant", STEPS, seed, rate) for seed in range(SEEDS)]
    print(f"constant at {rate:g}, {STEPS} steps: {listed(constant)}")
    for name in ("cosine", "wsd"):
        needed = []
        for seed in range(SEEDS):
            curve = [(share, losses.at(name, round(share * STEPS), seed)) for share in SHARES]
            needed.append(first_below(curve, constant[seed]))
        ends = [losses.at(name, STEPS, seed) - constant[seed] for seed in range(SEEDS)]
        print(f"{name}: reaches it after {', '.join(f'{share:.0%}' for share in needed)} of the steps; at equal steps {listed(ends)} nats")


def first_below(curve: list[tuple[float, float]], level: float) -> float:
    """Share at which a curve of (share, loss) first reaches a level, linear between points; inf where it does not, 0.5 where at once."""
    if curve[0][1] <= level:
        return curve[0][0]
    for (before, high), (after, low) in itertools.pairwise(curve):
        if low <= level:
            return before + (after - before) * (high - level) / (high - low)
    return math.inf


def precision(losses: Losses) -> None:
    """What BF16 costs in loss."""
    ratios = [losses.at("cosine", STEPS, seed, precision="bf16") / losses.at("cosine", STEPS, seed) for seed in range(SEEDS)]
    print(f"BF16 over FP32, held-out loss: {listed(ratios)}")


def early_stop(losses: Losses) -> None:
    """Steps not done, and the loss that stopping kept or gave away."""
    steps, every, source = 300, 20, "packages"
    base = planned(losses.lake, 2, 128, source=source)

    def curve(seed: int) -> Values:
        training = dataclasses.replace(settings(base, "constant", steps, RATE / 2), eval_every=every, eval_rows=40)
        return [*train(losses.lake, base, training, steps, seed)[1].points.values()]

    for seed in range(SEEDS):
        whole = losses.rows.get(f"{source}, constant, {steps} steps, every {every}, seed {seed}", lambda seed=seed: curve(seed))
        stop = EarlyStop(EarlyStopSettings(monitor=f"heldout/{source}", patience=3))
        for number, loss in enumerate(whole, 1):
            stop.update(number * every, loss)
            if stop.fire(number * every, 0, steps):
                break
        done = steps if stop.fired_at < 0 else stop.fired_at
        print(
            f"seed {seed}: stopped after {done} of {steps} steps ({1 - done / steps:.0%} saved), its best {stop.best:.3f}; the whole "
            f"plan's best is {min(whole):.3f}, and it ends at {whole[-1]:.3f}"
        )


def stepper(precision: str, compiled: bool, rows: int = 16) -> Callable[[], None]:
    """One training step of the demo's model."""
    model = Decoder(ModelSettings(layers=4, width=256, heads=4), 4096, 256, 1)
    if compiled:
        compile_blocks(model)
    optimizer = build_optimizer("adamw", model.named_parameters(), lr=1e-3)
    tokens = torch.randint(0, 4096, (rows, 256), generator=torch.Generator().manual_seed(0))
    rest = tokens.roll(-1, 1), torch.zeros_like(tokens), torch.arange(256).expand(tokens.shape).contiguous()

    def step() -> None:
        with precision_context(precision, torch.device("cpu")):
            loss = model(tokens, *rest)
        loss.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def speed(rows: Rows) -> None:
    """Steps of four kinds in turn."""
    kinds = {f"{p}, {'compiled' if c else 'eager'}": (p, c) for c in (False, True) for p in ("fp32", "bf16")}
    if reason := why_not(torch.device("cpu")):
        print(f"compile is left out: {reason}")
        kinds = {name: kind for name, kind in kinds.items() if not kind[1]}

    def measure() -> Values:
        steps = {name: stepper(*kind) for name, kind in kinds.items()}
        times: dict[str, Values] = {name: [] for name in steps}
        for round_ in range(14):
            for name, step in steps.items() if round_ % 2 else reversed(steps.items()):
                began = time.perf_counter()
                step()
                if round_ > 1:
                    times[name].append(time.perf_counter() - began)
        return [statistics.median(values) * 1e3 for values in times.values()]

    taken = dict(zip(kinds, rows.get(f"ms a step of {'; '.join(kinds)}, {torch.get_num_threads()} threads", measure), strict=True))
    for name, other in (
        ("bf16, eager", "fp32, eager"),
        ("fp32, compiled", "fp32, eager"),
        ("bf16, compiled", "bf16, eager"),
        ("bf16, compiled", "fp32, eager"),
    ):
        if name in taken:
            print(f"{name} is {taken[other] / taken[name]:.2f} times as fast as {other} ({taken[name]:.0f} against {taken[other]:.0f} ms)")


def memory(rows: Rows) -> None:
    """Most bytes alive at once in a step, beside weights and gradients."""

    def measure() -> Values:
        found = []
        for kind in ("fp32", "bf16"):
            step = stepper(kind, False)
            step()
            with LiveBytes() as live:
                step()
            found.append(live.peak / 2**20)
        return found

    wide, narrow = rows.get("MiB at the peak of a step, fp32 and bf16, 16 rows", measure)
    print(f"BF16 autocast: {narrow:.0f} of {wide:.0f} MiB beside weights and optimizer: {narrow / wide:.0%}")


def listed(values: Values) -> str:
    return ", ".join(f"{value:.3f}" for value in values) + f" (mean {statistics.fmean(values):.3f})"


def main() -> None:
    parts = ("schedule", "precision", "early_stop", "speed", "memory")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lake", type=Path)
    parser.add_argument("--parts", choices=parts, nargs="+", default=parts)
    parser.add_argument("--log", type=Path, default=Path("claims.jsonl"))
    options = parser.parse_args()
    rows = Rows(options.log)
    losses = Losses(rows, options.lake, planned(options.lake, 2, 128))
    for part in options.parts:
        print(part)
        if part in ("speed", "memory"):
            {"speed": speed, "memory": memory}[part](rows)
        else:
            {"schedule": schedule, "precision": precision, "early_stop": early_stop}[part](losses)


if __name__ == "__main__":
    main()
