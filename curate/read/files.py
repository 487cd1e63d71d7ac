"""Which files a source consists of, by files, folders and globs, and how they are put into shards."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from curate.read import remote
from curate.read.piece import Piece
from schemas.errors import InputError

Located = tuple[Piece, str]
"""A piece and the place of its file: a path on this machine, or an address elsewhere."""


def find_files(
    source: str, patterns: list[str], only: Iterable[str] | None = None, *, empty: bool = False, none: bool = False
) -> list[Located]:
    """Files of a source in the order of their published paths.

    The source's root is the deepest folder that holds all patterns' fixed parts (a folder itself, a file's folder, a glob's folders
    before the first wildcard). It follows from the patterns alone, so that new files never change the paths of old ones. In
    folders, files and folders whose names begin with a dot are passed over, and links to folders are not followed. A link that leads
    nowhere is a file that cannot be read. A name that is there is no glob, whatever characters it has.

    Args:
        source: its name.
        patterns: files, folders and globs; or objects, prefixes and wildcards of a store (``s3://BUCKET/...``) or of a dataset of the Hub.
        only: of what they match, the files to take, all of which must be there; None is all.
        empty: accept files that are all empty.
        none: accept folders that hold no file, and globs that match none in a folder that is there.

    Raises:
        InputError: a pattern matches nothing, every file is empty, a folder cannot be read, or a store does not answer.
    """
    if any(map(remote.is_elsewhere, patterns)):
        found = _remote(source, patterns, only)
        _refuse_empty(source, found, empty)
        return sorted(found)
    taken = None if only is None else {str(_absolute(path)) for path in only}
    fixed = [_fixed_part(pattern) for pattern in patterns]
    root = Path(os.path.commonpath(fixed))
    files: dict[str, Located] = {}
    for number, pattern in enumerate(patterns):
        matches = list(_matches(pattern, f"sources.{source}.paths[{number}]"))
        if not (none and _absolute(_split(pattern)[0]).is_dir()):
            _refuse_none(source, number, pattern, matches)
        for path in matches:
            piece = Piece(published(path.relative_to(root).as_posix()), *_size_and_time(path))
            if taken is None or str(path) in taken:
                files[str(path)] = piece, str(path)
    _refuse_missing(source, (taken or set()) - set(files))
    _refuse_empty(source, list(files.values()), empty or none)
    return sorted(files.values())


def _size_and_time(path: Path) -> tuple[int, int]:
    """Bytes and modification time in ns; of what cannot be looked at, which its reader sets aside, zeros."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _remote(source: str, patterns: list[str], only: Iterable[str] | None) -> list[Located]:
    if not all(map(remote.is_elsewhere, patterns)):
        fix = "make them two sources"
        raise InputError("paths here and elsewhere together", where=f"sources.{source}.paths", fix=fix)
    found = [list(remote.matches(pattern)) for pattern in patterns]
    for number, (pattern, matches) in enumerate(zip(patterns, found, strict=True)):
        _refuse_none(source, number, pattern, matches)
    files: dict[str, remote.Match] = {}
    for match in itertools.chain(*found):
        if files.setdefault(match.key, match).place != match.place:
            told = f"{match.key} is named at two revisions, and only one can be read under that path"
            raise InputError(told, where=f"sources.{source}.paths", fix="make them two sources")
    if only is not None:
        _refuse_missing(source, {*only} - {match.place for match in files.values()})
        files = {key: match for key, match in files.items() if match.place in only}
    root = os.path.commonpath([remote.fixed_part(pattern, files) for pattern in patterns])
    return [(Piece(key.removeprefix(f"{root}/"), match.size, match.changed), match.place) for key, match in files.items()]


def _refuse_missing(source: str, missing: set[str]) -> None:
    if missing:
        raise InputError(f"{min(missing)!r} is missing", where=f"sources.{source}.paths", fix="copy the folder again")


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


def _split(pattern: str) -> tuple[str, str]:
    """The part of a pattern that names something by itself, and the glob below it; empty where there is none."""
    path = Path(pattern).expanduser()
    if not glob.has_magic(pattern) or path.exists():
        return pattern, ""
    fixed = Path()
    for number, part in enumerate(path.parts):
        if glob.has_magic(part) and not (fixed / part).exists():
            return str(fixed), "/".join(path.parts[number:])
        fixed /= part
    return pattern, ""


def _fixed_part(pattern: str) -> Path:
    name, below = _split(pattern)
    path = _absolute(name)
    return path if below or path.is_dir() else path.parent


def _matches(pattern: str, where: str) -> Iterator[Path]:
    name, below = _split(pattern)
    # Path.glob cannot take an absolute pattern.
    paths = glob.iglob(f"{glob.escape(name)}/{below}", recursive=True) if below else [name]  # noqa: PTH207
    for path in map(_absolute, paths):
        if path.is_dir():
            if not below:
                yield from map(Path, walk(str(path), where=where))
        elif path.is_file() or path.is_symlink():
            yield path


def walk(folder: str, skipped: frozenset[str] = frozenset(), where: str = "") -> Iterator[str]:
    """All regular files under a folder but those under names that begin with a dot or that are to be skipped.

    Args:
        folder: the folder.
        skipped: names of folders and files to pass over.
        where: place in the recipe; with it, links that lead nowhere count as files, and a folder that cannot be read is an error.

    Raises:
        InputError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        if where:
            raise InputError(f"a folder cannot be read: {error}", where=where, fix="check permissions") from error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in skipped]
        for name in names:
            path = f"{parent}/{name}"
            # 50,000 of them: Path objects cost.
            if not name.startswith(".") and (os.path.isfile(path) or (where and os.path.islink(path))):  # noqa: PTH113, PTH114
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
