"""Adaptive mixtures against a fixed one, with a source of pure noise among two that can be learnt: 5 seeds, paired, with 95 % intervals.

python bench/adaptive.py [SEEDS] [FOLDER] [fixed,speed,excess]
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

from curate.step import Silent
from pipelines.parameters import RunParameters
from pipelines.run import run_curriculum
from schemas.segments import read_segments

RECIPE = """
name: mixed
sources:
  words: {reader: jsonl, paths: [words.jsonl], max_epochs: 2}
  lists: {reader: jsonl, paths: [lists.jsonl], max_epochs: 2}
  noise: {reader: jsonl, paths: [noise.jsonl], max_epochs: 2}
tokenizer: {kind: byte}
pack: {row_length: 64}
holdout: {share: 0.05, max_documents: 20}
model: {layers: 2, width: 64, heads: 2}
training:
  {precision: fp32, batch_rows: 16, micro_batch_rows: 16, eval_every: 20, eval_rows: 32, checkpoint_every: 0, log_every: 20, threads: 1,
   schedule: {warmup_steps: 10}, optimizer: {lr: 3.0e-3}}
stages:
  - {name: all, tokens: 300000, mixture: {words: 1, lists: 1, noise: 1}}
"""
MIXTURES = {
    "fixed": (),
    "speed": ("stages.0.mixture=adaptive", "stages.0.adaptive={by: speed, start: {words: 1, lists: 1, noise: 1}}"),
    "excess": ("stages.0.mixture=adaptive", "stages.0.adaptive={by: excess, reference: REFERENCE, start: {words: 1, lists: 1, noise: 1}}"),
}
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t for two-sided 95 % by number of pairs."""


def write_texts(folder: Path) -> None:
    """Text of a small vocabulary; counted lists of it, which follow a rule; and letters drawn evenly."""
    draw = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 8))) for _ in range(60)]

    def text(kind: str) -> str:
        count = draw.randint(60, 120)
        if kind == "noise":
            return " ".join("".join(draw.choices(letters, k=draw.randint(2, 8))) for _ in range(count))
        if kind == "words":
            return " ".join(draw.choices(words, k=count))
        first = draw.randrange(60)
        return " ".join(f"{words[(first + n) % 60]} is {words[(first + 2 * n) % 60]}." for n in range(count // 2))

    for kind in ("words", "lists", "noise"):
        lines = [json.dumps({"text": text(kind)}) for _ in range(600)]
        (folder / f"{kind}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")


def train(folder: Path, mixture: str, seed: int) -> tuple[dict[str, float], float]:
    """Held-out losses by source at the end, and the noise's last weight over its first."""
    run = f"{mixture}-{seed}"
    changes = tuple(change.replace("REFERENCE", f"fixed-{seed}") for change in MIXTURES[mixture])
    parameters = RunParameters(recipe=folder / "recipe.yaml", lake=folder / "lake", changes=(f"seed={seed}", *changes), run=run)
    (outcome,) = run_curriculum(parameters, Silent(), lambda line: None)
    last = read_segments(folder / f"lake/runs/{run}/segments.json")[-1]
    weights = {share.source: share.quota for share in last.sources}
    return outcome.heldout, 3 * weights["noise"] / sum(weights.values())


def interval(values: list[float]) -> str:
    """Mean and 95 % interval."""
    half = T_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):+.4f} +- {half:.4f}"


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="gristmill-adaptive-"))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "recipe.yaml").is_file():  # texts that are there already are those of runs that are there already
        write_texts(folder)
    asked = sys.argv[3].split(",") if len(sys.argv) > 3 else list(MIXTURES)
    found = {mixture: [] for mixture in asked}  # type: dict[str, list[tuple[dict[str, float], float]]]
    print("seed  mixture  noise weight / start    words    lists    noise   (held out, nats per token)")
    for seed in range(seeds):
        for mixture in asked:
            losses, weight = train(folder, mixture, seed)
            found[mixture].append((losses, weight))
            print(
                f"{seed:4}  {mixture:7}  {weight:20.3f}  {losses['words']:7.4f}  {losses['lists']:7.4f}  {losses['noise']:7.4f}", flush=True
            )
    for mixture in (name for name in asked if name != "fixed"):
        pairs = list(zip(found[mixture], found["fixed"], strict=True))
        learnt = [(a["words"] + a["lists"] - b["words"] - b["lists"]) / 2 for (a, _), (b, _) in pairs]
        every = [a["all"] - b["all"] for (a, _), (b, _) in pairs]
        worst = max(weight for _, weight in found[mixture])
        print(
            f"{mixture}: noise ends at most at {worst:.3f} of its start; held-out loss against fixed, mean of words and lists "
            f"{interval(learnt)}, over all rows, noise among them {interval(every)}"
        )


if __name__ == "__main__":
    main()
