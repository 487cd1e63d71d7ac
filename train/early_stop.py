"""Early stopping: when a monitored held-out loss has stopped falling, and which step was best; all state fits in a checkpoint."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from schemas.settings import EarlyStopSettings


@dataclass
class EarlyStop:
    """Best value so far and evaluations since; fires only where settings are given.

    A value that is not finite counts as an evaluation without improvement and never becomes the best.

    Attributes:
        settings: when to fire; None never fires.
        best: lowest value so far.
        best_step: steps done (over the whole run) when it was seen, -1 before any.
        reference: value that the next must fall below by ``min_delta`` to count as improvement.
        waited: evaluations since one that counted; after it fired no more are counted.
        fired_at: steps done (over the whole run) when it fired, -1 before.
        until: steps done at the end of the cool-down, -1 before it fired.
    """

    settings: EarlyStopSettings | None
    best: float = math.inf
    best_step: int = -1
    reference: float = math.inf
    waited: int = 0
    fired_at: int = -1
    until: int = -1

    @property
    def monitor(self) -> str:
        """Name of the metric watched."""
        return self.settings.monitor if self.settings else "heldout"

    @property
    def target(self) -> float:
        """Value below which the next counts as improvement."""
        return self.reference - (self.settings.min_delta if self.settings else 0.0)

    def update(self, step: int, value: float) -> bool:
        """Take in an evaluation; return whether its value is the lowest so far."""
        improved = math.isfinite(value) and value < self.best
        if improved:
            self.best, self.best_step = value, step
        if self.fired_at >= 0:
            return improved
        if math.isfinite(value) and value < self.target:
            self.reference, self.waited = value, 0
        else:
            self.waited += 1
        return improved

    def fire(self, step: int, first_step: int, end_step: int) -> bool:
        """Fire if it is time before a step of a stage from ``first_step`` to ``end_step``; return whether it just did."""
        settings = self.settings
        if settings is None or self.fired_at >= 0 or self.waited < settings.patience or step - first_step < settings.min_steps:
            return False
        self.fired_at, self.until = step, min(step + settings.cooldown, end_step)
        return True

    def end(self, end_step: int) -> int:
        """Steps done at the end of a stage planned to ``end_step``."""
        return end_step if self.fired_at < 0 else self.until

    def factor(self, step: int) -> float:
        """What multiplies a step's learning rate: 1 until it fires, then falling by equal parts towards 0 at the end of the cool-down."""
        return 1.0 if self.fired_at < 0 else (self.until - step) / (self.until - self.fired_at + 1)

    def state(self) -> dict[str, Any]:
        """Everything but the settings, for a checkpoint (infinities as null)."""
        state = {name: value for name, value in asdict(self).items() if name != "settings"}
        return {name: None if value == math.inf else value for name, value in state.items()}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        for name, value in state.items():
            setattr(self, name, math.inf if value is None else value)
