"""Pacing: when an ordered stage opens its difficulty bins."""

from __future__ import annotations

import math

from schemas.recipe import Stage

START = 0.25
"""Share of the bins open from the start where the recipe has none."""


def open_share(stage: Stage, progress: float) -> float:
    """Share of the bins, in the stage's order, that are open at a progress of 0 to 1.

    linear and root: Platanios et al. 2019, "Competence-based curriculum learning", equations 7 and 8; exponential: start ** (1 - t);
    step: the start, then everything from halfway.
    """
    start = START if stage.pacing_start is None else stage.pacing_start
    if stage.pacing == "linear":
        return start + (1 - start) * progress
    if stage.pacing == "root":
        return math.sqrt(start**2 + (1 - start**2) * progress)
    if stage.pacing == "exponential":
        return float(start ** (1 - progress))
    return start if progress < 0.5 else 1.0


def opening_times(stage: Stage, bins: int) -> list[float]:
    """Progress at which each of some bins opens, ascending; the first is always open.

    As many bins are open as the open share of them comes to, rounded: bin b of n opens when it reaches (b + 0.5) / n.
    """
    start = START if stage.pacing_start is None else stage.pacing_start
    times = [0.0]
    for number in range(1, bins):
        share = (number + 0.5) / bins
        if share <= start:
            times.append(0.0)
        elif stage.pacing == "linear":
            times.append((share - start) / (1 - start))
        elif stage.pacing == "root":
            times.append((share**2 - start**2) / (1 - start**2))
        elif stage.pacing == "exponential":
            times.append(1 - math.log(share) / math.log(start))
        else:
            times.append(0.5)
    return times
