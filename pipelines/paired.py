"""Paired differences over seeds: their mean and Student's interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval."""

    mean: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        """Whether it excludes zero, so that there is a difference to speak of."""
        return self.low > 0 or self.high < 0


def paired_interval(differences: Sequence[float]) -> Interval:
    """Mean of at least two differences and its 95 % interval, mean -+ t * s / sqrt(n)."""
    mean, count = fmean(differences), len(differences)
    half = t_quantile(count - 1) * stdev(differences) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t that Student's distribution stays within, by both signs, with this probability."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(-t < T < t) for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd, cosine = freedom % 2, math.cos(angle)
    term = total = cosine if odd else 1.0
    if freedom == 1:
        return 2 * angle / math.pi
    for k in range(2 + odd, freedom - 1 + odd, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
