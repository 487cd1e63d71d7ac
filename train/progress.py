"""What a person sees while a stage trains: one live line on a terminal, few lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from schemas.settings import Outcome
from train.callbacks import Callback, StepReport
from train.compiling import EXPECTED_GRAPHS

if TYPE_CHECKING:
    from train.loop import Trainer

_QUIET_SECONDS = 15.0
_LIVE_SECONDS = 0.2


class Progress(Callback):
    """Shows steps, loss, rate and time left.

    Args:
        label: what trains.
        first: step of the stage at which this process starts.
        steps: steps of the stage.
        shown: whether to write at all (rank 0).
        stream: where to; standard error by default.
    """

    def __init__(self, label: str, first: int, steps: int, *, shown: bool = True, stream: TextIO | None = None) -> None:
        self.label, self.steps, self.shown, self.stream = label, steps, shown, stream or sys.stderr
        self.live = self.stream.isatty()
        self._began, self._first, self._last = time.monotonic(), first, float("-inf")
        self._width = 0
        self._mfu, self._graphs = "", EXPECTED_GRAPHS

    def on_start(self, run: Trainer) -> None:
        """Say how to stop."""
        took = "the time of a checkpoint" if run.save_seconds is None else f"{run.save_seconds:.1f} s (the last checkpoint)"
        self.line(f"{self.label}: Ctrl-C or SIGTERM saves and stops within {took} and one step; a second one stops at once")
        self._graphs = EXPECTED_GRAPHS

    def on_step(self, run: Trainer, report: StepReport) -> None:
        """Draw the live line again."""
        self.step(report.done, report.result.loss, report.tokens_per_second, report.values.get("mfu"))
        if run.meter.compiles.graphs > self._graphs:
            self._graphs = run.meter.compiles.graphs
            self.line(f"compiled again at step {report.done}: {self._graphs} graphs so far, {run.meter.compiles.seconds:.0f} s in all")

    def on_evaluation(self, run: Trainer, values: Mapping[str, float]) -> None:
        """Write held-out losses."""
        sources = "".join(f", {name[8:]} {loss:.3f}" for name, loss in values.items() if name.startswith("heldout/"))
        sources += "".join(f", {name[9:]} {share:.1%}" for name, share in values.items() if name.startswith("accuracy/"))
        self.line(f"{self.label}  {run.step - run.stage.first_step}/{self.steps}  held out {values['heldout']:.3f}{sources}")

    def on_stop(self, run: Trainer, outcome: Outcome | None) -> None:
        """Write how the stage ended."""
        if outcome is not None:
            self.line(outcome.detail)

    def step(self, done: int, loss: float, tokens_per_second: float, mfu: float | None = None) -> None:
        """Show that ``done`` steps of the stage are done; utilisation stays shown until a newer one comes."""
        now = time.monotonic()
        self._mfu = f"  {mfu:.0%} of peak" if mfu is not None else self._mfu
        if not self.shown or (now - self._last < (_LIVE_SECONDS if self.live else _QUIET_SECONDS) and done < self.steps):
            return
        self._last = now
        left = (now - self._began) / max(1, done - self._first) * (self.steps - done)
        speed = f"{_short(tokens_per_second)} tokens/s{self._mfu}"
        text = f"{self.label}  {done}/{self.steps}  loss {loss:.3f}  {speed}  {_duration(left)} left"
        if not self.live:
            print(text, file=self.stream, flush=True)
            return
        filled = round(20 * done / max(1, self.steps))
        line = f"[{'#' * filled}{'.' * (20 - filled)}] {text}"
        print(f"\r{line.ljust(self._width)}", end="", file=self.stream, flush=True)
        self._width = len(line)

    def line(self, text: str) -> None:
        """Write a line that stays."""
        if self.shown:
            if self._width:
                print(f"\r{' ' * self._width}\r", end="", file=self.stream)
                self._width = 0
            print(text, file=self.stream, flush=True)

    def close(self) -> None:
        """Leave the live line."""
        if self.shown and self._width:
            print(file=self.stream, flush=True)
            self._width = 0


def _short(rate: float) -> str:
    return f"{rate:.0f}" if rate < 10_000 else f"{rate / 1e3:.1f} k" if rate < 1e6 else f"{rate / 1e6:.2f} M"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
