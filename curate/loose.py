"""Texts of files that are no source of a lake: evaluation sets, and the two sets that a classifier is trained on."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curate.read.blocks import BrokenFile, unpacked
from curate.read.files import find_files
from curate.read.remote import is_elsewhere
from schemas.errors import InputError


class LooseText(NamedTuple):
    """One text and where it stands.

    Attributes:
        file: path under the deepest folder that holds all files.
        record: number in the file, from 0.
        field: name of its field; empty for plain text.
        text: the text.
    """

    file: str
    record: int
    field: str
    text: str


def loose_files(patterns: Sequence[str], where: str) -> list[tuple[str, str]]:
    """Published path and place of each file that files, folders and globs name, in the order of their paths.

    Raises:
        InputError: a pattern matches nothing, or names files elsewhere.
    """
    if (told := next(filter(is_elsewhere, patterns), None)) is not None:
        raise InputError(f"{told} is not on this machine: only sources are read from elsewhere", where=where, fix="name a copy of it here")
    try:
        return [(piece.path, place) for piece, place in find_files(where, list(patterns), empty=True)]
    except InputError as error:
        raise InputError(error.what, where=where, fix="check the path") from error


def loose_texts(patterns: Sequence[str], fields: Sequence[str], where: str) -> Iterator[LooseText]:
    """Texts of JSON lines, one JSON array, Parquet or plain text, told by content; all but the last may hold lists of texts in a field.

    Args:
        patterns: files, folders and globs; gzip and Zstandard are unpacked.
        fields: fields that hold texts; ``a.b`` is field b inside field a. A plain text file is one text.
        where: for messages.

    Raises:
        InputError: files are missing or damaged, or no record has any of the fields.
    """
    found = 0
    for file, place in loose_files(patterns, where):
        for record, value in _records(Path(place)):
            if isinstance(value, str):
                found += 1
                yield LooseText(file, record, "", value)
                continue
            for field in fields:
                for text in _strings(_at(value, field)):
                    found += 1
                    yield LooseText(file, record, field, text)
    if not found:
        raise InputError(f"no record holds text in {', '.join(fields)}", where=where, fix="name the fields that hold the texts")


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """Records of a file, each a mapping, or the whole file as one string."""
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            yield from enumerate(_rows(path))
            return
        file.seek(0)
        try:
            content = unpacked(file)
            head = content.peek(1 << 12)
            if head.lstrip().startswith(b"{"):
                yield from _lines(content, path)
            elif head:
                text = content.read().decode()
                listed = _array(text)
                yield from [(0, text)] if listed is None else enumerate(listed)
        except BrokenFile as error:
            raise InputError(error.detail, where=str(path), fix="replace the file") from error
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8: {error.reason} at byte {error.start}", where=str(path), fix="convert the file") from error


def _array(text: str) -> list[Any] | None:
    """The objects or strings of a text that is one JSON array of them; None where it is anything else."""
    try:
        value = orjson.loads(text) if text.lstrip().startswith("[") else None
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, list) and all(isinstance(each, dict | str) for each in value) else None


def _rows(path: Path) -> Iterator[Any]:
    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise InputError(f"not a whole Parquet file: {error}", where=str(path), fix="replace the file") from error


def _lines(content: io.BufferedReader, path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(content):
        if line.strip():
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise InputError(f"line {number + 1} is no JSON: {error}", where=str(path), fix="mend the line") from error
            yield number, value if isinstance(value, dict) else {}


def _at(value: Any, field: str) -> Any:
    """A field of a record; a dot goes into nested ones when no field has that very name."""
    if not isinstance(value, dict) or field in value or "." not in field:
        return value.get(field) if isinstance(value, dict) else None
    outer, _, inner = field.partition(".")
    return _at(value.get(outer), inner)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)
