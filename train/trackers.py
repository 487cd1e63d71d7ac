"""Trackers: the metrics of a run in TensorBoard or Weights & Biases, as well as in the lake's own table."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from schemas.errors import RecipeError
from schemas.settings import Outcome
from train.callbacks import Callback, StepReport

if TYPE_CHECKING:
    from train.loop import Trainer


class Tracker(Callback):
    """Passes on the values of steps and evaluations; rank 0 alone. ``open`` and ``write`` are a tracker's own."""

    def on_start(self, run: Trainer) -> None:
        """Open the tracker where this process goes on."""
        if run.ranks.first:
            self.open(run)

    def on_step(self, run: Trainer, report: StepReport) -> None:
        """Write a step's values."""
        if run.ranks.first:
            self.write(report.step, report.values)

    def on_evaluation(self, run: Trainer, values: Mapping[str, float]) -> None:
        """Write an evaluation's values at the last step done."""
        if run.ranks.first:
            self.write(max(run.stage.first_step, run.step - 1), values)

    def on_stop(self, run: Trainer, outcome: Outcome | None) -> None:
        """Close the tracker."""
        if run.ranks.first:
            self.close()

    def open(self, run: Trainer) -> None:
        """Begin."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write values of a step of the run."""

    def close(self) -> None:
        """Make everything durable."""


class TensorBoard(Tracker):
    """Event files in ``tensorboard/`` of the stage's folder; a resumed process purges the steps it repeats."""

    def __init__(self) -> None:
        self._module = _imported("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None

    def open(self, run: Trainer) -> None:
        """Begin a file of events."""
        folder = run.stage.root / run.settings.folder / "tensorboard"
        self._writer = self._module.SummaryWriter(str(folder), purge_step=run.step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar for each value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


class Wandb(Tracker):
    """A W&B run for each stage, in ``wandb/`` of the stage's folder; offline unless a key or WANDB_MODE says otherwise."""

    def __init__(self) -> None:
        self._module = _imported("wandb", "wandb")

    def open(self, run: Trainer) -> None:
        """Begin, or go on with, the stage's run."""
        settings = run.settings
        folder = run.stage.root / settings.folder
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        config = {"model": dataclasses.asdict(settings.model), "training": dataclasses.asdict(settings.training)}
        self._module.init(
            project=os.environ.get("WANDB_PROJECT", "gristmill"),
            group=settings.run,
            name=f"{settings.run}-{settings.stage}",
            dir=str(folder),
            mode=mode,
            config=config,
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log values under the step's number."""
        self._module.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._module.finish()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": Wandb}
"""Trackers by name."""


def _imported(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RecipeError(f"{package} is not installed", where="training.trackers", fix=f"pip install {package}") from error
