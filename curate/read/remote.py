"""Objects of an S3 store as files of a source: found by prefix or wildcards, read by ranges, again after a dropped connection.

The store is the one of ``schemas.objects``.
A read that goes on failing is an error of the run, never quarantine: nothing is wrong with the data.
"""

from __future__ import annotations

import glob
import io
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, cast

from schemas.errors import InputError
from schemas.objects import SCHEME, WAITS, client, is_remote

BLOCK = 1 << 20


def open_place(place: str) -> BinaryIO:
    """Open a file of a source for reading, wherever it is.

    Raises:
        OSError: a local file cannot be opened.
        InputError: the store does not give the object.
    """
    return cast(BinaryIO, io.BufferedReader(_Object(place), BLOCK)) if is_remote(place) else Path(place).open("rb")


def fixed_part(pattern: str) -> str:
    """Bucket and folders of a pattern before its first wildcard."""
    parts = pattern.removeprefix(SCHEME).rstrip("/").split("/")
    fixed = next((number for number, part in enumerate(parts) if glob.has_magic(part)), None)
    if fixed is None and _info(pattern.removeprefix(SCHEME)).type.name == "File":
        fixed = -1
    return "/".join(parts[:fixed])


def matches(pattern: str) -> Iterator[tuple[str, int, int]]:
    """(bucket and key, bytes, modification time in ns) of the objects that a pattern names: one, all under a prefix, or by wildcards.

    Raises:
        InputError: the store does not answer.
    """
    wanted = pattern.removeprefix(SCHEME).rstrip("/")
    if not glob.has_magic(wanted) and (info := _info(wanted)).type.name == "File":
        yield info.path, info.size, info.mtime_ns
        return
    from pyarrow.fs import FileSelector

    root = fixed_part(pattern)
    try:
        found = client().get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
    except OSError as error:
        raise _silent(pattern, error) from error
    for info in found:
        inner = info.path.removeprefix(f"{root}/").split("/")
        hidden = any(name.startswith(".") for name in inner)
        if info.type.name == "File" and not hidden and (not glob.has_magic(wanted) or _fits(info.path.split("/"), wanted.split("/"))):
            yield info.path, info.size, info.mtime_ns


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_fits(names[skipped:], pattern[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


def _info(path: str) -> Any:
    try:
        return client().get_file_info(path)
    except OSError as error:
        raise _silent(SCHEME + path, error) from error


def _silent(place: str, error: OSError) -> InputError:
    return InputError(
        f"the object store does not give it: {error}",
        where=place,
        fix="look at AWS_ENDPOINT_URL, credentials and network; run again to go on",
    )


class _Object(io.RawIOBase):
    """An object as a seekable raw stream, read anew from where it stood when a read fails."""

    def __init__(self, place: str) -> None:
        self._place, self._at = place, 0
        self._file: Any = None
        self._size: int = self._try(lambda file: file.size())

    def _try(self, work: Any) -> Any:
        for wait in (*WAITS, None):
            try:
                if self._file is None:
                    self._file = client().open_input_file(self._place.removeprefix(SCHEME))
                return work(self._file)
            except OSError as error:
                self._file = None
                if wait is None or isinstance(error, FileNotFoundError):
                    raise _silent(self._place, error) from error
                time.sleep(wait)
        raise AssertionError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._try(lambda file: file.read_at(min(len(buffer), max(0, self._size - self._at)), self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
