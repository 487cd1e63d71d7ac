"""WARC and WET: pages become text, a bad record costs only itself, and the archives of other projects are read as they read them."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.read.intake import Intake
from curate.read.piece import Piece
from curate.read.warc import read_warc

SAMPLES = Path(__file__).parents[4] / "shared" / "data" / "warc"
SETTINGS = {"text_field": "text", "id_field": None, "url_field": "url", "date_field": "date", "license_field": None}


def record(kind: str, content: bytes, **fields: str) -> bytes:
    headers = {
        "WARC-Type": kind,
        "WARC-Target-URI": "<http://x.org/>",
        "WARC-Date": "2024-01-02T03:04:05Z",
        "Content-Length": str(len(content)),
    }
    headers |= {name.replace("_", "-"): value for name, value in fields.items()}
    return b"WARC/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n" + content + b"\r\n\r\n"


def response(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    named = {"Content-Type": "text/plain; charset=utf-8"} | {name.replace("_", "-"): value for name, value in headers.items()}
    head = f"HTTP/1.1 {status}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in named.items()) + "\r\n"
    return record("response", head.encode() + body)


def wet(text: bytes, **fields: str) -> bytes:
    return record("conversion", text, Content_Type="text/plain", **fields)


def test_conversions_are_taken_as_they_are(read, pack, tmp_path):
    (tmp_path / "f").write_bytes(
        pack(record("warcinfo", b"x") + wet("Grüße\n".encode(), WARC_Identified_Content_Language="deu") + wet(b"\xff") + wet(b"b"))
    )
    outcome = read(tmp_path / "f", reader="warc")
    assert [(row["text"], row["url"], row["date"], row["record"]) for row in outcome.documents] == [
        ("Grüße\n", "http://x.org/", "2024-01-02T03:04:05Z", 1),
        ("b", "http://x.org/", "2024-01-02T03:04:05Z", 3),
    ]
    assert '"languages":"deu"' in outcome.documents[0]["meta"]
    assert outcome.faults == [(2, "invalid_utf8")]


def test_responses_are_unpacked(read, tmp_path):
    text = "Grüße".encode()
    chunked = b"3\r\n" + text[:3] + b"\r\n4;x=y\r\n" + text[3:] + b"\r\n0\r\n\r\n"
    raw = zlib.compressobj(wbits=-15)
    bodies = [
        response(text),
        response(chunked, Transfer_Encoding="chunked"),
        response(text, Transfer_Encoding="chunked"),
        response(gzip.compress(text), Content_Encoding="gzip"),
        response(text, Content_Encoding="gzip"),
        response(zlib.compress(text), Content_Encoding="deflate"),
        response(raw.compress(text) + raw.flush(), Content_Encoding="deflate"),
        response(zstandard.compress(text), Content_Encoding="zstd"),
        response("Grüße".encode("latin-1"), Content_Type="text/plain; charset=ISO-8859-1"),
    ]
    (tmp_path / "f").write_bytes(b"".join(bodies))
    assert read(tmp_path / "f", reader="warc").texts == ["Grüße"] * len(bodies)


def test_what_is_no_page_is_passed_over(read, tmp_path):
    others = [
        response(b"x", "302 Found"),
        response(b"x", "404 Not Found"),
        response(b"x", Content_Type="image/png"),
        record("request", b"GET /"),
    ]
    (tmp_path / "f").write_bytes(b"".join(others) + wet(b"a"))
    outcome = read(tmp_path / "f", reader="warc")
    assert (outcome.texts, outcome.counts["records"], outcome.documents[0]["record"]) == (["a"], 1, 4)


def test_each_fault_costs_its_own_record_only(read, tmp_path):
    parts = [
        wet(b"a"),
        b"garbage\r\nbetween\r\n",
        wet(b"b"),
        wet(b"c", Content_Length="many"),
        wet(b"d"),
        wet(b"x" * 101),
        wet(b"x" * 2_000_000),
        record("response", b"HTTP/1.1 what\r\n\r\n"),
        response(b"\x1f\x8b\x08broken", Content_Encoding="gzip"),
        response(b"x", Content_Encoding="rot13"),
        response(gzip.compress(b"x" * 3_000_000), Content_Encoding="gzip"),
        response(b"x", Content_Type="text/plain; charset=nonsense"),
        wet(b"e"),
    ]
    (tmp_path / "f").write_bytes(b"".join(parts))
    outcome = read(tmp_path / "f", reader="warc", max_document_bytes=100, max_bad_share=1)
    assert outcome.texts == ["a", "b", "d", "e"]
    assert outcome.faults == [
        (1, "broken_record"),
        (3, "broken_record"),
        (5, "too_large"),
        (6, "too_large"),
        (7, "broken_http"),
        (8, "broken_http"),
        (9, "broken_http"),
        (10, "too_large"),
        (11, "invalid_utf8"),
    ]


@pytest.mark.parametrize("packed", [bytes, gzip.compress, zstandard.compress])
def test_a_truncated_file_keeps_the_records_before(read, tmp_path, packed):
    data = b"".join(packed(wet(b"%d" % number * 50)) for number in range(5))
    (tmp_path / "f").write_bytes(data[:-20])
    outcome = read(tmp_path / "f", reader="warc")
    assert (len(outcome.texts), outcome.faults) == (4, [(None, "truncated_file")])


def test_html_becomes_the_text_of_its_main_content(read, tmp_path):
    pytest.importorskip("resiliparse")
    html = (
        "<html><head><title>T</title><script>var x</script></head><body><nav><a href=x>Home</a></nav><main><p>Größe — "
        + "words " * 50
        + "</p></main></body></html>"
    )
    pages = [
        response(html.encode(), Content_Type="text/html; charset=UTF-8"),
        response(html.replace("<head>", "<head><meta charset=windows-1252>").encode("cp1252"), Content_Type="text/html"),
        response(b"", Content_Type="text/html"),
    ]
    (tmp_path / "f").write_bytes(b"".join(pages))
    first, second, empty = read(tmp_path / "f", reader="warc").texts
    assert first == second and first.startswith("Größe — words") and "Home" not in first and "var x" not in first
    assert empty == ""


def test_a_page_nested_to_stall_the_parser_is_set_aside(read, tmp_path):
    pytest.importorskip("resiliparse")
    deep, flat = b"<div>" * 200_000, b"<div>x</div><p>y<br>" * 20_000
    (tmp_path / "f").write_bytes(b"".join(response(body, Content_Type="text/html") for body in (deep, flat)))
    outcome = read(tmp_path / "f", reader="warc", max_bad_share=1)
    assert (outcome.faults, outcome.counts["documents"]) == ([(0, "broken_html")], 1)


def test_archives_of_other_projects(read):
    if not SAMPLES.is_dir():
        pytest.skip("the sample archives are not here")
    pytest.importorskip("resiliparse")
    expected = {
        "whirlwind/whirlwind.warc.wet.gz": (1, []),
        "whirlwind/whirlwind.warc.gz": (1, []),
        "whirlwind/whirlwind.warc.wat.gz": (0, []),
        "warcio/test/data/example-iana.org-chunked.warc": (1, []),
        "warcio/test/data/example-wrong-chunks.warc.gz": (1, []),
        "warcio/test/data/example-bad-non-chunked.warc.gz": (1, []),
        "warcio/test/data/example-trunc.warc": (1, ["broken_record"]),
        "warcio/test/data/example.arc": (0, ["broken_record"]),
        "pywb/sample_archive/warcs/iana.warc.gz": (16, []),
        "dolma/tests/data/warc/sample-0000.warc.gz": (24, []),
    }
    for name, (documents, reasons) in expected.items():
        outcome = read(SAMPLES / name, reader="warc")
        assert (name, outcome.counts["documents"], [reason for _, reason in outcome.faults]) == (name, documents, reasons)


def test_framing_and_unpacking_agree_with_fastwarc(read):
    if not SAMPLES.is_dir():
        pytest.skip("the sample archives are not here")
    warc = pytest.importorskip("fastwarc.warc")
    from curate.read.blocks import unpacked
    from curate.read.page import http_response
    from curate.read.warc import _records

    # iana.warc.gz holds bodies that were joined before they were stored though their headers say chunked: fastwarc stops there.
    for name, unpacks in [("pywb/sample_archive/warcs/iana.warc.gz", False), ("dolma/tests/data/warc/sample-0000.warc.gz", True)]:
        with open(SAMPLES / name, "rb") as file:
            ours = [
                (row.headers["warc-record-id"], row.content)
                for row in _records(unpacked(file), 10**9)
                if row.headers["warc-type"] == "response"
            ]
        for parse in {False, unpacks}:
            with open(SAMPLES / name, "rb") as file:
                archive = warc.ArchiveIterator(file, parse_http=parse, auto_decode="all", record_types=warc.WarcRecordType.response)
                theirs = [(row.headers["WARC-Record-ID"], row.reader.read()) for row in archive]
            assert [(name, http_response(content, 10**9).body if parse else content) for name, content in ours] == theirs


WHOLE = wet(b"a") + response(b"3\r\nabc\r\n0\r\n\r\n", Transfer_Encoding="chunked") + response(gzip.compress(b"b"), Content_Encoding="gzip")
token = st.sampled_from(
    [
        b"WARC/1.0\r\n",
        b"WARC-Type: conversion\r\n",
        b"Content-Type: text/plain\r\n",
        b"Content-Length: 3\r\n",
        b"\r\n",
        b"abc",
        b"\xff",
        WHOLE,
    ]
)


@given(st.one_of(st.lists(token).map(b"".join), st.binary()), st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_no_bytes_make_the_reader_fail(data, place, byte):
    damaged = bytearray(WHOLE)
    damaged[place] = byte
    for content in (data, bytes(damaged), WHOLE[:place]):
        intake = Intake("src", SETTINGS | {"max_document_bytes": 50})
        intake.begin("f")
        for _ in read_warc(intake, Piece("f", len(content), 0), io.BytesIO(content)):
            pass
        intake.close_group()
        assert intake.records == intake.documents + intake.quarantined
