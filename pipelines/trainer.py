"""Runs the trainer as a process of its own, and stops it the way that lets it save.

Failure model. The trainer writes to ``trainer.log`` in its stage's folder, never to a pipe, and leads a session of its own: when the
command or flow that started it dies, it trains on. It holds a lock on ``.trainer`` (a descriptor inherited at its start, so the kernel
frees it at its death, however it dies); whoever asks for the stage while the lock is held follows the log until the lock is free.
Being cancelled (Ctrl-C, SIGTERM, Prefect) turns into SIGTERM for the trainer's process group, a wait for its checkpoint, then SIGKILL.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from schemas.errors import DONE, SAVED, USER_ERROR, GristmillError
from schemas.settings import Outcome, StageSettings, read_outcome
from schemas.store import holder, taken

LOG, LOCK = "trainer.log", ".trainer"
POLL_SECONDS = 0.1


class TrainerError(GristmillError):
    """The trainer ended without finishing its stage."""


class Interrupted(TrainerError):
    """The trainer was stopped and has saved its state."""

    exit_code = SAVED


def run_trainer(root: Path, stage: StageSettings, echo: Callable[[str], None], ranks: int = 1, grace: float = 120.0) -> Outcome:
    """Train a stage to its end, resuming from its last checkpoint, and return how it ended.

    Args:
        root: the lake.
        stage: the prepared stage.
        echo: gets the trainer's output line by line.
        ranks: processes; more than one run under torchrun.
        grace: seconds between SIGTERM and SIGKILL when cancelled.

    Raises:
        TrainerError: the trainer failed; holds its own last words.
        Interrupted: it was stopped by someone else after saving.
    """
    folder = root / stage.folder
    log = _Follower(folder / LOG, echo)
    with _claim(folder / LOCK, log, grace) as descriptor:
        ended = read_outcome(folder)
        if ended is not None:
            return ended
        log.skip()
        with (folder / LOG).open("ab") as output:
            process = subprocess.Popen(
                command(root, folder, ranks),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
                pass_fds=(descriptor,),
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{process.pid}\n".encode(), 0)
    try:
        while process.poll() is None:
            log.advance()
            time.sleep(POLL_SECONDS)
    except BaseException:
        stop(process.pid, lambda: process.poll() is None, log.advance, grace)
        raise
    log.advance()
    refused = log.refusal if ranks > 1 and process.returncode == 1 else []  # torchrun ends with 1 whatever its processes end with
    return _judge(USER_ERROR if refused else process.returncode, folder, stage, refused or log.last)


def dry_run(root: Path, stage: StageSettings, ranks: int = 1) -> str:
    """Build a prepared stage and do its first step in a process of its own, without writing anything; return its report.

    Raises:
        TrainerError: it cannot be built or run; holds the trainer's last words.
    """
    folder = root / stage.folder
    done = subprocess.run([*command(root, folder, ranks), "--dry-run"], env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != DONE:
        words = "\n  ".join(done.stderr.strip().splitlines()[-12:])
        raise TrainerError(words or f"exit code {done.returncode}", where=f"dry run of stage {stage.stage!r} of run {stage.run!r}")
    return done.stdout.rstrip("\n")


def command(root: Path, folder: Path, ranks: int) -> list[str]:
    """The trainer's command line."""
    if ranks == 1:
        return [sys.executable, "-m", "train", str(root), str(folder)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, "-m", "train", str(root), str(folder)]


def environment() -> dict[str, str]:
    """This process's environment, in which ``python -m train`` finds the same package from any folder."""
    spec = find_spec("train")
    if spec is None or spec.origin is None:
        raise TrainerError("the train package is not installed", fix="pip install gristmill")
    home = str(Path(spec.origin).parent.parent)
    paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def live_trainer(folder: Path) -> int | None:
    """Process id of the trainer that works on a stage now, if any."""
    return lock_holder(folder / LOCK)


def lock_holder(path: Path) -> int | None:
    """Process id in a lock file that a live process holds, 0 where it says none; None when it is free."""
    text = holder(path)
    return None if text is None else int(text) if text.isdigit() else 0


def stop(pid: int, alive: Callable[[], bool], meanwhile: Callable[[], None], grace: float) -> None:
    """SIGTERM to a process group, a wait of ``grace`` seconds for its checkpoint, then SIGKILL; a second Ctrl-C does not cut it short."""
    with _uninterrupted(), contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while alive() and time.monotonic() < deadline:
            meanwhile()
            time.sleep(POLL_SECONDS)
        if alive():
            os.killpg(pid, signal.SIGKILL)
        while alive():
            time.sleep(POLL_SECONDS)
        meanwhile()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM meanwhile (in the main thread; elsewhere signals do not arrive)."""
    try:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _claim(path: Path, log: _Follower, grace: float) -> Iterator[int]:
    """Yield a descriptor that holds the stage's lock, after waiting for a live trainer to end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not taken(descriptor):
            text = os.pread(descriptor, 32, 0).strip()
            log.say(f"a trainer is at work on this stage already (process {text.decode() or '?'}): following it")
            try:
                while not _try_lock(descriptor):
                    log.advance()
                    time.sleep(POLL_SECONDS)
            except BaseException:
                if text.isdigit():
                    stop(int(text), lambda: not _try_lock(descriptor), log.advance, grace)
                raise
            log.advance()
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Follower:
    """Passes on what is appended to a log, whole lines at a time, and remembers the last ones.

    Attributes:
        last: the last lines.
        refusal: the first error that the trainer told, with what to do; torchrun's own report of it is not passed on.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path, self.say = path, say
        self.last: list[str] = []
        self.refusal: list[str] = []
        self._reported = False
        self._rest = b""
        self._offset = 0
        self.skip()

    def skip(self) -> None:
        """Go to the end of the log."""
        self._offset = self.path.stat().st_size if self.path.is_file() else 0
        self._rest = b""

    def advance(self) -> None:
        """Pass on the whole lines that were added."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").rsplit("\r", 1)[-1]
            self.last = [*self.last[-39:], text]
            if (text.startswith("error: ") and not self.refusal) or (text.startswith("  -> ") and len(self.refusal) == 1):
                self.refusal.append(text)
            self._reported |= bool(self.refusal) and "torch/distributed/elastic/" in text
            if not self._reported:
                self.say(text)


def _judge(code: int, folder: Path, stage: StageSettings, last: Sequence[str]) -> Outcome:
    where = f"stage {stage.stage!r} of run {stage.run!r}"
    again = "run the same command again: it resumes at the last checkpoint"
    if code == DONE:
        outcome = read_outcome(folder)
        if outcome is None:
            raise TrainerError("the trainer ended without an outcome", where=where, fix=f"read {folder / LOG}")
        return outcome
    if code == SAVED:
        raise Interrupted("training was interrupted; its state is saved", where=where, fix=again)
    words = "\n  ".join([line for line in last if line.strip()][-12:])
    if code == USER_ERROR:
        raise TrainerError(words or "the trainer refused its settings", where=where)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
    raise TrainerError(f"the trainer {how}:\n  {words}", where=where, fix=f"the whole output is in {folder / LOG}; {again}")
