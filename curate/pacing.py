"""Pacing: when an ordered stage opens its difficulty bins."""

from __future__ import annotations

import math

from schemas.stages import Stage

START = 0.25
"""Share of the bins open from the start where the recipe has none."""


def opening_times(stage: Stage, bins: int) -> list[float]:
    """Progress t, 0 to 1, at which each of some bins opens, ascending; the first is always open.

    As many bins are open as the open share of them comes to, rounded: bin b of n opens when the share reaches (b + 0.5) / n. From the
    start s the share is, linear and root: Platanios et al. 2019, "Competence-based curriculum learning", equations 7 and 8;
    exponential: s ** (1 - t); step: s, then everything from halfway.
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
