"""How a stage ended: the losses it began and ended with, and the sentence for people."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from schemas.settings import Outcome
from train.early_stop import EarlyStop
from train.stage import Stage
from train.step import StepResult


class StageLosses:
    """Mean training loss over a stage's first and last ``count`` steps."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._first: list[tuple[float, float]] = []
        self._recent: deque[tuple[float, float]] = deque(maxlen=count)

    def add(self, result: StepResult) -> None:
        """Count a step that was not skipped."""
        pair = (float(result.nats.sum()), float(result.tokens.sum()))
        if len(self._first) < self.count:
            self._first.append(pair)
        self._recent.append(pair)

    @property
    def first(self) -> float:
        """Nats per token over the first steps; NaN before any."""
        return _mean(self._first)

    @property
    def last(self) -> float:
        """Nats per token over the last steps; NaN before any."""
        return _mean(self._recent)

    def state(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        return {"first": list(self._first), "recent": list(self._recent)}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self._first = [(nats, tokens) for nats, tokens in state["first"]]
        self._recent.extend((nats, tokens) for nats, tokens in state["recent"])


def _mean(pairs: list[tuple[float, float]] | deque[tuple[float, float]]) -> float:
    tokens = sum(tokens for _, tokens in pairs)
    return sum(nats for nats, _ in pairs) / tokens if tokens else math.nan


def stage_outcome(
    stage: Stage, stop: EarlyStop, losses: StageLosses, heldout: dict[str, float], *, end: int, start_next: int, checkpoint: str
) -> Outcome:
    """Sum up a stage.

    Args:
        stage: the stage.
        stop: its early stop.
        losses: its training losses.
        heldout: its last evaluation.
        end: step before which it ended.
        start_next: step that the next stage goes on from: ``end``, or earlier where the best checkpoint is handed on.
        checkpoint: the checkpoint before ``start_next``.
    """
    return Outcome(
        reason="early_stop" if end < stage.end_step else "finished",
        detail=_sentence(stage, stop, end, start_next),
        next_row=stage.next_row(start_next),
        next_step=start_next,
        checkpoint=checkpoint,
        first_loss=losses.first,
        last_loss=losses.last,
        heldout={"all" if name == "heldout" else name[8:]: loss for name, loss in heldout.items() if name.startswith("heldout")},
        returned=tuple((a.lot, a.start, a.stop) for a in stage.leftover(start_next)),
    )


def _sentence(stage: Stage, stop: EarlyStop, end: int, start_next: int) -> str:
    done, name = end - stage.first_step, stage.settings.stage
    text = f"{name} trained all its {done} steps"
    if end < stage.end_step:
        text = (
            f"{name} stopped early after {done} of {stage.steps} steps: {stop.monitor} did not fall below "
            f"{stop.target:.4f} in {stop.waited} evaluations"
        )
        cooled = stop.until - stop.fired_at
        text += f"; its last {cooled} steps cooled down" if cooled else ""
    return text if start_next == end else f"{text}; the next stage starts from the best checkpoint, after {start_next - stage.first_step}"
