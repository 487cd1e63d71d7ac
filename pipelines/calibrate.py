"""A short calibration: the first steps of a recipe's first stage on this machine's device, under a run of their own that leaves nothing."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from curate.stage import prepare_stage
from pipelines.trainer import TrainerError, dry_run
from schemas.errors import PlanError
from schemas.manifest import read_snapshot
from schemas.recipe import Recipe
from schemas.segments import read_segments
from schemas.settings import StageSettings
from schemas.store import lock, remove

_STEP = re.compile(r"^step +([0-9.]+) s", re.MULTILINE)


def measured_rate(root: Path, recipe: Recipe) -> float:
    """Positions a second of a training step after the first, one process on this machine.

    Raises:
        PlanError: the recipe has no stages, or its first cannot be planned.
        TrainerError: the step cannot be done.
    """
    if not recipe.stages:
        raise PlanError("there is no stage to measure", where="--calibrate", fix="give the recipe a stage")
    run = f"calibration-{secrets.token_hex(4)}"
    try:
        with lock(root / ".lock", "calibrate"):
            settings = prepare_stage(root, recipe, read_snapshot(root), run, 0)
        return _positions(root, settings) / _seconds(dry_run(root, settings))
    finally:
        remove(root / "runs" / run)


def _positions(root: Path, settings: StageSettings) -> int:
    """Positions of the stage's first step; one of shorter rows has as many."""
    first = read_segments(root / settings.segments)[0]
    lot = next(a.lot for share in first.sources for stream in share.streams for a in stream.allotments)
    return min(first.batch, first.rows) * next(each.row_length for each in settings.lots if each.lot == lot)


def _seconds(report: str) -> float:
    found = _STEP.search(report)
    if found is None:
        raise TrainerError(f"the dry run does not tell the time of a step: {report}", where="--calibrate")
    return max(float(found[1]), 1e-3)
