"""Objects of an S3 store as files of a source: found by prefix or wildcards, read by ranges, again after a dropped connection.

The store is the one of ``schemas.objects``; datasets of the Hugging Face Hub (``curate.read.hub``) are reached by the same functions.
A read that goes on failing is an error of the run, never quarantine: nothing is wrong with the data.
"""

from __future__ import annotations

import glob
import io
from collections.abc import Callable, Container, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from schemas.errors import InputError
from schemas.objects import SCHEME, again, client, head, is_remote, listed, silent

BLOCK = 1 << 20
SECOND = 1_000_000_000
HUB = "hf://"
"""In nanoseconds."""

T = TypeVar("T")


class Match(NamedTuple):
    """A file that a pattern names: its path, bytes, what changes with its content (an object's time in ns), and its place."""

    key: str
    size: int
    changed: int
    place: str


def is_elsewhere(place: str) -> bool:
    """Whether a place is not on this machine."""
    return place.startswith((SCHEME, HUB))


def is_file(place: str) -> bool:
    """Whether a file is there, wherever that is."""
    return any(match.place == place for match in matches(place)) if is_elsewhere(place) else Path(place).is_file()


def open_place(place: str) -> BinaryIO:
    """Open a file of a source for reading, wherever it is.

    Raises:
        OSError: a local file cannot be opened.
        InputError: the store or the Hub does not give it.
    """
    if is_remote(place):
        return cast(BinaryIO, io.BufferedReader(_Object(place), BLOCK))
    if is_elsewhere(place):
        from curate.read.hub import HubFile

        return cast(BinaryIO, io.BufferedReader(HubFile(place), 8 * BLOCK))
    return Path(place).open("rb")


def fixed_part(pattern: str, keys: Container[str] = ()) -> str:
    """Folders of a pattern before its first wildcard or, where it is one of the keys and so a file, before its name."""
    parts = pattern.partition("://")[2].rstrip("/").split("/")
    if not is_remote(pattern):  # hf://datasets/OWNER/NAME@REVISION
        parts[2] = parts[2].partition("@")[0]
    fixed = next((number for number, part in enumerate(parts) if glob.has_magic(part)), None)
    if fixed is None and "/".join(parts) in keys:
        fixed = -1
    return "/".join(parts[:fixed])


def matches(pattern: str) -> Iterator[Match]:
    """The objects that a pattern names: one, all under a prefix, or by wildcards.

    Raises:
        InputError: the store or the Hub does not answer.
    """
    if not is_remote(pattern):
        from curate.read import hub

        yield from hub.matches(pattern)
        return
    wanted = pattern.removeprefix(SCHEME).rstrip("/")
    one = None if glob.has_magic(wanted) else head(wanted, InputError)
    if one is not None:
        yield Match(one.key, one.bytes, one.seconds * SECOND, SCHEME + one.key)
        return
    root = fixed_part(pattern)
    for each in listed(root, InputError):
        inner = each.key.removeprefix(f"{root}/").split("/")
        if not any(name.startswith(".") for name in inner) and fits(each.key.split("/"), wanted.split("/")):
            yield Match(each.key, each.bytes, each.seconds * SECOND, SCHEME + each.key)


def fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a file with these folders and name is what a pattern means; without wildcards that is a file, or all in a folder."""
    return _fits(names, pattern) if any(map(glob.has_magic, pattern)) else list(names[: len(pattern)]) == list(pattern)


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_fits(names[skipped:], pattern[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


def all_of(data: bytes, size: int) -> bytes:
    """The bytes that were asked for.

    Raises:
        OSError: there are fewer or more: an end that is none would pass for the file's.
    """
    if len(data) != size:
        raise OSError(f"{len(data):,} bytes came where {size:,} were asked for")
    return data


class Ranged(io.RawIOBase):
    """A file elsewhere as a seekable raw stream of its parts."""

    def __init__(self, size: int) -> None:
        self._at, self._size = 0, size

    def part(self, size: int, at: int) -> bytes:
        """So many bytes from a place on, neither fewer nor more."""
        raise NotImplementedError

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the place on."""
        data = self.part(min(len(buffer), max(0, self._size - self._at)), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Object(Ranged):
    """An object of the store, read anew from where it stood when a read fails."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._file: Any = None
        super().__init__(self._try(lambda file: file.size()))

    def part(self, size: int, at: int) -> bytes:
        """So many bytes from a place on."""
        return self._try(lambda file: all_of(bytes(file.read_at(size, at)), size))

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
