"""The ledger's share of training: time in everything that notes rows, losses by document and metrics, and in publishing them.

    python bench/ledger.py LAKE STAGE_FOLDER

Trains a planned stage from where it is to its end, in this process, on one rank. Counted: the losses' sums by document piece, noting them,
finding which rows a step has, and the parts' tables with their fsyncs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import train.passes
from train.__main__ import main
from train.ledger import Recorder
from train.loop import Trainer
from train.stage import Stage

SPENT: dict[str, float] = {}


def timed(owner: Any, name: str) -> None:
    """Add up the time of a function under its name."""
    function: Callable[..., Any] = getattr(owner, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            SPENT[name] = SPENT.get(name, 0.0) + time.perf_counter() - began

    setattr(owner, name, wrapper)


if __name__ == "__main__":
    for owner, name in (
        (train.passes, "piece_losses"),
        (Stage, "rows"),
        *((Recorder, name) for name in ("pieces", "metrics", "event", "flush")),
    ):
        timed(owner, name)
    timed(Trainer, "_step")
    code = main(sys.argv[1:])
    steps = SPENT.pop("_step")
    flushed = SPENT["flush"]
    for name, seconds in SPENT.items():
        print(f"{name:14s} {seconds * 1e3:9.1f} ms  {seconds / (steps + flushed):8.4%}")
    print(f"together {sum(SPENT.values()) / (steps + flushed):.3%} of {steps + flushed:.1f} s in steps and publications")
    sys.exit(code)
