"""Learning-rate schedules: pure functions of a step within its stage, so that a resume cannot get them wrong."""

from __future__ import annotations

import math

from schemas.settings import ScheduleSettings


def scale(settings: ScheduleSettings, step: int, steps: int) -> float:
    """Learning rate of a step over its peak.

    Args:
        settings: the schedule.
        step: step of the stage, from 0.
        steps: steps planned for the stage; the last has ``min_ratio`` of the peak (except under ``constant``).
    """
    warmup = settings.warmup_steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if settings.name == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, steps - 1 - warmup))
    falling = 0.5 * (1 + math.cos(math.pi * progress)) if settings.name == "cosine" else 1 - progress
    return settings.min_ratio + (1 - settings.min_ratio) * falling
