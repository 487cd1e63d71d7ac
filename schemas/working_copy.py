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
from schemas.copy_outward import CHECKPOINT, LOCAL, Outward
from schemas.copy_room import HOLLOW, TEMPORARY, USERS, WHOLE, is_data
from schemas.errors import LakeError
from schemas.objects import SCHEME, Stored

MARKER = ".origin.json"


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


class WorkingCopy(Outward):
    """A lake's working copy; see the module.

    Attributes:
        root: its folder.
        key: bucket and prefix of the lake.
        copy: identity of this folder among all that work on the lake.
        held: by name, the moment of the monotonic clock until which a lease of this process surely holds.
        known: what entries say of files, by path, for whoever asks first after a pull.
    """

    def __init__(self, root: Path, record: dict[str, str]) -> None:
        super().__init__(root, record["key"])
        self.copy = record["copy"]
        self.known: dict[str, Any] | None = None
        self._pulled = 0.0
        self._locks: dict[str, threading.Lock] = {}

    def pull(self) -> None:
        """Bring what describes the lake, and a hollow for each data file that is new or was changed; drop what the store has no more."""
        began, self.known, self._pulled = time.time_ns(), None, time.monotonic()
        found = {stored.key.removeprefix(f"{self.key}/"): stored for stored in objects.listed(self.key)}
        found = {name: stored for name, stored in found.items() if _is_plain(name)}
        checkpoints = {name.rpartition("/")[0] for name in found if name.endswith("/manifest.json")}
        found = {n: s for n, s in found.items() if (inside := CHECKPOINT.match(n)) is None or inside[1] in checkpoints}
        wanted = []
        for name, stored in found.items():
            seen = _status(self.root / name)
            if seen is not None and (_same(seen, stored) or seen.st_ctime_ns >= began):
                continue
            if is_data(name):
                self.hollow(name, stored.bytes, stored.seconds)
            else:
                wanted.append(stored)
        newest = max((stored.seconds for stored in found.values()), default=0)
        # Of what was written in the store's last seconds another version may follow under the same time: it is brought again next time.
        for _ in objects.at_once(lambda stored: self._fetch(stored, "", stored.seconds - (stored.seconds >= newest - 1)), wanted):
            pass
        brought, here = self.brought, 0
        for name, seen in self.files():
            if name not in found and stat.S_IMODE(seen.st_mode) in (HOLLOW, WHOLE) and seen.st_ctime_ns < began:
                (self.root / name).unlink(missing_ok=True)
            elif stat.S_IMODE(seen.st_mode) == WHOLE and is_data(name):
                here += seen.st_size
        self.others = here - brought

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
                        fix="run again: another machine may have rewritten it meanwhile (`gristmill forget`);"
                        " where it stays so, delete it and curate again: it is rebuilt",
                    )
            with partial.open("rb") as file:  # a name that outlives a power cut without its bytes would pass for the whole
                os.fsync(file.fileno())
            self.place(partial, relative, WHOLE, seconds)
        except FileNotFoundError:
            return  # deleted since it was listed
        except OSError as error:
            raise LakeError(f"cannot write: {error}", where=str(path), fix="free space, or name another GRISTMILL_CACHE") from error
        finally:
            partial.unlink(missing_ok=True)
        self.count(stored.bytes)

    def expect(self, relative: str, size: int) -> None:
        """Learn of a file that another machine published after the last pull."""
        if not (self.root / relative).exists():
            if is_data(relative):
                self.hollow(relative, size, 0)
            else:
                self.bring(relative)

    @contextlib.contextmanager
    def _alone(self, relative: str) -> Iterator[None]:
        """Keep other processes from fetching the same file meanwhile."""
        name = hashlib.blake2b(relative.encode(), digest_size=1).hexdigest()
        with (self.root / USERS / f"fetch-{name}").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


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
