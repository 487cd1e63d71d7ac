"""A callback that keeps a real trainer from ending before a test has sent it its signal, however late that is sent."""

from __future__ import annotations

import time
from pathlib import Path

from train.callbacks import Callback, StepReport
from train.loop import Trainer

HOLD = "tests.train.hold:make"
"""The callback, as ``training.callbacks`` names it."""


def hold_file(root: Path) -> Path:
    """Says for a lake when trainers wait, until a signal has come or it is gone: after n steps of each, or from n steps before the end."""
    return Path(f"{root}.hold")


class Hold(Callback):
    """See ``hold_file``, in which steps before the end are negative."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, run: Trainer, report: StepReport) -> None:
        """Wait."""
        self.steps += 1
        path = hold_file(run.stage.root)
        while path.is_file() and not run.interrupt.came:
            number = int(path.read_text() or 0)
            if self.steps < number or (number < 0 and run.stage.end_step - run.step > -number):
                return
            time.sleep(0.01)


def make() -> Callback:
    """The callback."""
    return Hold()
