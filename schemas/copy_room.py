"""What stays of a lake in an object store: which data files' bytes its working copy keeps, for whom, and which are given up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import LakeError

TEMPORARY = ".tmp-"
USERS = ".users"
BOUND = 50_000_000_000
HOLLOW, WHOLE = 0, 0o444
"""Modes of a file whose bytes are not here, and of one that is as the store has it."""
_DATA = frozenset((".parquet", ".arrow", ".safetensors"))


def cache_bound() -> int:
    """Bytes of data files that a working copy may keep.

    Raises:
        LakeError: GRISTMILL_CACHE_BYTES is no number of bytes.
    """
    text = os.environ.get("GRISTMILL_CACHE_BYTES", str(BOUND))
    try:
        return int(float(text))
    except ValueError as error:
        raise LakeError(f"{text!r} is not a number of bytes", where="GRISTMILL_CACHE_BYTES", fix="write for example 5e10") from error


def is_data(relative: str) -> bool:
    """Whether a file's bytes come when they are first needed; those of others come with each pull."""
    parts = relative.split("/")
    if parts[0] == "runs":
        return len(parts) > 4 and parts[3].partition(".")[0] in ("checkpoints", "written")
    return len(parts) > 1 and parts[0] != "ablation" and Path(relative).suffix in _DATA


class Room:
    """The bytes in a folder, at most so many but for those in use.

    Attributes:
        root: the folder.
        brought: bytes of data files that this process has brought.
        others: bytes here that ``brought`` does not count, as of the last look; infinite before the first.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.brought = 0
        self.others = float("inf")
        self._guard = threading.Lock()

    def use(self) -> Use:
        """Keep what is brought from now on, until the use ends or is renewed."""
        return Use(self.root / USERS)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Keep what is brought from now on until the block ends."""
        use = self.use()
        try:
            yield
        finally:
            use.end()

    def shrink(self) -> None:
        """Make hollows of the data files not used for longest while they take more than the bound and no process uses them."""
        bound = cache_bound()
        if self.others + self.brought <= bound:
            return
        brought = self.brought  # before looking: a file that comes meanwhile is then counted once or twice, never not at all
        whole = [(seen.st_atime_ns, seen, name) for name, seen in self.files() if stat.S_IMODE(seen.st_mode) == WHOLE and is_data(name)]
        used = sum(seen.st_size for _, seen, _ in whole)
        if used > bound:
            oldest = oldest_use(self.root / USERS)
            for when, seen, name in sorted(whole, key=lambda each: each[0]):
                if used <= bound * 0.9 or when >= oldest:
                    break
                with contextlib.suppress(FileNotFoundError):
                    self.hollow(name, seen.st_size, seen.st_mtime)
                used -= seen.st_size
        self.others = used - brought

    def count(self, size: int) -> None:
        """Note that bytes of a data file came."""
        with self._guard:
            self.brought += size

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Path and status of each file, hidden ones left out."""
        pending = [self.root]
        while pending:
            with contextlib.suppress(FileNotFoundError), os.scandir(pending.pop()) as folder:
                for each in folder:
                    if each.name.startswith("."):
                        continue
                    if each.is_dir(follow_symlinks=False):
                        pending.append(Path(each.path))
                    else:
                        with contextlib.suppress(FileNotFoundError):
                            yield os.path.relpath(each.path, self.root), each.stat(follow_symlinks=False)

    def is_here(self, relative: str) -> bool:
        """Whether a file's bytes are here."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return stat.S_IMODE((self.root / relative).stat().st_mode) != HOLLOW
        return False

    def used(self) -> int:
        """Bytes of data files that are here."""
        return sum(seen.st_size for name, seen in self.files() if stat.S_IMODE(seen.st_mode) == WHOLE and is_data(name))

    def hollow(self, relative: str, size: int, seconds: float) -> None:
        """Put a file of this length and time in a file's place whose bytes are not here.

        It is not made durable: one that is lost, or cut short, is made anew by the next pull.
        """
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.parent / f"{TEMPORARY}{secrets.token_hex(8)}-{path.name}"
        with partial.open("wb") as file:
            file.truncate(size)
        self.place(partial, relative, HOLLOW, seconds)

    def place(self, partial: Path, relative: str, mode: int, seconds: float) -> None:
        """Give a file its name, state and time in the store."""
        partial.chmod(mode)
        os.utime(partial, (time.time(), seconds))
        partial.replace(self.root / relative)


class Use:
    """A living process's mark in a working copy: nothing that was brought or touched since its time is given up."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"use-{os.getpid()}-{secrets.token_hex(8)}"
        self._file = self._path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        while not self._path.exists():  # another process took it for a dead one's before it was locked
            self._file.close()
            self._file = self._path.open("w")
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def renew(self, since: float) -> None:
        """From now on keep only what was touched at or after a moment (``time.time``)."""
        os.utime(self._path, (since, since))

    def end(self) -> None:
        """Keep nothing any more."""
        self._path.unlink(missing_ok=True)
        self._file.close()


def oldest_use(folder: Path) -> float:
    """The time (ns) of the oldest mark of a living process, infinite where there is none; those of dead ones are removed."""
    oldest = float("inf")
    for path in folder.glob("use-*"):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            except BlockingIOError:
                oldest = min(oldest, path.stat().st_mtime_ns)
    return oldest
