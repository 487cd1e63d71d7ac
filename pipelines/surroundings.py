"""Where a flow shows what it does: the terminal that started it, or Prefect's page (logs and progress artifacts)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.logging import get_run_logger

from curate.step import Progress


@dataclass(frozen=True)
class Surroundings:
    """What takes progress and lines for people."""

    progress: Progress
    say: Callable[[str], None]


_TERMINAL: ContextVar[Surroundings | None] = ContextVar("terminal", default=None)


@contextmanager
def terminal(surroundings: Surroundings) -> Iterator[None]:
    """Show flows that run inside the block on a terminal."""
    token = _TERMINAL.set(surroundings)
    try:
        yield
    finally:
        _TERMINAL.reset(token)


def surroundings() -> Surroundings:
    """The terminal when there is one, else the run's page in Prefect."""
    found = _TERMINAL.get()
    if found is not None:
        return found
    logger = get_run_logger()
    return Surroundings(PageProgress(logger.info), logger.info)


class PageProgress:
    """Progress as an artifact of the run for each step that works, and a log line when it is complete.

    Args:
        say: gets the lines.
    """

    PAUSE_SECONDS = 2.0

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._artifacts: dict[str, UUID] = {}
        self._done: Counter[str] = Counter()
        self._totals: dict[str, int] = {}
        self._shown = 0.0

    def start(self, step: str, total: int) -> None:
        """See ``curate.step.Progress``."""
        self._totals[step], self._done[step] = total, 0
        if total:
            key = f"progress-{step.replace('_', '-')}"
            self._artifacts[step] = create_progress_artifact(progress=0.0, key=key, description=f"{step}: {total} shards")  # type: ignore[assignment]

    def advance(self, step: str, counts: Mapping[str, int]) -> None:
        """See ``curate.step.Progress``; at most one request in two seconds."""
        self._done[step] += 1
        if time.monotonic() - self._shown >= self.PAUSE_SECONDS:
            self._show(step)

    def finish(self, step: str, done: int, skipped: int) -> None:
        """See ``curate.step.Progress``."""
        if step in self._artifacts:
            self._show(step)
        self._say(f"{step}: {done} shards done, {skipped} done before")

    def _show(self, step: str) -> None:
        self._shown = time.monotonic()
        update_progress_artifact(self._artifacts[step], progress=100.0 * self._done[step] / max(1, self._totals[step]))
