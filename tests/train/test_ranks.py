"""The order does not know ranks: the same rows in every step for 1, 2, 3 and 8 ranks, and after a restart at any step with others."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.tiny_lake import build
from train.stage import Stage


def rows_of(stage: Stage, step: int, ranks: int) -> list[tuple[int, ...]]:
    """(place, source, lot, row) of every row of a step, over all ranks, by place; with the tokens each rank read."""
    parts = [micro for rank in range(ranks) for micro in stage.micro_batches(step, rank, ranks)]
    lines = []
    for micro in parts:
        tokens = [hash_of(row) for row in micro.batch.tokens]
        lines += list(zip(micro.place.tolist(), micro.source.tolist(), micro.lot.tolist(), micro.row.tolist(), tokens, strict=False))
    return sorted(lines)


def hash_of(row: np.ndarray) -> int:
    return int(np.dot(row, np.arange(1, len(row) + 1)))


def test_ranks_and_restarts_change_no_row(tmp_path):
    folder = build(tmp_path, rows=46)[0].relative_to(tmp_path).as_posix()
    alone = Stage.open(tmp_path, folder)
    whole = {step: rows_of(alone, step, 1) for step in range(alone.first_step, alone.end_step)}
    assert sum(map(len, whole.values())) == 46

    @settings(deadline=None, max_examples=25)
    @given(st.integers(0, alone.steps - 1), st.sampled_from([1, 2, 3, 8]), st.sampled_from([1, 2, 3, 8]))
    def restarted(at, before, after):
        first, then = Stage.open(tmp_path, folder), Stage.open(tmp_path, folder)
        for step in whole:
            assert rows_of(first if step < at else then, step, before if step < at else after) == whole[step]

    restarted()
