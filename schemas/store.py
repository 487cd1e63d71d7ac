"""Durable publication of files in a lake.

Failure model. The process may be killed at any instruction (kill -9), the machine may lose power, the disk may fill. Then:

* a published name holds either nothing or the whole file: bytes are written under a temporary name in the same folder, fsynced,
  renamed over the final name, and the folder is fsynced;
* a leftover temporary file (``.tmp-*``) is never read, and is removed by the next writer that owns the lake's lock;
* what is published is never changed in place; a reader may keep it memory-mapped;
* of a lake in an object store (``schemas.working_copy``) the object is there before the local name is: the store is never behind;
* a step's work counts only once its manifest entry (itself published this way, after the data) exists: see ``schemas.manifest``.

Not covered: a disk that lies about fsync, and bit rot, which the checksum in the manifest detects (``verify``) but cannot repair.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, digits
from typing import IO, Any

from schemas.copy_room import TEMPORARY as TEMPORARY
from schemas.errors import InUse, LakeError
from schemas.working_copy import copy_of, open_address

LOOKS = 10
"""Times that a lock which is held is tried again, within a fifth of a second."""


@dataclass(frozen=True)
class Published:
    """One published file: path relative to the lake, size in bytes, BLAKE2b-128 checksum (hex), rows (0 when not a table)."""

    path: str
    bytes: int
    checksum: str
    rows: int = 0


def checksum(path: Path) -> str:
    """BLAKE2b-128 of a file's bytes, hex."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def reserve(file: IO[bytes]) -> None:
    """Have the disk hold all of a file that was only made long: a mapped page that finds no room there ends the process, by SIGBUS.

    Raises:
        OSError: the disk is full.
    """
    if (size := os.fstat(file.fileno()).st_size) and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)


def publish(root: Path, relative: str, write: Callable[[Path], None], rows: int = 0) -> Published:
    """Write a file by ``write(temporary_path)`` and publish it as ``root/relative`` durably.

    Raises:
        LakeError: the disk is full or not writable; nothing is left under the final name.
    """
    final = root / relative
    temporary = final.parent / f"{TEMPORARY}{secrets.token_hex(8)}-{final.name}"
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        done = Published(relative, temporary.stat().st_size, checksum(temporary), rows)
        if copy := copy_of(root):
            copy.send(relative, temporary)
        temporary.replace(final)
        sync_folder(final.parent)
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        raise LakeError(
            f"cannot write: {reason}", where=str(final), fix="free space or check permissions, then run again: finished shards are kept"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return done


def publish_json(root: Path, relative: str, value: Any) -> Published:
    """Publish a JSON document with sorted keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1) + "\n"
    return publish(root, relative, lambda path: _write_text(path, text))


def read_json(path: Path) -> Any:
    """Read a published JSON document.

    Raises:
        LakeError: what is there is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LakeError(f"damaged: {error}", where=str(path), fix="restore the file, or delete it and run again") from error


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(root: Path, file: Published) -> None:
    """Check a published file's length and checksum.

    Raises:
        LakeError: the file is missing, cut short, or changed.
    """
    path = here(root, file.path, file.checksum)
    if not path.is_file():
        raise LakeError("a published file is missing", where=str(path), fix="run the step again: it redoes what is missing")
    if path.stat().st_size != file.bytes or checksum(path) != file.checksum:
        raise LakeError("a published file was changed or cut short", where=str(path), fix="delete it and run again: it is rebuilt")


def open_lake(place: Path | str) -> Path:
    """The folder in which a lake is read and written: its own, or the working copy of one at ``s3://bucket/prefix``, brought up to date.

    Raises:
        LakeError: not a lake's address, no such bucket, or the store does not answer.
    """
    text = spelled(place)
    if not text.strip():
        raise LakeError("it is empty", where="--lake (or GRISTMILL_LAKE)", fix="name a folder or s3://BUCKET/PREFIX; . is this folder")
    scheme, colon, _ = text.partition("://")
    if not colon or scheme.strip(ascii_lowercase + digits):
        return Path(text).absolute()
    if scheme != "s3":
        raise LakeError(f"{scheme}:// is no place for a lake", where="--lake", fix="write s3://BUCKET/PREFIX, or the path of a folder")
    return open_address(text).root


def spelled(place: object) -> str:
    """A lake's place as it was written: a path has folded the slashes of an address into one, or none."""
    scheme, colon, key = str(place).partition(":")
    is_address = bool(colon) and not scheme.strip(ascii_lowercase + digits) and (not key or key.startswith("/"))
    return f"{scheme}://{key.lstrip('/')}" if is_address else str(place)


def address_of(root: Path) -> str:
    """A lake's place as people name it: its folder, or its address in an object store."""
    copy = copy_of(root)
    return copy.address if copy else str(root)


def here(root: Path, relative: str, checksum: str = "") -> Path:
    """The path of a published file, whose bytes are brought here first where the lake is in an object store.

    Raises:
        LakeError: the store does not give it, or it has another checksum. A missing file is left to whoever opens it.
    """
    copy = copy_of(root)
    return copy.bring(relative, checksum) if copy else root / relative


def bring(root: Path, files: Iterable[str | None]) -> None:
    """Have the bytes of published files here, several fetched at a time where the lake is in an object store."""
    if copy := copy_of(root):
        copy.bring_all([(file, "") for file in files if file is not None])


def folder_here(folder: Path) -> Path:
    """A folder of published files whose bytes are all here."""
    if copy := copy_of(folder):
        copy.bring_all([(path.relative_to(copy.root).as_posix(), "") for path in folder.rglob("*") if path.is_file()])
    return folder


@contextlib.contextmanager
def using(root: Path, files: Iterable[Published] = ()) -> Iterator[None]:
    """Have files' bytes here until the block ends; with none named, whatever is brought meanwhile stays."""
    copy = copy_of(root)
    if copy is None:
        yield
        return
    with copy.using():
        copy.bring_all([(file.path, file.checksum) for file in files])
        yield


def send_folder(staging: Path, final: Path) -> None:
    """Publish a staged folder in the lake's object store, if it has one, before the caller gives it its name here."""
    if copy := copy_of(final):
        copy.send_folder(staging, final)


def remove_remote(path: Path) -> None:
    """Delete a published file or folder from the lake's object store, if it has one."""
    if copy := copy_of(path):
        copy.remove(path)


def remove(path: Path) -> None:
    """Delete a published file or folder, which may be gone already."""
    remove_remote(path)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def duplicate(path: Path, new: Path) -> None:
    """Give a published file or folder a second name in the lake's object store, if it has one; the caller links it locally."""
    if copy := copy_of(path):
        copy.duplicate(path, new)


def rename(path: Path, new: Path) -> None:
    """Give a published file or folder another name, durably."""
    duplicate(path, new)
    remove_remote(path)
    path.rename(new)
    sync_folder(new.parent)


def remove_temporary(root: Path) -> int:
    """Delete what killed writers left behind; call it only under the lake's lock. Returns the number of files removed."""
    leftovers = [path for path in root.rglob(f"{TEMPORARY}*") if path.is_file()]
    for path in leftovers:
        path.unlink(missing_ok=True)
    return len(leftovers)


@contextlib.contextmanager
def lock(path: Path, purpose: str) -> Iterator[None]:
    """Hold an exclusive operating-system lock; the kernel frees it when the process dies.

    Raises:
        LakeError: another live process holds it (the message names its pid), or the folder cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise LakeError(f"cannot write: {error.strerror}", where=str(path), fix="check permissions, or name another --lake") from error
    with opened as file:
        if not taken(file.fileno()):
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise InUse(f"in use by {holder}", where=str(path), fix="wait for it to end, or stop it, then run again")
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} ({purpose})\n")
        file.flush()
        with _among_machines(path, purpose):
            yield


def taken(descriptor: int) -> bool:
    """Whether an exclusive lock is got; somebody who only looks (``holder``) holds a shared one for an instant, which is waited out."""
    for wait in (*[0.02] * LOOKS, None):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait is None:
                return False
            time.sleep(wait)
        else:
            return True
    raise AssertionError


def holder(path: Path) -> str | None:
    """What the file of a lock that a live process holds says of it, None where it is free; disturbs nobody, and only reads."""
    try:
        file = path.open("rb")
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(1000).decode("utf-8", "replace").strip()
    return None


@contextlib.contextmanager
def _among_machines(path: Path, purpose: str) -> Iterator[None]:
    """Hold the lock of a lake in an object store among all machines too, and see what the one before published."""
    copy = copy_of(path)
    if copy is None:
        yield
        return
    from schemas.lease import lease

    with lease(copy, path.relative_to(copy.root).as_posix(), purpose):
        copy.pull()
        yield
