"""Callbacks: what the loop tells others as it goes, and how a user adds one by ``package:function``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.errors import RecipeError
from schemas.settings import Outcome

if TYPE_CHECKING:
    from train.loop import Trainer
    from train.stage import MicroBatch
    from train.step import StepResult


@dataclass(frozen=True)
class StepReport:
    """A step that was done.

    Attributes:
        step: its number over the whole run, from 0.
        done: steps of the stage done, this one included.
        batches: this rank's micro-batches.
        result: what came of it.
        values: its metrics by name, as the metrics table has them.
        tokens_per_second: valid tokens over all ranks by the step's wall time.
    """

    step: int
    done: int
    batches: Sequence[MicroBatch]
    result: StepResult
    values: Mapping[str, float]
    tokens_per_second: float


class Callback:
    """Told of what happens, after it happened; each method may be overridden, and by itself does nothing.

    Every rank calls the same methods in the same order, so they may exchange; only ``run.ranks.first`` should write or speak. What a
    callback raises ends the run as any error does: nothing is saved, and the next start goes on from the last checkpoint.
    """

    def on_start(self, run: Trainer) -> None:
        """Everything is built and loaded; no step was done yet by this process."""

    def on_step(self, run: Trainer, report: StepReport) -> None:
        """A step was done, or skipped."""

    def on_evaluation(self, run: Trainer, values: Mapping[str, float]) -> None:
        """Held-out rows were measured."""

    def on_checkpoint(self, run: Trainer, path: str, seconds: float) -> None:
        """A checkpoint is durable; its path is relative to the lake."""

    def on_stop(self, run: Trainer, outcome: Outcome | None) -> None:
        """The stage ended; or, with no outcome, the process was asked to stop and has saved."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold for a resume to go on as if nothing had happened, as JSON."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the state of a checkpoint."""


def load_callbacks(names: Sequence[str]) -> dict[str, Callback]:
    """Import and call each ``package.module:function``, which returns a ``Callback``.

    The code is the user's own, on this machine: modules are found from the folder the trainer runs in and among installed packages.

    Raises:
        RecipeError: a name of another form, one that cannot be imported, or one that returns something else.
    """
    made: dict[str, Callback] = {}
    for name in names:
        module, _, function = name.partition(":")
        if not module or not function:
            raise RecipeError(f"{name!r} is not of the form package:function", where="training.callbacks")
        try:
            callback = getattr(importlib.import_module(module), function)()
        except (ImportError, AttributeError) as error:
            raise RecipeError(
                f"cannot import {name!r}: {error}", where="training.callbacks", fix="run from the folder that has it, or install it"
            ) from error
        if not isinstance(callback, Callback):
            raise RecipeError(f"{name!r} returned {type(callback).__name__}, not a train.callbacks.Callback", where="training.callbacks")
        made[name] = callback
    return made
