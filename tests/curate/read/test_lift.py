"""Lifting texts out of JSON lines changes nothing but the time: every line gives what the JSON parser alone makes of it."""

from __future__ import annotations

import io
import json
from unittest import mock

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from curate.read.intake import Intake
from curate.read.jsonl import read_jsonl
from curate.read.lift import LINES, Lifter, Line
from curate.read.piece import Piece

SETTINGS = {"text_field": "text", "id_field": "id", "url_field": None, "date_field": None, "license_field": None, "max_document_bytes": 60}


def lifted(run: bytes, field: str = "text") -> list[bytes | None]:
    return [line.texts[line.row].as_buffer().to_pybytes() if line.rest else None for line in Lifter(field).lift(run)]


def unlifted(self: Lifter, run: bytes) -> list[Line]:
    lines, start = [], 0
    for line in run.removesuffix(b"\n").split(b"\n"):
        lines.append(Line(start, start + len(line), b"", pa.array([]), 0, 0, 0))
        start += len(line) + 1
    return lines


def tables(data: bytes) -> tuple[list[pa.Table], pa.Table, dict[str, int]]:
    intake = Intake("src", SETTINGS)
    intake.begin("f")
    for _ in read_jsonl(intake, Piece("f", len(data), 0), io.BytesIO(data)):
        pass
    intake.close_group()
    return intake.ready, intake.quarantine(), intake.counts()


def escaped(text: str, ways: list[int]) -> str:
    """The text as a JSON string whose characters are written in ways of one's choice."""
    units = []
    for character, way in zip(text, ways * len(text), strict=False):
        plain = json.dumps(character, ensure_ascii=False)[1:-1]
        utf16 = character.encode("utf-16-be").hex()
        coded = "".join("\\u" + (utf16[i : i + 4].upper() if way == 3 else utf16[i : i + 4]) for i in range(0, len(utf16), 4))
        units.append(plain if way == 0 else "\\/" if character == "/" and way == 1 else coded)
    return '"' + "".join(units) + '"'


@given(st.lists(st.text(max_size=40), min_size=1), st.lists(st.integers(0, 3), min_size=1), st.booleans())
@settings(deadline=None)
def test_a_text_is_lifted_however_it_is_escaped(texts, ways, first):
    def line(number: int, text: str) -> str:
        fields = [f'"id": {number}', f'"text" :{escaped(text, ways)}', '"meta": {"text": "no", "a": ["text", "\\"text\\":"]}']
        return "{" + ", ".join(fields if first else fields[::-1]) + "}"

    run = "\n".join(line(number, text) for number, text in enumerate(texts)).encode()
    assert lifted(run) == [text.encode() for text in texts]
    for line_, number in zip(Lifter("text").lift(run), range(len(texts)), strict=True):
        assert orjson.loads(line_.rest) == json.loads(line(number, ""))
        assert (line_.characters, line_.size) == (len(texts[number]), len(texts[number].encode()))


bytes_of_lines = [bytes([byte]) for byte in b'{}[]:,"\\\n\r \0\xff1']
tokens = [b'{"text":', b'"text"', b"'text'", b'"a"', b'"\xc3\xa9"', b'{"id":"1","text":"b"}', b'"id":', b'"id":1', b"null", b"x" * 30]
escapes = [b'"te\\u0078t":', b"\\ud800", b"\\u0041", b"\\n"]


@given(st.lists(st.sampled_from([*bytes_of_lines, *tokens, *escapes])).map(b"".join))
@example(b'{"id":1,"text":1"abc"}')
@example(b'{"id":1,"text":"a""b"}')
@example(b'{"id":1,"text":"a","text":"b"}')
@example(b'{"id":1,"text":"a","te\\u0078t":"b"}')
@example(b'{"id":1,"text":"a"}{"id":2}')
@example(b'[{"id":1,"text":"a"}]')
@example(b'{"id":1,"text":"' + b"\xc3\xa9" * 31 + b'"}')
@example(b'{"id":12345678901234567890123,"text":"a"}')
@settings(max_examples=1000, deadline=None)
def test_every_line_gives_what_the_parser_alone_makes_of_it(data):
    ours = tables(data)
    with mock.patch.object(Lifter, "lift", unlifted):
        assert ours == tables(data)


@pytest.mark.parametrize(
    "line",
    [
        b'{"body": "a"}',
        b'{"text": 5, "a": "b"}',
        b'{"text": ["a"]}',
        b'{"text": {"a": "b"}}',
        b'{"text": "a", "text": "b"}',
        b'{"a": {"text": "b"}}',
        b'[{"text": "a"}]',
        b'{"text": "\\ud83d"}',
        b'{"text": "\\udc00\\ud83d"}',
        b'{"text": "\\u12g4"}',
        b'{"text": "\\x"}',
        b'{"text": "a\tb"}',
        b'{"text": "a',
        b'{"text": "a\\',
        b'{"text": "\\u12',
        b'{"text',
        b"",
    ],
)
def test_what_is_not_surely_a_text_is_left_to_the_parser_and_its_neighbours_are_not(line):
    assert lifted(b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n') == [b"before", None, b"after"]


def test_a_text_that_begins_with_the_last_byte_is_written_within_its_room():
    run = b'{"text":"'
    lifter, guarded = Lifter("text"), np.zeros(len(run) + 1, np.uint8)
    lifter._rests = guarded[:-1]
    assert [line.rest for line in lifter.lift(run)] == [b""] and not guarded[-1]


def test_short_texts_of_long_lines_hold_no_more_memory_than_they_take():
    (line,) = Lifter("text").lift(b'{"text": "short", "more": "%s"}\n' % (b"x" * 100_000))
    assert line.texts.to_pylist() == ["short"] and sum(buffer.size for buffer in line.texts.buffers() if buffer is not None) < 100


def test_bytes_that_are_no_utf8_leave_the_lines_around_them_to_the_parser():
    assert lifted(b'{"text": "a"}\n{"text": "\xff"}\n') == [None, None]


def test_a_run_of_many_lines_is_lifted_to_its_end():
    texts = [b"%d" % number for number in range(2 * LINES + 5)]
    assert lifted(b"".join(b'{"text": "%s"}\n' % text for text in texts)) == texts


@pytest.mark.parametrize("field", ["a b", "téxt", 'a"b', "a\\b"])
def test_a_field_of_any_name(field):
    run = json.dumps({field: "x"}, ensure_ascii=False).encode()
    plain = '"' not in field and "\\" not in field
    assert lifted(run, field) == [b"x" if plain else None]
