"""Objects of an S3 store as files of a source: found by prefix or wildcards, read by ranges, again after a dropped connection.

The store is the one of ``schemas.objects``.
A read that goes on failing is an error of the run, never quarantine: nothing is wrong with the data.
"""

from __future__ import annotations

import glob
import io
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from schemas.errors import InputError
from schemas.objects import SCHEME, again, client, head, is_remote, listed, silent

BLOCK = 1 << 20
SECOND = 1_000_000_000
"""In nanoseconds."""

T = TypeVar("T")


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
    if fixed is None and head(pattern.removeprefix(SCHEME), InputError) is not None:
        fixed = -1
    return "/".join(parts[:fixed])


def matches(pattern: str) -> Iterator[tuple[str, int, int]]:
    """(bucket and key, bytes, modification time in ns) of the objects that a pattern names: one, all under a prefix, or by wildcards.

    Raises:
        InputError: the store does not answer.
    """
    wanted = pattern.removeprefix(SCHEME).rstrip("/")
    one = None if glob.has_magic(wanted) else head(wanted, InputError)
    if one is not None:
        yield one.key, one.bytes, one.seconds * SECOND
        return
    root = fixed_part(pattern)
    for each in listed(root, InputError):
        inner = each.key.removeprefix(f"{root}/").split("/")
        hidden = any(name.startswith(".") for name in inner)
        if not hidden and (not glob.has_magic(wanted) or _fits(each.key.split("/"), wanted.split("/"))):
            yield each.key, each.bytes, each.seconds * SECOND


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_fits(names[skipped:], pattern[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


class _Object(io.RawIOBase):
    """An object as a seekable raw stream, read anew from where it stood when a read fails."""

    def __init__(self, place: str) -> None:
        self._place, self._at = place, 0
        self._file: Any = None
        self._size: int = self._try(lambda file: file.size())

    def _try(self, work: Callable[[Any], T]) -> T:
        def once() -> T:
            if self._file is None:
                self._file = client().open_input_file(self._place.removeprefix(SCHEME))
            try:
                return work(self._file)
            except OSError:
                self._file = None
                raise

        try:
            return again(self._place, once, InputError)
        except FileNotFoundError as error:
            raise silent(self._place, error, InputError) from error

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
