"""JSON lines: every fault costs its own record only, and nothing depends on how the file is packed or cut."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curate.read import list_shards
from curate.read.blocks import BrokenFile, lines
from curate.read.intake import Intake
from curate.read.jsonl import cut_jsonl, read_jsonl
from curate.read.piece import Piece
from schemas.sources import Source

SETTINGS = {"text_field": "text", "id_field": None, "url_field": "url", "date_field": "date", "license_field": "license"}
FAULTY = [
    (b'{"text": "first"}', None),
    (b'{"text": "bad \xff byte"}', "invalid_utf8"),
    (b'{"text": "cut', "broken_json"),
    (b'{"text": 1} {"text": 2}', "broken_json"),
    (b'{"text": NaN}', "broken_json"),
    (b"[1, 2]", "not_an_object"),
    (b'"text"', "not_an_object"),
    (b'{"body": "no text here"}', "no_text"),
    (b'{"text": null}', "null_text"),
    (b'{"text": ["a"]}', "text_not_string"),
    (b'{"text": "half \\ud83d of a pair"}', "invalid_utf8"),
    (b'{"text": "ok", "other": "\\udc00"}', "invalid_utf8"),
    (b'{"text": "' + b"x" * 1001 + b'"}', "too_large"),
    ('{{"text": "{}"}}'.format("é" * 501).encode(), "too_large"),
    (b'{"text": "' + b"x" * 1000 + b'"}', None),
    (b'{"text": ""}', None),
    (b'{"text": "pair \\ud83d\\ude00 whole"}', None),
    (b"[" * 5000, "broken_json"),
    (b'{"text": "last"}', None),
]


def test_each_fault_costs_its_own_record_only(read, pack, tmp_path):
    (tmp_path / "f").write_bytes(pack(b"\n".join(line for line, _ in FAULTY) + b"\n"))
    outcome = read(tmp_path / "f", max_document_bytes=1000)
    assert outcome.faults == [(number, reason) for number, (_, reason) in enumerate(FAULTY) if reason]
    assert [row["record"] for row in outcome.documents] == [number for number, (_, reason) in enumerate(FAULTY) if not reason]
    assert outcome.texts == ["first", "x" * 1000, "", "pair 😀 whole", "last"]
    assert outcome.counts["records"] == len(FAULTY)
    assert all(row["bytes"] == len(FAULTY[row["record"]][0]) and row["path"] == "f" and row["detail"] for row in outcome.quarantine)


def test_compression_is_told_by_content_not_by_name(read, tmp_path):
    data = b'{"text": "a"}\n'
    (tmp_path / "1.jsonl").write_bytes(gzip.compress(data))
    (tmp_path / "2.jsonl.gz").write_bytes(zstandard.compress(data))
    (tmp_path / "3.jsonl.zst").write_bytes(data)
    assert read(tmp_path / "*.jsonl*").texts == ["a", "a", "a"]


def test_blank_lines_are_no_records_but_count_as_places(read, tmp_path):
    (tmp_path / "f").write_bytes(b'\n{"text": "a"}\r\n  \n\n{"text": "b"}')
    outcome = read(tmp_path / "f")
    assert [(row["record"], row["text"]) for row in outcome.documents] == [(1, "a"), (4, "b")]
    assert outcome.counts["records"] == 2


def test_a_byte_order_mark_is_passed_over(read, tmp_path):
    (tmp_path / "f").write_bytes(b'\xef\xbb\xbf{"text": "a"}\n')
    assert read(tmp_path / "f").texts == ["a"]


@pytest.mark.parametrize("packed", [gzip.compress, zstandard.compress])
def test_a_truncated_stream_keeps_what_came_before(read, tmp_path, packed):
    noise = random.Random(5)
    texts = ["".join(noise.choices("abcdefghijklmnop", k=400)) for _ in range(3000)]
    data = packed("".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
    (tmp_path / "whole").write_bytes(data)
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    outcome = read(tmp_path / "cut")
    kept = outcome.counts["documents"]
    assert 500 < kept < 2500
    assert outcome.texts == texts[:kept]
    assert outcome.faults == [(None, "truncated_file")]
    assert f"after line {kept - 1}" in outcome.quarantine[0]["detail"]
    assert read(tmp_path / "whole").texts == texts


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_gzip_cut_in_its_trailer_loses_no_record(read, tmp_path, cut):
    (tmp_path / "f").write_bytes(gzip.compress(b'{"text": "a"}\n{"text": "b"}')[:-cut])
    outcome = read(tmp_path / "f")
    assert outcome.texts == ["a", "b"]
    assert outcome.faults == [(None, "truncated_file")]


def test_a_stream_cut_in_its_first_line_says_so(read, tmp_path):
    (tmp_path / "f").write_bytes(gzip.compress(b'{"text": "a"}\n')[:-12])
    assert read(tmp_path / "f").quarantine[0]["detail"].endswith("before the first line ends")


def test_a_damaged_stream_keeps_what_came_before(read, tmp_path):
    first, second = gzip.compress(b'{"text": "a"}\n'), gzip.compress(b'{"text": "b"}\n')
    (tmp_path / "crc").write_bytes(first + second[:-8] + b"\0" * 4 + second[-4:])
    (tmp_path / "garbage").write_bytes(first + b"not gzip at all")
    (tmp_path / "padding").write_bytes(first + b"\0" * 512 + second + b"\0" * 512)
    assert read(tmp_path / "crc").faults == [(None, "unreadable_file")]
    assert read(tmp_path / "garbage").texts == ["a"]
    assert read(tmp_path / "garbage").faults == [(None, "unreadable_file")]
    assert read(tmp_path / "padding").texts == ["a", "b"]
    assert read(tmp_path / "padding").faults == []


def test_a_skippable_frame_of_zstandard_is_skipped(read, tmp_path):
    frame = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    (tmp_path / "f").write_bytes(frame + zstandard.compress(b'{"text": "a"}\n') + frame + zstandard.compress(b'{"text": "b"}\n'))
    assert read(tmp_path / "f").texts == ["a", "b"]


def test_a_document_of_50_mb_is_set_aside_and_its_neighbours_kept(read, tmp_path, pack_large):
    big = b'{"text": "' + b"x" * 50_000_000 + b'"}'
    (tmp_path / "f").write_bytes(pack_large(b'{"text": "a"}\n' + big + b'\n{"text": "b"}\n'))
    outcome = read(tmp_path / "f")
    assert outcome.texts == ["a", "b"]
    assert outcome.faults == [(1, "too_large")]
    assert read(tmp_path / "f", max_document_bytes=60_000_000).counts["bytes_in"] == 50_000_002


@pytest.fixture(params=["plain", "gzip", "zstd"])
def pack_large(request):
    return {"plain": bytes, "gzip": lambda data: gzip.compress(data, 1), "zstd": zstandard.compress}[request.param]


def test_a_line_without_end_is_not_held(read, tmp_path, pack_large):
    (tmp_path / "f").write_bytes(pack_large(b'{"text": "a"}\n' + b"x" * 20_000_000 + b'\n{"text": "b"}\n' + b"y" * 20_000_000))
    outcome = read(tmp_path / "f", max_document_bytes=1000)
    assert outcome.texts == ["a", "b"]
    assert [(row["record"], row["reason"], row["bytes"]) for row in outcome.quarantine] == [
        (1, "too_large", 20_000_000),
        (3, "too_large", 20_000_000),
    ]


def test_fields_go_to_their_columns_and_the_others_to_meta(read, tmp_path):
    rows = [
        {"text": "a", "url": "u", "date": 2024, "license": None, "z": 1, "a": {"y": [1.5, None], "b": "é"}},
        {"text": "b", "url": {"odd": True}, "score": 10**30},
        {"text": "c"},
    ]
    (tmp_path / "f").write_text("\n".join(map(json.dumps, rows)))
    first, second, third = read(tmp_path / "f").documents
    assert (first["url"], first["date"], first["license"], first["meta"]) == ("u", "2024", None, '{"a":{"b":"é","y":[1.5,null]},"z":1}')
    assert (second["url"], json.loads(second["meta"])) == ('{"odd":true}', {"score": 10**30})
    assert third["meta"] is None


def test_nesting_deeper_than_the_fast_encoder_takes_is_kept(read, tmp_path):
    deep = b"[" * 400 + b"]" * 400
    (tmp_path / "f").write_bytes(b'{"text": "a", "deep": ' + deep + b"}")
    assert json.loads(read(tmp_path / "f").documents[0]["meta"]) == {"deep": json.loads(deep)}


def test_declared_ids_make_the_identity(read, tmp_path):
    lines = [b'{"text": "a", "key": "k1"}', b'{"text": "b"}', b'{"text": "c", "key": 340282366920938463463374607431768211457}']
    lines += [b'{"text": "d", "key": 340282366920938463463374607431768211458}', b'{"text": "e", "key": 7}', b'{"text": "f", "key": ""}']
    (tmp_path / "f").write_bytes(b"\n".join(lines))
    outcome = read(tmp_path / "f", id_field="key")
    assert [row["id"] for row in outcome.documents] == ["k1", lines[2][-40:-1].decode().strip(), lines[3][-40:-1].decode().strip(), "7"]
    assert len({row["doc_id"] for row in outcome.documents}) == 4
    assert outcome.faults == [(1, "no_id"), (5, "no_id")]
    (tmp_path / "g").write_bytes(lines[0])
    assert read(tmp_path / "g", id_field="key").documents[0]["doc_id"] == outcome.documents[0]["doc_id"]
    assert read(tmp_path / "g", id_field="key", name="other").documents[0]["doc_id"] != outcome.documents[0]["doc_id"]


@pytest.mark.parametrize("shard_bytes", [1, 100, 1000, 5000, 10**9])
def test_any_split_gives_the_same_documents(read, tmp_path, shard_bytes):
    noise = random.Random(1)
    for name in ("a", "b/c"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = [json.dumps({"text": "é" * noise.randrange(300)}).encode() for _ in range(60)]
        content[7] = b""
        content[30] = b"broken"
        path.write_bytes(b"\n".join(content))
    whole, split = read(tmp_path / "in"), read(tmp_path / "in", shard_bytes=shard_bytes)
    assert split.documents == whole.documents
    assert split.quarantine == whole.quarantine
    assert split.counts == whole.counts


@given(st.binary(max_size=200), st.integers(1, 60))
@settings(max_examples=200, deadline=None)
def test_cuts_are_line_ends_with_their_line_numbers(tmp_path_factory, data, shard_bytes):
    path = tmp_path_factory.mktemp("cut") / "f"
    path.write_bytes(data)
    piece = Piece("f", len(data), 0)
    parts = [part for part, _ in cut_jsonl(piece, str(path), shard_bytes)]
    places = [(part.start, len(data) if part.stop is None else part.stop) for part in parts]
    assert [start for start, _ in places] == [0, *[stop for _, stop in places][:-1]]
    assert places[-1][1] == len(data)
    for part, (start, _) in zip(parts, places, strict=True):
        assert start == 0 or data[start - 1 : start] == b"\n"
        assert part.first == data[:start].count(b"\n")


def test_the_same_input_gives_the_same_bytes_with_any_number_of_workers(read, tmp_path):
    (tmp_path / "f").write_bytes(b"".join(b'{"text": "%d"}\nbad\n' % number for number in range(2000)))
    one = read(tmp_path / "f", shard_bytes=3000)
    assert len(one.digests) > 20
    assert read(tmp_path / "f", shard_bytes=3000, workers=2).digests == one.digests


def test_row_groups_follow_documents_not_packing(read, tmp_path):
    data = b"".join(b'{"text": "%s"}\n' % (b"x" * 50_000) for _ in range(400))
    (tmp_path / "1").write_bytes(data)
    (tmp_path / "2").write_bytes(gzip.compress(data))
    plain, packed = read(tmp_path / "1"), read(tmp_path / "2")
    assert plain.groups == packed.groups == [160, 160, 80]


def test_settings_that_readers_do_not_read_change_no_key(tmp_path):
    (tmp_path / "f").write_text('{"text": "a"}')
    shards = [list_shards("src", Source(reader="jsonl", paths=[str(tmp_path / "f")], **more), 1000) for more in ({}, {"max_epochs": 3})]
    assert shards[0] == shards[1]
    assert list_shards("src", Source(reader="jsonl", paths=[str(tmp_path / "f")], url_field="u"), 1000)[0].inputs != shards[0][0].inputs


def fuzz(data: bytes, directory: Path, **more) -> Intake:
    (directory / "f").write_bytes(data)
    intake = Intake("src", SETTINGS | {"max_document_bytes": 50} | more)
    intake.begin("f")
    with (directory / "f").open("rb") as file:
        for _ in read_jsonl(intake, Piece("f", len(data), 0), file):
            pass
    intake.close_group()
    assert intake.records == intake.documents + intake.quarantined
    assert intake.quarantine().num_rows == intake.quarantined + intake.broken_files
    return intake


token = st.sampled_from(
    [b'{"text":', b'"a"', b"}", b"\n", b"\\ud800", b"\xff", b'"', b"null", b'{"text":"b"}', b"[", b"\0", b"1e9", b",", b'"id":']
)


@given(st.one_of(st.binary(), st.lists(token).map(b"".join)), st.sampled_from([None, "id"]))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_make_the_reader_fail_or_lose_a_record(tmp_path, data, id_field):
    intake = fuzz(data, tmp_path, id_field=id_field)
    if not data.startswith((b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf")):
        assert intake.records == sum(bool(line.strip()) for line in data.split(b"\n"))


@given(st.lists(token).map(b"".join), st.booleans(), st.integers(0, 100), st.integers(0, 255))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_to_a_compressed_file_makes_the_reader_fail(tmp_path, data, zstd, place, byte):
    packed = bytearray((zstandard.compress if zstd else gzip.compress)(data))
    if place < len(packed):
        packed[place] = byte
    fuzz(bytes(packed), tmp_path)
    fuzz(bytes(packed[:place]), tmp_path)


@given(st.lists(st.binary(max_size=12)), st.integers(1, 20))
def test_lines_of_blocks_equal_lines_of_the_whole(blocks, limit):
    whole = b"".join(blocks)
    expected = [line if len(line) <= limit else len(line) for line in whole.split(b"\n")]
    if expected[-1] == b"":
        expected.pop()
    assert [line for group in lines(blocks, limit) for line in group] == expected


def test_lines_give_what_was_left_before_a_break():
    def content():
        yield b"a\nb"
        yield b"c"
        raise BrokenFile("truncated_file", "cut")

    reader = lines(content(), 100)
    assert next(reader) == [b"a"]
    with pytest.raises(BrokenFile) as error:
        next(reader)
    assert error.value.tail == b"bc"


def test_a_field_inside_another_is_named_with_a_dot(read, tmp_path):
    rows = [
        {"doc": {"body": "a", "page": {"url": "u"}, "n": 1}},
        {"doc.body": "b", "doc": {"body": "c"}},
        {"doc": {"page": 1}},
        {"doc": [1]},
    ]
    (tmp_path / "f").write_text("\n".join(map(json.dumps, rows)))
    outcome = read(tmp_path / "f", text_field="doc.body", url_field="doc.page.url")
    assert [(row["text"], row["url"], row["meta"]) for row in outcome.documents] == [
        ("a", "u", '{"doc":{"n":1}}'),
        ("b", None, '{"doc":{"body":"c"}}'),
    ]
    assert outcome.faults == [(2, "no_text"), (3, "no_text")]


def test_nested_ids_beyond_64_bits_stay_apart(read, tmp_path):
    (tmp_path / "f").write_text("".join(f'{{"text": "t", "m": {{"id": 12345678901234567890{n}, "x": 1.5}}}}\n' for n in range(3)))
    documents = read(tmp_path / "f", id_field="m.id").documents
    assert [row["id"] for row in documents] == [f"12345678901234567890{n}" for n in range(3)]
    assert {row["meta"] for row in documents} == {'{"m":{"x":1.5}}'}


def test_whole_numbers_of_any_length_are_kept_as_they_are_written(read, tmp_path):
    rows = [
        '{"text": "a", "n": 123456789012345678901234567890, "deep": [{"m": -98765432109876543210}], "x": 1.5}',
        '{"text": "b", "y": 1e300}',
    ]
    (tmp_path / "f").write_text("\n".join(rows))
    assert [row["meta"] for row in read(tmp_path / "f").documents] == [
        '{"deep":[{"m":-98765432109876543210}],"n":123456789012345678901234567890,"x":1.5}',
        '{"y":1e+300}',
    ]
