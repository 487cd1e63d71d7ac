"""From rows of a lot back to the steps of a run at which they stand: the inverse of the order, without a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schemas.segments import Segment, allotments
from train.order import Ints, Order, lot_uses


def steps_of_rows(segments: Sequence[Segment], lot: str, shard_rows: Sequence[int], rows: Ints) -> Ints:
    """Steps at which rows of a lot stand as each segment was planned, ascending; also steps that a later segment then replaced.

    Args:
        segments: of a run.
        lot: lot id.
        shard_rows: rows of each shard of the lot.
        rows: row numbers in the lot.
    """
    found = [_in_segment(segment, lot, shard_rows, rows) for segment in segments]
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *found]))


def _in_segment(segment: Segment, lot: str, shard_rows: Sequence[int], rows: Ints) -> Ints:
    total, given = sum(shard_rows), allotments(segment)
    uses = [np.zeros(0, dtype=np.int64)]
    for a in (a for a in given if a.lot == lot):
        for epoch in range(a.start // total, (a.stop - 1) // total + 1):
            found = lot_uses(lot, shard_rows, segment.seed, segment.window, epoch, rows, a.order)
            uses.append(found[(found >= a.start) & (found < a.stop)])
    mine = np.concatenate(uses)
    if not len(mine):
        return mine
    # Positions depend on uses alone: the other lots' rows are not asked for.
    order = Order([segment], dict.fromkeys((a.lot for a in given), (1,)))
    positions = order.positions(lot, mine)
    steps: Ints = segment.first_step + (positions[positions >= 0] - segment.first_row) // segment.batch
    return steps
