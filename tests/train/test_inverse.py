"""Steps of rows by the inverse of the order against a look at every step."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.test_order import plans
from train.inverse import steps_of_rows
from train.order import Order, step_rows


@settings(max_examples=40, deadline=None)
@given(plans(), st.data())
def test_rows_are_found_at_the_steps_that_use_them(plan, data):
    segment, shards = plan
    order = Order([segment], shards)
    lot = data.draw(st.sampled_from(sorted(shards)))
    rows = np.array(data.draw(st.lists(st.integers(0, sum(shards[lot]) - 1), max_size=3, unique=True)), dtype=np.int64)
    expected = set()
    for step in range(segment.first_step, segment.first_step + segment.steps):
        found = order.rows(np.arange(*step_rows(segment, step)))
        mine = found.lot == (order.lots.index(lot) if lot in order.lots else -1)
        if np.isin(found.row[mine], rows).any():
            expected.add(step)
    assert set(steps_of_rows([segment], lot, shards[lot], rows).tolist()) == expected
