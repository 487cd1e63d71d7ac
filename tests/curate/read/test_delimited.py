"""CSV: quoting, delimiters, and faults by row."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curate.read.delimited import read_csv
from curate.read.intake import Intake
from curate.read.piece import Piece

SETTINGS = {"text_field": "text", "id_field": None, "url_field": "url", "date_field": None, "license_field": None}


def test_rows_become_documents(read, pack, tmp_path):
    content = '\ufefftext,url,n\r\n"one ""quoted"", with\nline end",u,1\r\n\r\nä,,2\n,v,3\n'
    (tmp_path / "f").write_bytes(pack(content.encode()))
    outcome = read(tmp_path / "f", reader="csv")
    assert [(row["text"], row["url"], row["meta"], row["record"]) for row in outcome.documents] == [
        ('one "quoted", with\nline end', "u", '{"n":"1"}', 0),
        ("ä", None, '{"n":"2"}', 1),
        ("", "v", '{"n":"3"}', 2),
    ]


@pytest.mark.parametrize("delimiter", list(",\t;|"))
def test_the_delimiter_is_told_by_the_first_line(read, tmp_path, delimiter):
    (tmp_path / "f").write_text(delimiter.join(["text", "a", "b"]) + "\n" + delimiter.join(["x", "1", "2"]) + "\n")
    outcome = read(tmp_path / "f", reader="csv")
    assert (outcome.texts, outcome.documents[0]["meta"]) == (["x"], '{"a":"1","b":"2"}')


def test_each_fault_costs_its_own_row_only(read, tmp_path):
    rows = [b"a,1", b"b", b"c,1,2", b"bad \xff,1", b"x" * 101 + b",1", b"y" * 2_000_000 + b",1", b"d,1"]
    (tmp_path / "f").write_bytes(b"text,n\n" + b"\n".join(rows) + b'\n"never closed,' + b"z" * 200 + b"\ne,1\n")
    outcome = read(tmp_path / "f", reader="csv", max_document_bytes=100, max_bad_share=1)
    assert outcome.texts == ["a", "d", "e"]
    expected = [(1, "wrong_columns"), (2, "wrong_columns"), (3, "invalid_utf8"), (4, "too_large"), (5, "too_large"), (7, "too_large")]
    assert outcome.faults == expected


def test_a_first_row_that_names_no_fields(read, tmp_path):
    for header in (b"\n", b"a,a\n", b"a,b\n"):
        (tmp_path / "f").write_bytes(header + b"x,y\n")
        outcome = read(tmp_path / "f", reader="csv", max_bad_share=1)
        assert outcome.faults == ([(0, "no_text")] if header == b"a,b\n" else [(None, "unreadable_file")])


@given(st.lists(st.tuples(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r")), st.integers())))
@settings(max_examples=100, deadline=None)
def test_what_the_csv_module_writes_is_read_back(rows):
    sink = io.StringIO(newline="")
    csv.writer(sink, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([("text", "n"), *rows])
    assert take(sink.getvalue().encode()) == [text for text, _ in rows]


@given(st.one_of(st.binary(), st.lists(st.sampled_from([b'"', b",", b"\n", b"\r", b"a", b"\xff", b"text", b"\0"])).map(b"".join)))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_make_the_reader_fail(data):
    take(b"text,n\n" + data)
    take(data)


def take(data: bytes) -> list[str]:
    before = csv.field_size_limit()
    intake = Intake("src", SETTINGS | {"max_document_bytes": 1000})
    intake.begin("f")
    for _ in read_csv(intake, Piece("f", len(data), 0), io.BytesIO(data)):
        pass
    intake.close_group()
    assert intake.records == intake.documents + intake.quarantined
    assert csv.field_size_limit() == before
    return [text for table in intake.ready for text in table.column("text").to_pylist()]
