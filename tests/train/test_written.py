"""A stage laid out in order gives the same bytes and the same losses as one gathered from its lots."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from schemas.segments import leftover, read_segments, write_segments
from tests.train.run_tables import losses, trainer
from tests.train.tiny_lake import build
from train.stage import Stage
from train.written import write_rows


def batches(stage, ranks=1):
    return [
        (batch.batch.tokens.tobytes(), batch.batch.pieces.tobytes(), batch.batch.ends.tobytes(), batch.batch.doc_ids.tobytes())
        for step in range(stage.first_step, stage.end_step)
        for rank in range(ranks)
        for batch in stage.micro_batches(step, rank, ranks)
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_batches_are_byte_identical(tmp_path, ranks):
    folder = build(tmp_path, rows=46)[0].relative_to(tmp_path).as_posix()
    plain = batches(Stage.open(tmp_path, folder), ranks)
    assert write_rows(Stage.open(tmp_path, folder), rows_per_shard=7) == 46
    for shard in (tmp_path / folder / "written").glob("*.arrow"):
        assert pa.ipc.open_file(str(shard)).num_record_batches == 1
    for lot in (tmp_path / "lots").rglob("*.arrow"):  # shards of the right length, but nothing in them: only the layout can be read
        lot.write_bytes(bytes(lot.stat().st_size))
    assert batches(Stage.open(tmp_path, folder), ranks) == plain


def test_losses_are_the_same_and_a_later_segment_is_read_from_the_lots(tmp_path):
    whole, laid = tmp_path / "a", tmp_path / "b"
    for root in (whole, laid):
        folder = build(root, rows=48)[0]
        (segment,) = read_segments(root / "runs/r/segments.json")
        if root is laid:
            write_rows(Stage.open(root, folder.relative_to(root).as_posix()), rows_per_shard=16)
        rest = tuple(
            type(share)(
                share.source,
                share.quota,
                tuple(type(t)(t.quota, tuple(a for a in leftover(segment, 20) if a.lot.startswith(share.source))) for t in share.streams),
            )
            for share in segment.sources
        )
        later = type(segment)(**{**vars(segment), "first_row": 20, "rows": 28, "first_step": 5, "sources": rest, "why": "rewind"})
        write_segments(root, "runs/r/segments.json", [segment, later])
        stage = Stage.open(root, folder.relative_to(root).as_posix())
        assert len(stage._written) == (root is laid)
        trainer(root, folder).run()
    assert losses(whole) == losses(laid)
    assert np.isfinite(list(losses(laid).values())).all() and len(losses(laid)) == 12
