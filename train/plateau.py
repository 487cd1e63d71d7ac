"""Reduce on plateau: the learning rate falls when a held-out loss has stopped falling; all state fits in a checkpoint."""

from __future__ import annotations

import math
from typing import Any

from schemas.settings import PlateauSettings


class Plateau:
    """What the schedule's learning rate is multiplied by; 1 for ever without settings.

    A value that is not finite counts as an evaluation without improvement.

    Attributes:
        factor: the multiplier.
    """

    def __init__(self, settings: PlateauSettings | None) -> None:
        self.settings, self.factor = settings, 1.0
        self._best, self._waited = math.inf, 0

    def update(self, heldout: dict[str, float]) -> bool:
        """Take in an evaluation; return whether the factor fell."""
        settings = self.settings
        if settings is None:
            return False
        value = heldout[settings.monitor]
        if math.isfinite(value) and value < self._best - settings.min_delta:
            self._best, self._waited = value, 0
            return False
        self._waited += 1
        if self._waited < settings.patience or self.factor <= settings.min_ratio:
            return False
        self.factor, self._waited = max(settings.min_ratio, self.factor * settings.factor), 0
        return True

    def state(self) -> dict[str, Any]:
        """Everything but the settings, for a checkpoint (infinity as null)."""
        return {"factor": self.factor, "best": None if self._best == math.inf else self._best, "waited": self._waited}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self.factor, self._waited = state["factor"], state["waited"]
        self._best = math.inf if state["best"] is None else state["best"]
