"""The working copy of a lake in an object store: a local folder that all code reads and writes as it does a lake of its own.

What describes the lake (manifests, snapshots, runs, every JSON file) is brought with each ``pull``; of a data file a pull leaves a hollow
of the same length, and its bytes come when a step, a query or a trainer first needs it, compared with the checksum of its entry. What is
published goes to the store first and gets its local name after. A file's mode says its state: 0 for a hollow, read-only for what the store
has too, anything else for what is this machine's alone (locks, logs, the catalogue).

The folder lies in the user's cache (``GRISTMILL_CACHE`` names another place) under a name made from the lake's address. Data files not used
for longest become hollows again when they take more than ``GRISTMILL_CACHE_BYTES``; never those which a living process marked as in use.

Failure model. The store is the truth, and has no half file. A process killed between an object and its local name leaves a file that the
next pull brings; killed between a shard's data and its entry, data that nothing names, which the rerun writes again with the same bytes and
``snapshot --collect`` would delete. A folder of a checkpoint counts once its ``manifest.json`` is there, which is sent last. Deleting the
working copy loses nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from schemas import objects
from schemas.errors import LakeError
from schemas.objects import SCHEME, Stored

MARKER = ".origin.json"
TEMPORARY = ".tmp-"
USERS = ".users"
LOCAL = frozenset(("catalog.duckdb",))
"""Published files that are this machine's alone: they hold absolute paths."""
BOUND = 50_000_000_000
TORN_SECONDS = 3600
HOLLOW, WHOLE = 0, 0o444
_DATA = frozenset((".parquet", ".arrow", ".safetensors"))
_CHECKPOINT = re.compile(r"(runs/[^/]+/[^/]+/checkpoints[^/]*/[^/]+)/")


def copy_of(path: Path) -> WorkingCopy | None:
    """The working copy that a file or folder lies in; None for lakes that are local folders."""
    for folder in (path, *path.parents):
        if (folder / MARKER).is_file():
            return _opened(folder)
    return None


@functools.cache
def _opened(root: Path) -> WorkingCopy:
    return WorkingCopy(root, json.loads((root / MARKER).read_text(encoding="utf-8")))


@functools.cache
def open_address(address: str) -> WorkingCopy:
    """The working copy of the lake at ``s3://bucket/prefix``, made or brought up to date.

    Raises:
        LakeError: not such an address, no such bucket, or the store does not answer.
    """
    key = address.removeprefix(SCHEME).strip("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]+(/[^/]+)+", key) or ".." in key.split("/"):
        # The address is not shown whole: it may hold keys in place of a bucket.
        raise LakeError(
            "not a lake's address", where="--lake", fix="write s3://BUCKET/PREFIX; keys belong in AWS_ACCESS_KEY_ID and the like"
        )
    objects.check_bucket(key)
    root = cache_folder() / "lakes" / f"{key.rpartition('/')[2]}-{hashlib.blake2b(_identity(key), digest_size=8).hexdigest()}"
    if not (root / MARKER).is_file():
        (root / USERS).mkdir(parents=True, exist_ok=True)
        partial = root / f"{TEMPORARY}{secrets.token_hex(8)}"
        partial.write_text(json.dumps({"key": key, "copy": secrets.token_hex(8)}), encoding="utf-8")
        with contextlib.suppress(FileExistsError):  # two processes begin at once: the first one's identity stays
            os.link(partial, root / MARKER)
        partial.unlink()
    made = _opened(root)
    made.pull()
    made.shrink()
    return made


def _identity(key: str) -> bytes:
    """What tells a lake from others: a bucket's name means little without its store."""
    return f"{os.environ.get('AWS_ENDPOINT_URL_S3') or os.environ.get('AWS_ENDPOINT_URL') or ''}\x00{key}".encode()


def cache_folder() -> Path:
    """Where working copies lie, and whatever else is not part of any lake."""
    own = os.environ.get("GRISTMILL_CACHE")
    return Path(own).absolute() if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gristmill"


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


class WorkingCopy:
    """A lake's working copy; see the module.

    Attributes:
        root: its folder.
        key: bucket and prefix of the lake.
        copy: identity of this folder among all that work on the lake.
        held: by name, the moment of the monotonic clock until which a lease of this process surely holds.
        known: what entries say of files, by path, for whoever asks first after a pull.
    """

    def __init__(self, root: Path, record: dict[str, str]) -> None:
        self.root, self.key, self.copy = root, record["key"], record["copy"]
        self.held: dict[str, float] = {}
        self.known: dict[str, Any] | None = None
        self._brought = 0
        self._others = float("inf")  # bytes here that `_brought` does not count; nobody has looked yet
        self._pulled = 0.0
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @property
    def address(self) -> str:
        """The lake's address."""
        return f"{SCHEME}{self.key}"

    # What the store has

    def pull(self) -> None:
        """Bring what describes the lake, and a hollow for each data file that is new or was changed; drop what the store has no more."""
        began, self.known, self._pulled = time.time_ns(), None, time.monotonic()
        found = {stored.key.removeprefix(f"{self.key}/"): stored for stored in objects.listed(self.key)}
        found = {name: stored for name, stored in found.items() if _is_plain(name)}
        checkpoints = {name.rpartition("/")[0] for name in found if name.endswith("/manifest.json")}
        found = {n: s for n, s in found.items() if (inside := _CHECKPOINT.match(n)) is None or inside[1] in checkpoints}
        wanted = []
        for name, stored in found.items():
            seen = _status(self.root / name)
            if seen is not None and (_same(seen, stored) or seen.st_ctime_ns >= began):
                continue
            if is_data(name):
                self._hollow(name, stored.bytes, stored.seconds)
            else:
                wanted.append(stored)
        newest = max((stored.seconds for stored in found.values()), default=0)
        # Of what was written in the store's last seconds another version may follow under the same time: it is brought again next time.
        for _ in objects.at_once(lambda stored: self._fetch(stored, "", stored.seconds - (stored.seconds >= newest - 1)), wanted):
            pass
        for name, seen in self._files():
            if name not in found and stat.S_IMODE(seen.st_mode) in (HOLLOW, WHOLE) and seen.st_ctime_ns < began:
                (self.root / name).unlink(missing_ok=True)

    def refresh(self, seconds: float) -> None:
        """Pull unless that was done in the last seconds."""
        if time.monotonic() - self._pulled > seconds:
            self.pull()

    def bring(self, relative: str, checksum: str = "") -> Path:
        """The path of a file whose bytes are here, fetched if they were not.

        Args:
            relative: path in the lake.
            checksum: BLAKE2b-128 (hex) that what is fetched must have; empty where nobody knows it.

        Raises:
            LakeError: what the store has is not what was published. A file that is nowhere is left to whoever opens it.
        """
        path = self.root / relative
        if not checksum and self.known is not None and relative in self.known:
            checksum = self.known[relative].checksum
        with self._guard:
            lock = self._locks.setdefault(relative, threading.Lock())
        with lock:
            seen = _status(path)
            if seen is not None and stat.S_IMODE(seen.st_mode) != HOLLOW:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(path, ns=(time.time_ns(), seen.st_mtime_ns))
                return path
            with self._alone(relative):
                seen = _status(path)
                if seen is None or stat.S_IMODE(seen.st_mode) == HOLLOW:
                    key = f"{self.key}/{relative}"
                    # A hollow has what a listing said; one of a file that another machine told of has no time yet.
                    stored = objects.head(key) if seen is None or not int(seen.st_mtime) else Stored(key, seen.st_size, int(seen.st_mtime))
                    if stored is not None:
                        self._fetch(stored, checksum, stored.seconds)
        return path

    def bring_all(self, files: Iterable[tuple[str, str]]) -> None:
        """Bring files, each a path and its checksum, several at a time."""
        for _ in objects.at_once(lambda file: self.bring(*file), files):
            pass

    def _fetch(self, stored: Stored, checksum: str, seconds: int) -> None:
        relative = stored.key.removeprefix(f"{self.key}/")
        path = self.root / relative
        partial = path.parent / f"{TEMPORARY}{secrets.token_hex(8)}-{path.name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            for last in (False, True):
                objects.get(stored.key, partial)
                got = _status(partial)  # gone where a curation that began meanwhile took it for a killed process's
                if got is not None and got.st_size == stored.bytes and (not checksum or _checksum(partial) == checksum):
                    break
                if last:
                    raise LakeError(
                        "an object is not what was published there",
                        where=f"{SCHEME}{stored.key}",
                        fix="delete it and run again: it is rebuilt",
                    )
            self._place(partial, relative, WHOLE, seconds)
        except FileNotFoundError:
            return  # deleted since it was listed
        except OSError as error:
            raise LakeError(f"cannot write: {error}", where=str(path), fix="free space, or name another GRISTMILL_CACHE") from error
        finally:
            partial.unlink(missing_ok=True)
        self._count(stored.bytes)

    def _hollow(self, relative: str, size: int, seconds: float) -> None:
        path = self.root / relative
        partial = path.parent / f"{TEMPORARY}{secrets.token_hex(8)}-{path.name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.truncate(size)
        self._place(partial, relative, HOLLOW, seconds)

    def _place(self, partial: Path, relative: str, mode: int, seconds: float) -> None:
        partial.chmod(mode)
        os.utime(partial, (time.time(), seconds))
        partial.replace(self.root / relative)

    def expect(self, relative: str, size: int) -> None:
        """Learn of a file that another machine published after the last pull."""
        if not (self.root / relative).exists():
            if is_data(relative):
                self._hollow(relative, size, 0)
            else:
                self.bring(relative)

    # What goes to the store

    def send(self, relative: str, file: Path) -> None:
        """Write a file to the store under its path in the lake, and mark it as being there; its local name is given after.

        Raises:
            LakeError: the store does not take it, or this process has lost a lease.
        """
        if relative in LOCAL:
            return
        self.check_leases()
        stored = objects.put(f"{self.key}/{relative}", file)
        file.chmod(WHOLE)
        os.utime(file, (time.time(), stored.seconds))
        self._count(stored.bytes)

    def share(self, name: str, file: Path) -> None:
        """Write a file to the store that no working copy takes from it: it is for other readers."""
        objects.put(f"{self.key}/{name}", file)

    def torn(self) -> list[Stored]:
        """Objects of checkpoints that a trainer which was killed left without their ``manifest.json``, none of them written in an hour."""
        parts: dict[str, list[Stored]] = {}
        for stored in objects.listed(f"{self.key}/runs"):
            if inside := _CHECKPOINT.match(stored.key.removeprefix(f"{self.key}/")):
                parts.setdefault(inside[1], []).append(stored)
        old = [each for each in parts.values() if max(stored.seconds for stored in each) < time.time() - TORN_SECONDS]
        return [stored for each in old if not any(stored.key.endswith("/manifest.json") for stored in each) for stored in each]

    def send_folder(self, staging: Path, final: Path) -> None:
        """Write a folder's files under the name that it will get, ``manifest.json`` last."""
        target = final.relative_to(self.root).as_posix()
        for file in sorted(staging.iterdir(), key=lambda file: file.name == "manifest.json"):
            self.send(f"{target}/{file.name}", file)

    def remove(self, path: Path) -> None:
        """Delete a file, or a folder with all in it, from the store (first what says that it is whole)."""
        self.check_leases()
        relative = path.relative_to(self.root).as_posix()
        inside = [f"{self.key}/{relative}/{file.relative_to(path).as_posix()}" for file in path.rglob("*") if file.is_file()]
        for key in sorted(inside, key=lambda key: not key.endswith("/manifest.json")) if path.is_dir() else [f"{self.key}/{relative}"]:
            objects.delete(key)

    def duplicate(self, path: Path, new: Path) -> None:
        """Give a file or folder a second name in the store."""
        self.check_leases()
        inner = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()] if path.is_dir() else [""]
        old, target = (place.relative_to(self.root).as_posix() for place in (path, new))
        for name in sorted(inner, key=lambda name: name == "manifest.json"):
            objects.copy(f"{self.key}/{old}/{name}".rstrip("/"), f"{self.key}/{target}/{name}".rstrip("/"))

    def used(self) -> int:
        """Bytes of data files that are here."""
        return sum(seen.st_size for name, seen in self._files() if stat.S_IMODE(seen.st_mode) == WHOLE and is_data(name))

    def check_leases(self) -> None:
        """Refuse to write when a lease of this process may have passed to another.

        Raises:
            LakeError: it was stopped, or cut off from the store, for too long.
        """
        if late := [name for name, until in self.held.items() if time.monotonic() > until]:
            raise LakeError(
                f"the lease {late[0]!r} was not renewed in time: another process may have taken it",
                where=self.address,
                fix="run again: finished shards are kept",
            )

    # What stays here

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
        if self._others + self._brought <= bound:
            return
        brought = self._brought  # before looking: a file that comes meanwhile is then counted once or twice, never not at all
        whole = [(seen.st_atime_ns, seen, name) for name, seen in self._files() if stat.S_IMODE(seen.st_mode) == WHOLE and is_data(name)]
        used = sum(seen.st_size for _, seen, _ in whole)
        if used > bound:
            oldest = oldest_use(self.root / USERS)
            for when, seen, name in sorted(whole, key=lambda each: each[0]):
                if used <= bound * 0.9 or when >= oldest:
                    break
                with contextlib.suppress(FileNotFoundError):
                    self._hollow(name, seen.st_size, seen.st_mtime)
                used -= seen.st_size
        self._others = used - brought

    def _count(self, size: int) -> None:
        with self._guard:
            self._brought += size

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
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

    @contextlib.contextmanager
    def _alone(self, relative: str) -> Iterator[None]:
        """Keep other processes from fetching the same file meanwhile."""
        name = hashlib.blake2b(relative.encode(), digest_size=1).hexdigest()
        with (self.root / USERS / f"fetch-{name}").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


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


def _is_plain(name: str) -> bool:
    """Whether a key is a file of a lake: it stays inside the folder, and is no lock or mark."""
    return bool(name) and all(part and not part.startswith(".") for part in name.split("/")) and name not in LOCAL


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _same(seen: os.stat_result, stored: Stored) -> bool:
    return seen.st_size == stored.bytes and int(seen.st_mtime) == stored.seconds and stat.S_IMODE(seen.st_mode) in (HOLLOW, WHOLE)


def _checksum(path: Path) -> str:
    from schemas.store import checksum

    return checksum(path)
