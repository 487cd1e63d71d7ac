"""JSON lines: each is judged by itself, so that one bad line never costs its neighbours."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import orjson

from curate.read.blocks import PLAIN_BLOCK, BrokenFile, blocks, compression, whole_lines
from curate.read.intake import Intake, Record, holder
from curate.read.lift import Lifter, Line
from curate.read.piece import Piece
from curate.read.remote import open_place

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
EXPONENT = orjson.dumps(1e16)[1:-2]
"""What every number that orjson rounded has when it is written again: ``e+``, and ``e`` by older versions."""


def cut_jsonl(piece: Piece, location: str, shard_bytes: int) -> Iterator[tuple[Piece, int]]:
    """Cut a plain file larger than a shard at line ends, with the number of each part's first line; others stay whole.

    Yields:
        Parts with their bytes.
    """
    if piece.size <= shard_bytes:
        yield piece, piece.size
        return
    with open_place(location) as file:
        if compression(file.read(4)) is not None:
            yield piece, piece.size
            return
        file.seek(0)
        start = first = offset = number = 0
        while block := file.read(PLAIN_BLOCK):
            goal = max(start + shard_bytes - offset, 0)
            while (end := block.find(b"\n", goal) + 1) > 0 and offset + end < piece.size:
                yield piece._replace(start=start, stop=offset + end, first=first), offset + end - start
                start, first = offset + end, number + block.count(b"\n", 0, end)
                goal = end + shard_bytes
            number += block.count(b"\n")
            offset += len(block)
        yield piece._replace(start=start, stop=piece.size, first=first), piece.size - start


def read_jsonl(intake: Intake, piece: Piece, file: BinaryIO) -> Iterator[None]:
    """Take the records of a file, or of its lines from ``piece.first`` on; yields now and then. Blank lines are no records."""
    file.seek(piece.start)
    intake.input_bytes += (piece.size if piece.stop is None else piece.stop) - piece.start
    # A text of n bytes takes at most 6n as JSON, all escaped; the rest is for the other fields.
    limit = 6 * intake.max_bytes + (1 << 20)
    number = piece.first
    lifter = Lifter(intake.text_field)
    try:
        for run in whole_lines(blocks(file, piece.stop), limit):
            if number == 0 and isinstance(run, bytes):
                run = run.removeprefix(BYTE_ORDER_MARK)
            if isinstance(run, int):
                intake.records += 1
                _refuse_length(intake, run, number)
                number += 1
                continue
            for line in lifter.lift(run):
                intake.records += 1
                if line.stop - line.start > limit:
                    _refuse_length(intake, line.stop - line.start, number)
                elif not line.rest or not _take_lifted(intake, line, number):
                    _take(intake, run[line.start : line.stop], number)
                number += 1
            yield
    except BrokenFile as error:
        if _is_whole(error.tail):
            intake.records += 1
            _take(intake, error.tail, number)
            error.tail = b""
        where = f"after line {number - 1}" if number else "before the first line ends"
        intake.refuse_file(error.reason, f"{error.detail}; {where}", len(error.tail))


def _take_lifted(intake: Intake, line: Line, number: int) -> bool:
    """Take a record whose text was lifted, unless its line is to be judged whole."""
    try:
        record = _loads(line.rest)
    except orjson.JSONDecodeError:
        return False
    del record[intake.text_field]
    if intake.id_field is not None:
        _keep_id(record, intake.id_field, line.rest)
    intake.take_lifted(record, line, number)
    return True


def _take(intake: Intake, line: bytes, number: int) -> None:
    try:
        record = _loads(line)
    except orjson.JSONDecodeError as error:
        _refuse(intake, line, number, error.msg)
        return
    if type(record) is not dict:
        intake.refuse(number, "not_an_object", f"the line is of type {type(record).__name__}", len(line))
        return
    if intake.id_field is not None:
        _keep_id(record, intake.id_field, line)
    intake.take(record, number, len(line))


def _loads(line: bytes) -> Any:
    """What a line holds, with whole numbers beyond 64 bits, which orjson rounds, as they are written."""
    value = orjson.loads(line)
    if type(value) is dict and any(type(field) in (float, dict, list) for field in value.values()):
        with contextlib.suppress(TypeError, ValueError, RecursionError):  # nested too deep to look, thousands of digits
            if EXPONENT in orjson.dumps(value):
                return json.loads(line)
    return value


def _keep_id(record: Record, field: str, line: bytes) -> None:
    """Put an id back as it was written where it is a number with a point or an exponent, or of thousands of digits."""
    held = holder(record, field)
    if held is not None and type(held[0][held[1]]) is float:
        with contextlib.suppress(RecursionError):
            written = holder(json.loads(line, parse_float=str, parse_int=str), field)
            held[0][held[1]] = held[0][held[1]] if written is None else written[0][written[1]]


def _refuse(intake: Intake, line: bytes, number: int, message: str) -> None:
    """Say what is wrong with a line that orjson refused."""
    if not line.strip():
        intake.records -= 1
    elif (reason := _undecodable(line)) is not None:
        intake.refuse(number, "invalid_utf8", reason, len(line))
    else:
        intake.refuse(number, "broken_json", message, len(line))


def _refuse_length(intake: Intake, size: int, number: int) -> None:
    intake.refuse(number, "too_large", f"a line of {size:,} bytes, max_document_bytes = {intake.max_bytes:,}", size)


def _undecodable(line: bytes) -> str | None:
    """Why a line holds no valid text: bytes that are not UTF-8, or escapes of lone surrogates."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return f"{error.reason} at byte {error.start}"
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "an escape of half a surrogate pair"
    except (ValueError, RecursionError):
        pass
    return None


def _is_whole(tail: bytes) -> bool:
    """Whether what is left before a break is a whole object: it ends with its brace, so nothing can be missing."""
    try:
        return type(orjson.loads(tail)) is dict
    except orjson.JSONDecodeError:
        return False
