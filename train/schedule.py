"""Learning-rate schedules: pure functions of a step within its stage, so that a resume cannot get them wrong."""

from __future__ import annotations

import math

from schemas.errors import RecipeError
from schemas.settings import SCHEDULE_OPTIONS, ScheduleSettings


def scale(settings: ScheduleSettings, step: int, steps: int, before: float = 0.0) -> float:
    """Learning rate of a step over its peak.

    ``inverse_sqrt`` is Vaswani et al. 2017, equation 3; ``wsd`` (warm-up, stable, decay) Hu et al. 2024, its ``one_minus_sqrt`` cool-down
    Hägele et al. 2024.

    Args:
        settings: the schedule.
        step: step of the stage, from 0.
        steps: steps planned for the stage; under cosine, linear and wsd the last has ``min_ratio`` of the peak.
        before: the earlier stage's last learning rate over this stage's peak.
    """
    if settings.start == "continue":
        return before * _shape(settings, step, steps, 0)
    low, warmup = before if settings.start == "rewarm" else 0.0, settings.warmup_steps
    return low + (1 - low) * (step + 1) / (warmup + 1) if step < warmup else _shape(settings, step, steps, warmup)


def _shape(settings: ScheduleSettings, step: int, steps: int, warmup: int) -> float:
    """Learning rate over its peak of a step after the warm-up."""
    least = settings.min_ratio
    if settings.name == "constant":
        return 1.0
    if settings.name == "step":
        return max(least, settings.decay_factor ** ((step - warmup) // settings.decay_every))
    if settings.name == "inverse_sqrt":
        return max(least, math.sqrt((warmup + 1) / (step + 1)))
    if settings.name == "wsd":
        wanted = round(settings.cooldown if settings.cooldown >= 1 else settings.cooldown * steps)
        falling = max(1, min(wanted, steps - warmup))
        return least + (1 - least) * _falling(settings.cooldown_shape, (step + 1 - steps + falling) / falling)
    return least + (1 - least) * _falling(settings.name, (step - warmup) / max(1, steps - 1 - warmup))


def _falling(shape: str, progress: float) -> float:
    """Fall from 1 at progress 0 or before to 0 at progress 1 or after."""
    progress = min(1.0, max(0.0, progress))
    if shape == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    return 1 - (math.sqrt(progress) if shape == "one_minus_sqrt" else progress)


def check_schedule(settings: ScheduleSettings) -> None:
    """Refuse values out of range, and options that the schedule does not have.

    Raises:
        RecipeError: names the field and its value.
    """
    for field, holds, wanted in (
        ("warmup_steps", settings.warmup_steps >= 0, "at least 0"),
        ("min_ratio", 0 <= settings.min_ratio <= 1, "in [0, 1]"),
        ("decay_every", settings.decay_every >= 1, "at least 1"),
        ("decay_factor", 0 < settings.decay_factor < 1, "in (0, 1)"),
        ("cooldown", settings.cooldown > 0, "above 0"),
    ):
        if not holds:
            raise RecipeError(f"{getattr(settings, field)} is not {wanted}", where=f"training.schedule.{field}")
    default = ScheduleSettings()
    for field, owner in SCHEDULE_OPTIONS.items():
        if settings.name != owner and getattr(settings, field) != getattr(default, field):
            raise RecipeError(
                f"{settings.name!r} has no {field}", where=f"training.schedule.{field}", fix=f"leave it out, or set name to {owner}"
            )
