"""Shows how far steps are: live bars with rate and time left on a terminal, a line a step elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from curate.step import Progress as Reporter

Tell = Callable[[int, int], None]
"""Takes how many are done, and how many there are (0: nobody knows)."""
MOMENT_SECONDS, LOOK_SECONDS = 1.0, 0.2
"""A query is followed after the first, and looked at so often."""


def untold(done: int, total: int) -> None:
    """Nobody looks."""


class Bars:
    """Live bars, one a step; a step that had nothing to do leaves one line.

    Args:
        bars: the live display.
    """

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._rates: dict[str, _Rate] = {}

    def start(self, step: str, total: int) -> None:
        """See ``curate.step.Progress``."""
        self._rates[step] = _Rate()
        if total:
            self._tasks[step] = self._bars.add_task(step, total=total, rate="")

    def advance(self, step: str, counts: Mapping[str, int]) -> None:
        """See ``curate.step.Progress``."""
        self._bars.update(self._tasks[step], advance=1, rate=self._rates[step].add(counts))

    def finish(self, step: str, done: int, skipped: int) -> None:
        """See ``curate.step.Progress``."""
        task = self._tasks.pop(step, None)
        if task is not None:
            self._bars.remove_task(task)
        self._bars.console.print(self._rates[step].line(step, done, skipped), highlight=False)


class Lines:
    """One line for each step, when it is complete.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rates: dict[str, _Rate] = {}

    def start(self, step: str, total: int) -> None:
        """See ``curate.step.Progress``."""
        self._rates[step] = _Rate()

    def advance(self, step: str, counts: Mapping[str, int]) -> None:
        """See ``curate.step.Progress``."""
        self._rates[step].add(counts)

    def finish(self, step: str, done: int, skipped: int) -> None:
        """See ``curate.step.Progress``."""
        self._console.print(self._rates[step].line(step, done, skipped), highlight=False, soft_wrap=True)


class _Rate:
    """What a step has counted since it began."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._sums: Counter[str] = Counter()

    def add(self, counts: Mapping[str, int]) -> str:
        self._sums.update(counts)
        return self._per_second(time.monotonic() - self._begin)

    def _per_second(self, seconds: float) -> str:
        rates = []
        documents = self._sums["documents"] or self._sums["records_in"]
        size = self._sums["bytes"] or self._sums["bytes_in"]
        if documents:
            rates.append(f"{documents / max(seconds, 1e-3):,.0f} documents/s")
        if size:
            rates.append(f"{size / 1e6 / max(seconds, 1e-3):,.1f} MB/s")
        return ", ".join(rates)

    def line(self, step: str, done: int, skipped: int) -> str:
        if not done:
            return f"{step:<15} done before ({skipped} shard{'s' * (skipped != 1)})"
        seconds = time.monotonic() - self._begin
        before = f", {skipped} done before" if skipped else ""
        return f"{step:<15} {done} shard{'s' * (done != 1)}{before} in {seconds:.1f} s  {self._per_second(seconds)}".rstrip()


@contextmanager
def counted(title: str, unit: str, silent: bool = False) -> Iterator[Tell]:
    """A bar on standard error with rate and time left, of work that tells how many of how many are done; nothing without a terminal.

    Args:
        title: what is done.
        unit: what is counted.
        silent: show nothing at all, as where JSON is asked for.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit}  {{task.fields[rate]}}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # What is printed meanwhile goes where it always does, perhaps into a file.
    hidden = silent or not console.is_terminal
    bars = Progress(*columns, console=console, transient=True, disable=hidden, redirect_stdout=False, redirect_stderr=False)
    with bars:
        task = bars.add_task(title, total=None, rate="")
        yield lambda done, total: bars.update(task, completed=done, total=total or None, rate=_speed(bars.tasks[0].speed))


@contextmanager
def asking(db: DuckDBPyConnection, silent: bool = False) -> Iterator[None]:
    """A bar of how much of a query is done, once it takes longer than a moment; nothing without a terminal.

    Args:
        db: the connection; its queries are followed, one after another.
        silent: see ``counted``.
    """
    if silent or not Console(stderr=True).is_terminal:
        yield
        return
    ended = Event()

    def follow() -> None:
        if ended.wait(MOMENT_SECONDS):
            return
        with counted("query", "%") as tell:
            while not ended.wait(LOOK_SECONDS):
                tell(max(0, int(db.query_progress())), 100)

    following = Thread(target=follow, daemon=True)
    following.start()
    try:
        yield
    finally:
        ended.set()
        following.join()


def _speed(speed: float | None) -> str:
    return "" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.1f}/s"


@contextmanager
def reporter(console: Console) -> Iterator[Reporter]:
    """A progress fit for where the console writes."""
    if not console.is_terminal:
        yield Lines(console)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<15}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("shards  {task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        yield Bars(bars)
