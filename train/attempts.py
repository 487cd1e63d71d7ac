"""Numbers of a run's process attempts, by the events that each left."""

from __future__ import annotations

import re
from pathlib import Path

_PART = re.compile(r"a(\d+)-s\d+-\d+\.parquet")


def next_attempt(run_folder: Path) -> int:
    """Number of a new process attempt: one above all that left events in any stage of the run."""
    found = [int(match[1]) for path in run_folder.glob("*/events/*") if (match := _PART.fullmatch(path.name))]
    return max(found, default=-1) + 1
