"""Texts are found by locator over shards and row groups, whatever is held decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate import corpus
from curate.corpus import ROW_BITS, Corpus


def made(root: Path, threads: int = 1) -> Corpus:
    for shard, rows in ((0, 7), (2, 5)):
        texts = pa.array([f"shard {shard} row {row}" for row in range(rows)], pa.large_string())
        pq.write_table(pa.table({"text": texts}), root / f"{shard}.parquet", row_group_size=3)
    return Corpus(root, ["0.parquet", None, "2.parquet"], threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("held", [1, 1 << 20])
def test_texts_come_in_the_order_of_their_locators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, threads: int) -> None:
    monkeypatch.setattr(corpus, "HELD_BYTES", held)
    documents, chosen = made(tmp_path, threads), [(2, 4), (0, 6), (0, 0), (2, 0), (0, 3), (0, 0)]
    places = np.array([shard << ROW_BITS | row for shard, row in chosen], np.uint64)
    for _ in range(2):
        assert documents.fetch(places).to_pylist() == [f"shard {shard} row {row}" for shard, row in chosen]
    assert documents.fetch(places[:0]).to_pylist() == []


def test_a_locator_in_an_empty_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty documents shard 1"):
        made(tmp_path).fetch(np.array([1 << ROW_BITS], np.uint64))
