"""At every prefix of a stage each source is within one row of its target, however many segments the stage is cut into."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.budget import fresh, replay
from curate.earlier import Earlier, owed_at
from curate.plan import plan_stage
from schemas.segments import deal_of, segment_at, segment_from_json, segment_to_json, used
from schemas.stages import Stage
from tests.curate.test_plan import LENGTH, lot, order_of, place

RARE = {"web": 98.5, "books": 1, "rare": 0.5}


def dealt_and_targets(segments, lots, names):
    """Which portion each row is of, and the targets after each row: weights of the segments, added up."""
    sources = np.array(order_of(segments, lots).sources)[
        order_of(segments, lots).rows(np.arange(segments[0].first_row, end(segments))).source
    ]
    rates = np.zeros((len(sources), len(names)))
    for segment in segments:
        mine = slice(segment.first_row - segments[0].first_row, segment.first_row - segments[0].first_row + segment.rows)
        for share in segment.sources:
            rates[mine, names.index(share.source)] += share.quota / sum(s.quota for s in segment.sources)
    return sources[:, None] == np.array(names), np.cumsum(rates, axis=0)


def end(segments):
    return segments[-1].first_row + segments[-1].rows


def farthest(segments, lots, names):
    is_of, targets = dealt_and_targets(segments, lots, names)
    return np.abs(np.cumsum(is_of, axis=0) - targets).max()


@st.composite
def stages(draw):
    """A stage that is cut into segments in any of the ways there are, over lots of uneven sizes, and what came before it."""
    mixture = draw(st.sampled_from([RARE, {"web": 2, "books": 1, "rare": 0.015}, {"web": 1, "books": 1, "rare": 1}, "temperature"]))
    rows = 8 * draw(st.integers(12, 120))
    changes = {}
    if draw(st.booleans()):
        changes |= {"order": draw(st.sampled_from(["easy_to_hard", "hard_to_easy"]))}
        changes |= {"pacing": draw(st.sampled_from(["linear", "root", "exponential", "step"]))} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        changes["batch_ramp"] = {"start": draw(st.integers(1, 3)), "share": draw(st.sampled_from([0.1, 0.3, 0.7]))}
    if draw(st.booleans()):
        changes["blend"] = draw(st.sampled_from([0.1, 0.5, 1.0]))
    sizes = st.integers(500, 1500)
    lots = [lot(source, level, draw(sizes), 2) for source in (*RARE, "old") for level in range(draw(st.integers(1, 4)))]
    before = draw(st.sampled_from([{"old": 1.0}, {"old": 0.5, "books": 0.5}, {"web": 0.995, "old": 0.005}]))
    return Stage(name="s", tokens=rows * LENGTH, mixture=mixture, **changes), lots, before


@settings(deadline=None, max_examples=50)
@given(stages())
def test_each_source_is_within_one_row_of_its_target_at_every_prefix(made):
    stage, lots, before = made
    names = [*RARE, "old"]
    plan = plan_stage(stage, fresh(lots), place(batch=8), Earlier(before))
    assert 0 <= stage.tokens // LENGTH - plan.rows < 8
    assert farthest(plan.segments, lots, names) < 1 + 1e-9
    if stage.blend is None and stage.mixture != "temperature":
        _, targets = dealt_and_targets(plan.segments, lots, names)
        weights = np.array([stage.mixture.get(name, 0) for name in names])
        assert np.abs(targets[-1] - plan.rows * weights / weights.sum()).max() < 1e-6


def test_a_source_of_half_a_percent_is_neither_starved_nor_brought_forward_over_many_segments():
    lots = [*(lot("web", level, 500) for level in range(4)), lot("books", 0, 80), lot("rare", 0, 40)]
    changes = {"order": "easy_to_hard", "pacing": "root", "batch_ramp": {"start": 2, "share": 0.2}}
    plan = plan_stage(Stage(name="s", tokens=800 * LENGTH, mixture=RARE, **changes), fresh(lots), place(batch=8))
    assert len(plan.segments) > 4
    is_of, _ = dealt_and_targets(plan.segments, lots, list(RARE))
    error = np.cumsum(is_of, axis=0) - np.arange(1, 801)[:, None] * np.array(list(RARE.values())) / 100
    assert np.abs(error).max() < 1
    assert is_of.sum(axis=0).tolist() == [788, 8, 4]


def test_replayed_rows_are_within_one_row_of_their_share_too():
    lots = [lot("web", 0, 600, 2), lot("books", 0, 300), lot("rare", 0, 60)]
    one = plan_stage(Stage(name="one", tokens=160 * LENGTH, mixture={"web": 1}), fresh(lots), place(batch=8))
    spent = {"one": [a for segment in one.segments for a in used(segment, segment.rows)]}
    stage = Stage(
        name="two", tokens=400 * LENGTH, mixture={"books": 0.97, "rare": 0.03}, replay={"stages": ["one"], "share": 0.1},
        batch_ramp={"start": 1, "share": 0.6}, blend=0.5,
    )  # fmt: skip
    plan = plan_stage(stage, one.after, place(160, 20, 8), Earlier({"web": 1.0}, spent))
    had = np.zeros((1, 4))
    target = np.zeros(4)
    portions = [("web", False), ("books", False), ("rare", False), ("web", True)]
    for segment in plan.segments:
        mine = [(share.source, share.replayed) for share in segment.sources]
        stream, _ = deal_of(segment).at(np.arange(segment.rows))
        quota = np.array([next((s.quota for s in segment.sources if (s.source, s.replayed) == p), 0) for p in portions])
        counts = had[-1] + np.cumsum([[mine[s] == p for p in portions] for s in stream], axis=0)
        targets = target + np.arange(1, segment.rows + 1)[:, None] * quota / quota.sum()
        assert np.abs(counts - targets).max() < 1 + 1e-9
        had, target = counts, targets[-1]
    assert had[-1].tolist()[3] == 40


def test_a_stage_that_is_planned_again_from_its_middle_goes_on_with_what_it_owes():
    lots = [lot("web", 0, 2000), lot("books", 0, 80), lot("rare", 0, 40)]
    stage = Stage(name="s", tokens=800 * LENGTH, mixture=RARE)
    plan = plan_stage(stage, fresh(lots), place(batch=8))
    segments = list(plan.segments)
    for row in (72, 144, 216, 288, 360):
        states = replay(fresh(lots), segments, row)
        before = segments[segment_at(segments, row - 1)]
        again = replace(place(row, row // 8, 8), done=row, rows=800)
        segments += plan_stage(stage, states, again, Earlier(owed=owed_at(before, row - before.first_row))).segments
    order = order_of(segments, lots)
    sources = np.array(order.sources)[order.rows(np.arange(800)).source]
    error = np.cumsum(sources[:, None] == np.array(list(RARE)), axis=0) - np.arange(1, 801)[:, None] * np.array(list(RARE.values())) / 100
    assert np.abs(error).max() < 1


def test_what_is_owed_and_due_is_written_down():
    lots = [lot("web", 0, 400), lot("books", 0, 400), lot("old", 0, 400)]
    stage = Stage(name="s", tokens=200 * LENGTH, mixture={"web": 0.7, "books": 0.3}, blend=0.9)
    plan = plan_stage(stage, fresh(lots), place(batch=8), Earlier({"old": 1.0}))
    assert any(share.owed for segment in plan.segments for share in segment.sources)
    assert any(share.due is not None for segment in plan.segments for share in segment.sources)
    assert [segment_from_json(segment_to_json(segment)) for segment in plan.segments] == list(plan.segments)
