"""Where a flow shows what it does and is paused: the terminal that started it, or Prefect's page (logs and progress artifacts).

A run that is paused on Prefect's page stops as a cancelled one does, with everything saved, and its process ends; resuming it starts the
flow from its top, which finds in the lake what is done. Prefect by itself looks at a pause only between tasks, and training is one task.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from uuid import UUID

import httpx
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, Pause
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Suspended

from curate.step import Progress
from pipelines.watch import be_watched

UPDATE_SECONDS = 2.0
"""Least time between two requests for one artifact."""
ASK_SECONDS = 5.0
"""Least time between two questions whether the run is paused."""
AWAY = (httpx.HTTPError, ObjectNotFound)
"""The server does not answer, or no longer knows the run: work goes on without its page."""


@dataclass(frozen=True)
class Surroundings:
    """What takes progress and lines for people.

    Attributes:
        progress: for steps of curation.
        say: takes lines.
        on_page: whether Prefect's page is all that there is; then both raise ``Pause`` when the run was paused there.
    """

    progress: Progress
    say: Callable[[str], None]
    on_page: bool = False

    def trainer(self, key: str) -> Callable[[str], None]:
        """What takes a trainer's lines; on Prefect's page also an artifact of this key."""
        return TrainingProgress(key, self.say) if self.on_page else self.say


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
    be_watched()
    logger = get_run_logger()
    watch = PauseWatch(UUID(str(flow_run.root_flow_run_id)))

    def say(line: str) -> None:
        logger.info(line)
        watch.heed()

    return Surroundings(PageProgress(say, watch.heed), say, on_page=True)


class PauseWatch:
    """Asks Prefect now and then whether a flow run was paused.

    Args:
        run: the run that users pause, the outermost one.
    """

    def __init__(self, run: UUID) -> None:
        self._run = run
        self._asked = time.monotonic()

    def heed(self) -> None:
        """Look, at most once in ``ASK_SECONDS``.

        Raises:
            Pause: it was.
        """
        if time.monotonic() - self._asked < ASK_SECONDS:
            return
        self._asked = time.monotonic()
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(self._run).state
                if state is None or not state.is_paused():
                    return
                if not state.state_details.pause_reschedule:  # resumed by a new process, since this one ends
                    state = Suspended()
                    client.set_flow_run_state(self._run, state, force=True)
        except AWAY:
            return  # and pauses nobody
        raise Pause(state=state)


class PageProgress:
    """Progress as an artifact of the run for each step that works, and a log line when it is complete.

    Args:
        say: gets the lines.
        heed: called after each shard.
    """

    def __init__(self, say: Callable[[str], None], heed: Callable[[], None]) -> None:
        self._say, self._heed = say, heed
        self._artifacts: dict[str, UUID] = {}
        self._done: Counter[str] = Counter()
        self._totals: dict[str, int] = {}
        self._shown = float("-inf")

    def start(self, step: str, total: int) -> None:
        """See ``curate.step.Progress``."""
        self._totals[step], self._done[step] = total, 0
        if total:
            key = f"progress-{step.replace('_', '-')}"
            with suppress(*AWAY):
                self._artifacts[step] = create_progress_artifact(progress=0.0, key=key, description=f"{step}: {total} shards")  # type: ignore[assignment]

    def advance(self, step: str, counts: Mapping[str, int]) -> None:
        """See ``curate.step.Progress``."""
        self._done[step] += 1
        if time.monotonic() - self._shown >= UPDATE_SECONDS:
            self._show(step)
        self._heed()

    def finish(self, step: str, done: int, skipped: int) -> None:
        """See ``curate.step.Progress``."""
        self._show(step)
        self._say(f"{step}: {done} shards done, {skipped} done before")

    def _show(self, step: str) -> None:
        self._shown = time.monotonic()
        if step not in self._artifacts:
            return
        with suppress(*AWAY):
            update_progress_artifact(self._artifacts[step], progress=100.0 * self._done[step] / max(1, self._totals[step]))


class TrainingProgress:
    """What a trainer says, passed on; its lines of progress are also an artifact of the run.

    Args:
        key: the artifact's.
        say: gets the lines.
    """

    # 'first  120/400  loss 3.214  17.4 k tokens/s  0:42 left', as train.progress writes it.
    _LINE = re.compile(r"\S+  (\d+)/(\d+)  (loss .*)")

    def __init__(self, key: str, say: Callable[[str], None]) -> None:
        self._key, self._say = key, say
        self._artifact: UUID | None = None
        self._shown = float("-inf")

    def __call__(self, line: str) -> None:
        """Take a line."""
        self._say(line)
        found = self._LINE.fullmatch(line.rstrip())
        if found is None or (found[1] != found[2] and time.monotonic() - self._shown < UPDATE_SECONDS):
            return
        self._shown = time.monotonic()
        progress = 100.0 * int(found[1]) / max(1, int(found[2]))
        with suppress(*AWAY):
            if self._artifact is None:
                self._artifact = create_progress_artifact(progress=progress, key=self._key, description=found[0])  # type: ignore[assignment]
            else:
                update_progress_artifact(self._artifact, progress=progress, description=found[0])
