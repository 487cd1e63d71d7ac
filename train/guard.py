"""Which steps are skipped: what is not finite, and by choice what lies far above the steps before it."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any

from schemas.settings import SpikeSettings

_NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_LEAST = 1e-3
"""Least deviation, as a share of the median, so that a window of nearly equal values does not make every step a spike."""


class Guard:
    """Judges steps by their loss and gradient norm, both over all ranks.

    Values that are not finite never enter the window. Finite ones do even when their step is skipped: median and deviation bear them, and
    where a new level lasts, it becomes the window's own after half its length instead of being skipped for ever.

    Attributes:
        in_a_row: steps in a row that were not finite, up to the last.
        spiked: whether the last one lay far above the window.
    """

    def __init__(self, settings: SpikeSettings | None) -> None:
        self.settings, self.in_a_row, self.spiked = settings, 0, False
        self._windows: dict[str, deque[float]] = {name: deque(maxlen=settings.window if settings else 0) for name in ("loss", "grad_norm")}

    def judge(self, loss: float, grad_norm: float) -> str:
        """Return why a step must be skipped, empty for a good one, and take its values in."""
        values = {"loss": loss, "grad_norm": grad_norm}
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        self.in_a_row = self.in_a_row + 1 if bad else 0
        why = f"{' and '.join(bad)} not finite" if bad else next((f"spike of {n}" for n, v in values.items() if self._spike(n, v)), "")
        self.spiked = bool(why) and not bad
        for name, value in values.items():
            if math.isfinite(value):
                self._windows[name].append(value)
        return why

    def _spike(self, name: str, value: float) -> bool:
        window = self._windows[name]
        if self.settings is None or len(window) < self.settings.window:
            return False
        middle = statistics.median(window)
        deviation = max(_NORMAL * statistics.median(abs(v - middle) for v in window), _LEAST * abs(middle))
        return value > middle + self.settings.threshold * deviation

    def state(self) -> dict[str, Any]:
        """Everything but the settings, for a checkpoint."""
        return {"in_a_row": self.in_a_row, **{name: list(window) for name, window in self._windows.items()}}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self.in_a_row = state["in_a_row"]
        for name, window in self._windows.items():
            window.extend(state[name])
