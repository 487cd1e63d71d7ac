"""Arrow IPC and folders saved by ``datasets``."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curate.read.arrow import read_arrow
from curate.read.intake import Intake
from curate.read.piece import Piece
from schemas.errors import InputError


def ipc(table: pa.Table, stream: bool) -> bytes:
    sink = io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return sink.getvalue()


TABLE = pa.table({"text": [f"text {number}" for number in range(3000)], "n": list(range(3000))})


@pytest.mark.parametrize("stream", [True, False])
def test_streams_and_files_packed_or_not(read, pack_whole, tmp_path, stream):
    (tmp_path / "f").write_bytes(pack_whole(ipc(TABLE, stream)))
    outcome = read(tmp_path / "f", reader="arrow")
    assert outcome.texts == TABLE.column("text").to_pylist()
    assert [row["meta"] for row in outcome.documents[:2]] == ['{"n":0}', '{"n":1}']
    assert [row["record"] for row in outcome.documents] == list(range(3000))


@pytest.mark.parametrize("stream", [True, False])
def test_a_truncated_file_keeps_the_batches_before(read, tmp_path, stream):
    data = ipc(TABLE, stream)
    (tmp_path / "f").write_bytes(data[: len(data) // 2])
    outcome = read(tmp_path / "f", reader="arrow")
    kept = outcome.counts["documents"]
    assert kept % 100 == 0 and 500 < kept < 2500
    assert [record for record, _ in outcome.faults] == [None]
    assert f"after {kept} rows" in outcome.quarantine[0]["detail"]


def test_a_file_without_its_footer_is_noted(read, tmp_path):
    (tmp_path / "f").write_bytes(ipc(TABLE, False)[:-10])
    outcome = read(tmp_path / "f", reader="arrow")
    assert (outcome.counts["documents"], outcome.faults) == (3000, [(None, "truncated_file")])


def test_text_that_is_not_utf8_costs_its_row_only(read, tmp_path):
    bad = pa.Array.from_buffers(pa.string(), 3, pa.array([b"good", b"\xff", b"also"], pa.binary()).buffers())
    (tmp_path / "f").write_bytes(ipc(pa.table({"text": bad}), True))
    outcome = read(tmp_path / "f", reader="arrow")
    assert (outcome.texts, outcome.faults) == (["good", "also"], [(1, "invalid_utf8")])


SMALL = ipc(pa.table({"text": ["a", "bc", None], "more": [[1], [], [2, 3]]}), True)


@given(st.integers(0, len(SMALL) - 1), st.integers(0, 255), st.integers(0, len(SMALL)))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_makes_the_reader_fail(place, byte, stop):
    data = bytearray(SMALL)
    data[place] = byte
    for content in (bytes(data), SMALL[:stop], bytes(data[place:])):
        settings = {"text_field": "text", "id_field": None, "url_field": None, "date_field": None, "license_field": None}
        intake = Intake("src", settings | {"max_document_bytes": 50})
        intake.begin("f")
        for _ in read_arrow(intake, Piece("f", len(content), 0), io.BytesIO(content)):
            pass
        intake.close_group()
        assert intake.records == intake.documents + intake.quarantined


def test_a_saved_dataset_is_read_split_by_split_without_what_else_lies_there(read, tmp_path):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"text": [f"t{number}" for number in range(40)], "id": list(range(40))})
    parts = datasets.DatasetDict({"train": whole.filter(lambda row: row["id"] % 2 == 0), "test": whole.select(range(3))})
    parts.save_to_disk(str(tmp_path / "saved"), num_shards={"train": 2, "test": 1})
    (tmp_path / "saved" / "train" / "cache-1.arrow").write_bytes(b"left over")
    outcome = read(tmp_path / "saved", reader="datasets", id_field="id")
    by_split = {split: [row["text"] for row in outcome.documents if row["path"].startswith(split)] for split in ("train", "test")}
    assert by_split == {"train": [f"t{number}" for number in range(0, 40, 2)], "test": ["t0", "t1", "t2"]}
    whole.save_to_disk(str(tmp_path / "one"))
    assert len(read(tmp_path / "one", reader="datasets").documents) == 40


def test_a_folder_that_is_no_saved_dataset_is_an_error(read, tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(InputError, match=r"sources.src.paths\[0\].*save_to_disk"):
        read(tmp_path / "d", reader="datasets")
    (tmp_path / "d" / "state.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "d", reader="datasets")
