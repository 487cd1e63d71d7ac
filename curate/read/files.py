"""Which files a source consists of, by files, folders and globs, and how they are put into shards."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from curate.read import remote
from curate.read.piece import Piece
from schemas.errors import InputError
from schemas.objects import SCHEME, is_remote

Located = tuple[Piece, str]
"""A piece and the place of its file on this machine."""


def find_files(source: str, patterns: list[str], only: Iterable[str] | None = None, *, empty: bool = False) -> list[Located]:
    """Files of a source in the order of their published paths.

    The source's root is the deepest folder that holds all patterns' fixed parts (a folder itself, a file's folder, a glob's folders
    before the first wildcard). It follows from the patterns alone, so that new files never change the paths of old ones. In
    folders, files and folders whose names begin with a dot are passed over, and links to folders are not followed.

    Args:
        source: its name.
        patterns: files, folders and globs; or objects, prefixes and wildcards of a store, each with ``s3://`` before its bucket.
        only: of what they match, the files to take; None is all.
        empty: accept files that are all empty.

    Raises:
        InputError: a pattern matches nothing, every file is empty, or a store does not answer.
    """
    if any(map(is_remote, patterns)):
        found = _remote(source, patterns)
        _refuse_empty(source, found, empty)
        return sorted(found)
    taken = None if only is None else {str(_absolute(path)) for path in only}
    fixed = [_fixed_part(pattern) for pattern in patterns]
    root = Path(os.path.commonpath(fixed))
    files: dict[str, Located] = {}
    for number, pattern in enumerate(patterns):
        matches = list(_matches(pattern))
        _refuse_none(source, number, pattern, matches)
        for path in matches:
            status = path.stat()
            piece = Piece(published(path.relative_to(root).as_posix()), status.st_size, status.st_mtime_ns)
            if taken is None or str(path) in taken:
                files[str(path)] = piece, str(path)
    _refuse_empty(source, list(files.values()), empty)
    return sorted(files.values())


def _remote(source: str, patterns: list[str]) -> list[Located]:
    if not all(map(is_remote, patterns)):
        fix = "make them two sources"
        raise InputError("paths on this machine and in an object store together", where=f"sources.{source}.paths", fix=fix)
    root = os.path.commonpath([remote.fixed_part(pattern) for pattern in patterns])
    files: dict[str, Located] = {}
    for number, pattern in enumerate(patterns):
        matches = list(remote.matches(pattern))
        _refuse_none(source, number, pattern, matches)
        for path, size, changed in matches:
            files[path] = Piece(path.removeprefix(f"{root}/"), size, changed), SCHEME + path
    return list(files.values())


def _refuse_none(source: str, number: int, pattern: str, matches: Sequence[object]) -> None:
    if not matches:
        what = f"no file matches {pattern!r}" if glob.has_magic(pattern) else f"{pattern!r} does not exist or holds no file"
        fix = "check the path: it is relative to the recipe's folder, and ** spans folders"
        raise InputError(what, where=f"sources.{source}.paths[{number}]", fix=fix)


def _refuse_empty(source: str, found: Sequence[Located], empty: bool) -> None:
    if not empty and not any(piece.size for piece, _ in found):
        raise InputError(
            f"all {len(found)} files are empty", where=f"sources.{source}.paths", fix="name files that hold records, or remove the source"
        )


def _absolute(path: str) -> Path:
    return Path(os.path.normpath(Path(path).expanduser().absolute()))


def _fixed_part(pattern: str) -> Path:
    if not glob.has_magic(pattern):
        path = _absolute(pattern)
        return path if path.is_dir() else path.parent
    parts = Path(pattern).parts
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    return _absolute(str(Path(*parts[:fixed])))


def _matches(pattern: str) -> Iterator[Path]:
    paths = _expand(pattern) if glob.has_magic(pattern) else [pattern]
    for path in map(_absolute, paths):
        if path.is_dir():
            if not glob.has_magic(pattern):
                yield from map(Path, walk(str(path)))
        elif path.is_file():
            yield path


def _expand(pattern: str) -> Iterator[str]:
    # Path.glob cannot take an absolute pattern.
    return glob.iglob(str(Path(pattern).expanduser()), recursive=True)  # noqa: PTH207


def walk(folder: str, skipped: frozenset[str] = frozenset()) -> Iterator[str]:
    """All regular files under a folder but those under names that begin with a dot or that are to be skipped."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in skipped]
        for name in names:
            path = f"{parent}/{name}"
            if not name.startswith(".") and os.path.isfile(path):  # noqa: PTH113  # 50,000 of them: Path objects cost
                yield path


def published(path: str) -> str:
    """A path as text: bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def batches(pieces: Iterable[tuple[Piece, str, int]], shard_bytes: int) -> Iterator[list[Located]]:
    """Consecutive pieces (with their place and size in bytes) up to about a shard's bytes; a larger piece stands alone."""
    batch: list[Located] = []
    total = 0
    for piece, location, size in pieces:
        if batch and total + size > shard_bytes:
            yield batch
            batch, total = [], 0
        batch.append((piece, location))
        total += size
    if batch:
        yield batch
