"""Planning at size: 10 million documents, 20 sources, 5 stages; time and peak memory, and the size of what is stored.

python bench/plan.py [DOCUMENTS]
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np

from curate.budget import LotBudget
from curate.forecast import forecast
from curate.pack import pack
from curate.plan import plan_curriculum
from schemas.recipe import Recipe
from schemas.segments import segment_to_json

SOURCES, BINS, ROW_LENGTH = 20, 4, 2048


def recipe() -> Recipe:
    """20 sources of unequal weight, 5 stages, ordered and shuffled, the last one taking all that is left."""
    names = [f"s{number:02d}" for number in range(SOURCES)]
    weights = {name: 1 / (number + 1) for number, name in enumerate(names)}
    stages = [
        {"name": f"stage{n}", "tokens": 400_000_000, "mixture": weights, "order": "easy_to_hard" if n % 2 else "shuffled"} for n in range(4)
    ]
    return Recipe.model_validate(
        {
            "name": "large",
            "sources": {name: {"reader": "jsonl", "paths": ["x"], "max_epochs": 1 + number % 4} for number, name in enumerate(names)},
            "pack": {"row_length": ROW_LENGTH},
            "training": {"batch_rows": 512},
            "stages": [*stages, {"name": "rest", "tokens": "rest"}],
        }
    )


def main() -> None:
    documents = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    draw = np.random.default_rng(0)
    started = time.perf_counter()
    lots = []
    made = recipe()
    for name, source in made.sources.items():
        for level in range(BINS):
            share = documents // (SOURCES * BINS)
            lengths = np.exp(draw.normal(6.2, 1.1, share)).astype(np.int64) + 2
            packing = pack(lengths, ROW_LENGTH, 8)
            lots.append(
                LotBudget(f"{name}-{level}", name, level, int(source.epochs), packing.rows, int(packing.length.sum()), share, ROW_LENGTH)
            )
    packed = time.perf_counter()
    plans = plan_curriculum(made, lots)
    planned = time.perf_counter()
    found = forecast(plans, made.model, 32_000, made.pack.row_length)
    segments = [segment for plan in plans for segment in plan.segments]
    done = time.perf_counter()
    size = len(json.dumps([segment_to_json(segment) for segment in segments]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{documents:,} documents, {len(lots)} lots, {sum(lot.uses for lot in lots):,} uses, {found.tokens:,} tokens planned")
    print(f"lengths and packing {packed - started:.1f} s, plan {planned - packed:.2f} s, forecast {done - planned:.3f} s")
    print(f"{len(segments)} segments, {size / 1024:.0f} KiB as JSON; peak resident {peak:.0f} MiB")


if __name__ == "__main__":
    main()
