"""Which files of an object store a takedown brings here."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.purge import _ids_meet

MINE, OTHER = (pa.array([each], pa.binary(4)) for each in (b"mine", b"othr"))


@pytest.mark.parametrize("column", ["text", "tokens", "detail"])
def test_a_table_that_tells_something_of_a_document_is_brought_for_it_alone(tmp_path, column):
    path = str(tmp_path / "t.parquet")
    pq.write_table(pa.table({"doc_id": pa.array([b"mine", None], pa.binary(4)), column: ["told", ""]}), path)
    assert _ids_meet(path, path, MINE) and not _ids_meet(path, path, OTHER)
    pq.write_table(pa.table({"doc_id": MINE, "bytes": [4]}), path)
    assert not _ids_meet(path, path, MINE), "it tells nothing of it"
