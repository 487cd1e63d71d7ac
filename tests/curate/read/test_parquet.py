"""Parquet: odd types are kept, bad values and bad row groups cost only themselves."""

from __future__ import annotations

import datetime
import decimal
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard


def test_columns_are_fields(read, parquet):
    table = pa.table({"text": ["a", "b", None], "url": ["u", None, "w"], "n": [1, None, 3], "deep": [{"x": [1]}, None, None]})
    outcome = read(parquet(table), reader="parquet")
    assert [(row["text"], row["url"], row["meta"], row["record"]) for row in outcome.documents] == [
        ("a", "u", '{"deep":{"x":[1]},"n":1}', 0),
        ("b", None, None, 1),
    ]
    assert outcome.faults == [(2, "null_text")]


def test_a_packed_file_is_unpacked(read, parquet):
    file = parquet(pa.table({"text": ["a", "b"]}))
    whole = file.read_bytes()
    for content, found in (
        (gzip.compress(whole[:60]) + gzip.compress(whole[60:]), (["a", "b"], [])),
        (zstandard.compress(whole), (["a", "b"], [])),
        (gzip.compress(whole)[:-20], ([], [(None, "truncated_file")])),
    ):
        file.write_bytes(content)
        outcome = read(file, reader="parquet")
        assert ([row["text"] for row in outcome.documents], outcome.faults) == found


def test_odd_types_go_to_meta_as_json(read, parquet):
    moment = datetime.datetime(2024, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "text": pa.array(["a"], pa.large_string()),
            "date": pa.array([moment.date()]),
            "when": pa.array([moment]),
            "far": pa.array([2**62], pa.timestamp("us")),
            "fine": pa.array([1], pa.timestamp("ns")),
            "price": pa.array([decimal.Decimal("1.50")]),
            "raw": pa.array([b"\xff\x00"]),
            "pairs": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
            "kind": pa.array(["x"]).dictionary_encode(),
            "long": pa.array([datetime.timedelta(seconds=5)]),
            "nan": pa.array([float("nan")]),
            "nothing": pa.nulls(1),
        }
    )
    row = read(parquet(table), reader="parquet").documents[0]
    assert row["date"] == "2024-02-03"
    meta = json.loads(row["meta"])
    assert {key: meta[key] for key in ("price", "raw", "pairs", "kind", "nan")} == {
        "price": "1.50",
        "raw": "ff00",
        "pairs": [["k", 1]],
        "kind": "x",
        "nan": None,
    }
    assert meta["when"].startswith("2024-02-03T04:05:06") and meta["far"] and "long" in meta and "nothing" not in meta


def test_text_of_other_types(read, parquet):
    for array, expected in [
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
        (pa.array([b"a", b"\xff"], pa.binary()), ["a"]),
        (pa.array([1, 2]), []),
    ]:
        outcome = read(parquet(pa.table({"text": array})), reader="parquet", max_bad_share=1)
        assert outcome.texts == expected
        assert {reason for _, reason in outcome.faults} <= {"invalid_utf8", "text_not_string"}
        assert outcome.counts["records"] == 2


def test_invalid_utf8_in_a_string_column_costs_its_record_only(read, parquet):
    bad = pa.Array.from_buffers(pa.string(), 3, pa.array([b"good", b"\xff", b"also"], pa.binary()).buffers())
    outcome = read(parquet(pa.table({"text": bad, "n": [0, 1, 2]})), reader="parquet")
    assert outcome.texts == ["good", "also"]
    assert outcome.faults == [(1, "invalid_utf8")]


def test_a_file_without_the_text_column(read, parquet):
    outcome = read(parquet(pa.table({"body": ["a", "b"]})), reader="parquet")
    assert outcome.faults == [(0, "no_text"), (1, "no_text")]
    assert read(parquet(pa.table({"body": ["a", "b"]})), reader="parquet", text_field="body").texts == ["a", "b"]


def test_cut_between_row_groups_with_the_same_documents(read, parquet, tmp_path):
    table = pa.table({"text": [f"{number} " * 50 for number in range(1000)]})
    parquet(table, row_group_size=90)
    whole = read(tmp_path / "x.parquet", reader="parquet")
    for shard_bytes in (1, 20_000, 50_000):
        split = read(tmp_path / "x.parquet", reader="parquet", shard_bytes=shard_bytes)
        assert split.documents == whole.documents
        assert split.counts == whole.counts
    assert [row["record"] for row in whole.documents] == list(range(1000))


def test_a_damaged_row_group_costs_only_itself(read, parquet, tmp_path):
    path = parquet(pa.table({"text": [f"{number} " * 50 for number in range(300)]}), row_group_size=100, compression="zstd")
    column = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    place = column.dictionary_page_offset or column.data_page_offset
    data[place : place + column.total_compressed_size] = b"\xee" * column.total_compressed_size
    path.write_bytes(data)
    outcome = read(path, reader="parquet")
    assert [row["record"] for row in outcome.documents] == [*range(100), *range(200, 300)]
    assert outcome.faults == [(None, "unreadable_file")]
    assert "row group 1, 100 rows from 100" in outcome.quarantine[0]["detail"]


def test_what_is_no_parquet_file_is_set_aside(read, parquet, tmp_path):
    parquet(pa.table({"text": ["a" * 1000]}), "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    (tmp_path / "c.parquet").write_bytes(b"")
    for shard_bytes in (1, 10**9):
        outcome = read(tmp_path / "*.parquet", reader="parquet", shard_bytes=shard_bytes)
        assert outcome.counts["documents"] == 1
        assert [(row["path"], row["record"], row["reason"]) for row in outcome.quarantine] == [
            ("b.parquet", None, "unreadable_file"),
            ("c.parquet", None, "unreadable_file"),
        ]
        assert str(tmp_path) not in str(outcome.quarantine)
