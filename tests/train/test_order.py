"""The data order against brute force: every row as often as its count, each source within one row, the inverse, and instant seeks."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.segments import Allotment, Segment, SourceShare, Stream, leftover
from train.order import Order, lot_uses, permute, step_rows


@st.composite
def plans(draw):
    """A segment over one to four sources whose rows run out exactly when one stream does, with the lots' shards."""
    shards: dict[str, list[int]] = {}
    sources = []
    for s in range(draw(st.integers(1, 4))):
        streams = []
        for t in range(draw(st.integers(1, 2))):
            allotments = []
            for a in range(draw(st.integers(1, 2))):
                lot = f"lot-{s}-{t}-{a}"
                shards[lot] = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
                start = draw(st.integers(0, 5))
                allotments.append(Allotment(lot, start, start + draw(st.integers(1, 3 * sum(shards[lot])))))
            streams.append(Stream(draw(st.integers(1, 5)), tuple(allotments)))
        sources.append(SourceShare(f"s{s}", draw(st.integers(1, 20)), tuple(streams)))
    segment = Segment(
        "stage", draw(st.integers(0, 100)), 0, 0, draw(st.integers(1, 7)), draw(st.integers(0, 9)), draw(st.integers(1, 3)), tuple(sources)
    )
    rows = 0
    while rows < 400:
        try:
            Order([Segment(**{**vars(segment), "rows": rows + 1})], shards)
        except ValueError:
            break
        rows += 1
    return Segment(**{**vars(segment), "rows": rows}), shards


@settings(max_examples=60, deadline=None)
@given(plans())
def test_no_use_twice_and_every_row_once_in_each_epoch(plan):
    segment, shards = plan
    order = Order([segment], shards)
    found = order.rows(np.arange(segment.rows) + segment.first_row)
    uses = set(zip(found.lot.tolist(), found.use.tolist(), strict=True))
    assert len(uses) == segment.rows
    allotted = {
        (order.lots.index(a.lot), u) for s in segment.sources for t in s.streams for a in t.allotments for u in range(a.start, a.stop)
    }
    assert uses <= allotted
    rows = {}
    for lot, use, epoch, row in zip(found.lot, found.use, found.epoch, found.row, strict=True):
        total = sum(shards[order.lots[lot]])
        assert epoch == use // total and 0 <= row < total
        assert rows.setdefault((lot, epoch, row), use) == use, "a row came twice in one epoch"
    left = {(order.lots.index(a.lot), u) for a in leftover(segment, segment.rows) for u in range(a.start, a.stop)}
    assert left == allotted - uses


@settings(max_examples=60, deadline=None)
@given(plans())
def test_every_prefix_keeps_each_source_within_one_row_of_its_target(plan):
    segment, shards = plan
    order = Order([segment], shards)
    source = order.rows(np.arange(segment.rows) + segment.first_row).source
    period = sum(share.quota for share in segment.sources)
    for s, share in enumerate(segment.sources):
        had = np.cumsum(source == s)
        target = np.arange(1, segment.rows + 1) * share.quota / period
        assert np.abs(had - target).max(initial=0) < 1


@settings(max_examples=60, deadline=None)
@given(plans(), st.data())
def test_inverse_and_independence_of_how_positions_are_asked_for(plan, data):
    segment, shards = plan
    order = Order([segment], shards)
    positions = np.arange(segment.rows) + segment.first_row
    whole = order.rows(positions)
    for lot in range(len(order.lots)):
        mine = whole.lot == lot
        assert (order.positions(order.lots[lot], whole.use[mine]) == positions[mine]).all()
        for epoch in np.unique(whole.epoch[mine]):
            these = mine & (whole.epoch == epoch)
            name = order.lots[lot]
            found = lot_uses(name, shards[name], segment.seed, segment.window, int(epoch), whole.row[these])
            assert (found == whole.use[these]).all()
    ranks = data.draw(st.integers(1, 4))
    for rank in range(ranks):
        part = Order([segment], shards).rows(positions[rank::ranks])
        assert (part.row == whole.row[rank::ranks]).all() and (part.lot == whole.lot[rank::ranks]).all()
    mixed = np.array(data.draw(st.permutations(range(segment.rows))), dtype=np.int64) if segment.rows else np.array([], dtype=np.int64)
    assert (order.rows(positions[mixed]).row == whole.row[mixed]).all()


def test_the_order_is_pinned_and_each_epoch_has_its_own():
    """The published order must never change by accident: plans and ledgers refer to it."""
    segment = Segment("s", 0, 24, 0, 4, 7, 2, (SourceShare("a", 1, (Stream(1, (Allotment("lot", 0, 24),)),)),))
    rows = Order([segment], {"lot": [5, 3, 4]}).rows(np.arange(24)).row.reshape(2, 12)
    assert sorted(rows[0]) == sorted(rows[1]) == list(range(12))
    assert (rows[0] != rows[1]).any()
    assert rows.tolist() == PINNED
    other = Order([Segment(**{**vars(segment), "seed": 8})], {"lot": [5, 3, 4]}).rows(np.arange(12)).row
    assert (other != rows[0]).any()


PINNED = [[7, 5, 11, 9, 8, 6, 10, 2, 1, 0, 4, 3], [4, 7, 6, 3, 5, 0, 1, 2, 9, 11, 10, 8]]


def test_rows_stay_inside_their_window_of_shards():
    shards = [10] * 12
    segment = Segment("s", 0, 120, 0, 4, 3, 3, (SourceShare("a", 1, (Stream(1, (Allotment("lot", 0, 120),)),)),))
    shard = Order([segment], {"lot": shards}).rows(np.arange(120)).row.reshape(4, 30) // 10
    for window in shard:
        assert len(set(window.tolist())) == 3
    assert sorted(set(shard.ravel().tolist())) == list(range(12))


def test_permutations_look_uniform():
    """Each of 24 permutations of four values comes about equally often over keys (chi-square, 23 degrees, p = 1e-6 at 71)."""
    keys = np.repeat(np.random.default_rng(1).integers(0, 2**63, 24_000).astype(np.uint64), 4)
    found = permute(np.tile(np.arange(4), 24_000), np.full(96_000, 4), keys).reshape(-1, 4)
    _, counts = np.unique(found @ [64, 16, 4, 1], return_counts=True)
    assert len(counts) == 24 and ((counts - 1000) ** 2 / 1000).sum() < 71
    shuffled = permute(np.arange(10_000), np.full(10_000, 10_000), np.full(10_000, 5, dtype=np.uint64))
    assert abs(np.corrcoef(np.arange(10_000), shuffled)[0, 1]) < 0.05
    assert abs(np.corrcoef(shuffled[1:], shuffled[:-1])[0, 1]) < 0.05


def test_a_later_segment_cuts_a_stopped_one_short():
    share = (SourceShare("a", 1, (Stream(1, (Allotment("lot", 0, 40),)),)),)
    stopped = Segment("one", 0, 40, 0, 4, 1, 1, share)
    rest = leftover(stopped, 12)
    after = Segment("two", 12, 28, 3, 4, 1, 1, (SourceShare("a", 1, (Stream(1, rest),)),))
    found = Order([stopped, after], {"lot": [20]}).rows(np.arange(40))
    assert found.use.tolist() == list(range(40))
    assert Order([stopped, after], {"lot": [20]}).positions("lot", np.arange(40)).tolist() == list(range(40))
    assert step_rows(after, 9) == (36, 40)


def test_segments_never_reached_do_not_lengthen_the_order():
    share = (SourceShare("a", 1, (Stream(1, (Allotment("lot", 0, 40),)),)),)
    one, two, three = (Segment(name, first, 10, first // 2, 2, 1, 1, share) for name, first in (("one", 0), ("two", 10), ("two", 20)))
    again = Segment("one", 4, 6, 2, 2, 1, 1, share, "rewind")
    order = Order([one, two, three, again], {"lot": [40]})
    assert order.end == 10
    with pytest.raises(IndexError):
        order.rows(np.array([10]))


def test_a_billion_rows_are_sought_without_a_table():
    lots = {f"lot-{s}": [65_536] * 763 for s in range(20)}
    shares = tuple(SourceShare(f"s{s}", 1, (Stream(1, (Allotment(f"lot-{s}", 0, 50_000_000),)),)) for s in range(20))
    tracemalloc.start()
    order = Order([Segment("s", 0, 1_000_000_000, 0, 512, 1, 16, shares)], lots)
    found = order.rows(np.array([0, 123_456_789, 999_999_999]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6
    for position, lot, use in zip([0, 123_456_789, 999_999_999], found.lot, found.use, strict=True):
        assert order.positions(order.lots[lot], np.array([use])) == position


def test_impossible_plans_are_refused_with_their_numbers():
    share = SourceShare("a", 1, (Stream(1, (Allotment("lot", 0, 5),)),))
    with pytest.raises(ValueError, match=r"5 rows allotted.*6 are needed"):
        Order([Segment("s", 0, 6, 0, 1, 0, 1, (share,))], {"lot": [8]})
    twice = SourceShare("a", 1, (Stream(1, (Allotment("lot", 0, 5),)), Stream(1, (Allotment("lot", 4, 9),))))
    with pytest.raises(ValueError, match="use 4 of lot 'lot' is allotted twice"):
        Order([Segment("s", 0, 6, 0, 1, 0, 1, (twice,))], {"lot": [8]})
    with pytest.raises(ValueError, match="no rows"):
        Order([Segment("s", 0, 1, 0, 1, 0, 1, (share,))], {})
    with pytest.raises(IndexError):
        Order([Segment("s", 4, 5, 0, 1, 0, 1, (share,))], {"lot": [8]}).rows(np.array([3]))
