"""Durable publication of files in a lake.

Failure model. The process may be killed at any instruction (kill -9), the machine may lose power, the disk may fill. Then:

* a published name holds either nothing or the whole file: bytes are written under a temporary name in the same folder, fsynced,
  renamed over the final name, and the folder is fsynced;
* a leftover temporary file (``.tmp-*``) is never read, and is removed by the next writer that owns the lake's lock;
* what is published is never changed in place; a reader may keep it memory-mapped;
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import LakeError

TEMPORARY = ".tmp-"


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
    path = root / file.path
    if not path.is_file():
        raise LakeError("a published file is missing", where=str(path), fix="run the step again: it redoes what is missing")
    if path.stat().st_size != file.bytes or checksum(path) != file.checksum:
        raise LakeError("a published file was changed or cut short", where=str(path), fix="delete it and run again: it is rebuilt")


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
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise LakeError(f"in use by {holder}", where=str(path), fix="wait for it to end, or stop it, then run again") from error
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} ({purpose})\n")
        file.flush()
        yield
