"""Stages that change on the way: batch ramps, length warm-up, blends and replay stay within budgets and do what they say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.budget import LotBudget, fresh, replay
from curate.earlier import Earlier, last_shares
from curate.plan import Place, plan_stage, refuse_replay
from curate.stage import plan_rows
from schemas.errors import PlanError
from schemas.segments import used
from schemas.stages import Stage
from tests.curate.test_plan import LENGTH, lot, order_of, place


def short(source, rows, length, repeats=1):
    return LotBudget(f"{source}-l{length}", source, 0, repeats, rows, rows * length, rows, length)


def dealt(segments, lots):
    """Rows in the trainer's order, as (source, lot, row, use)."""
    order = order_of(segments, lots)
    found = order.rows(np.arange(segments[0].first_row, segments[-1].first_row + segments[-1].rows))
    names = (np.array(order.sources)[found.source], np.array(order.lots)[found.lot])
    return list(zip(names[0].tolist(), names[1].tolist(), found.row.tolist(), found.use.tolist(), strict=True))


def test_a_batch_ramp_doubles_over_its_share_of_the_stage():
    stage = Stage(name="s", tokens=640 * LENGTH, mixture={"a": 1}, batch_ramp={"start": 2, "share": 0.5})
    plan = plan_stage(stage, fresh([lot("a", 0, 1000)]), place(batch=16))
    assert [segment.batch for segment in plan.segments] == [2, 4, 8, 16]
    assert [segment.why for segment in plan.segments] == ["planned", "ramp", "ramp", "ramp"]
    assert [segment.rows for segment in plan.segments] == [108, 108, 104, 320]
    assert [segment.first_step for segment in plan.segments] == [0, 54, 81, 94]
    assert plan.rows == 640
    with pytest.raises(PlanError, match="begins with 16 rows, the full batch has 16"):
        plan_stage(stage.model_copy(update={"batch_ramp": stage.batch_ramp.model_copy(update={"start": 16})}), plan.after, place(batch=16))


def test_many_short_segments_starve_no_source():
    lots = [*(lot("web", level, 500) for level in range(4)), lot("books", 0, 80), lot("rare", 0, 40)]
    mixture = {"web": 98.5, "books": 1, "rare": 0.5}
    changes = {"order": "easy_to_hard", "pacing": "root", "batch_ramp": {"start": 2, "share": 0.2}}
    plan = plan_stage(Stage(name="s", tokens=800 * LENGTH, mixture=mixture, **changes), fresh(lots), place(batch=8))
    assert len(plan.segments) > 4
    sources = np.array([source for source, *_ in dealt(plan.segments, lots)])
    for source, weight in mixture.items():
        error = np.cumsum(sources == source) - np.arange(1, len(sources) + 1) * weight / 100
        assert np.abs(error).max() < 1
    assert [int((sources == source).sum()) for source in mixture] == [788, 8, 4]


def test_a_length_warm_up_goes_through_lots_of_shorter_rows_with_the_same_tokens_a_step():
    lots = [lot("a", 0, 500), short("a", 300, 2), short("a", 200, 4)]
    stage = Stage(name="s", tokens=80 * 4 * LENGTH, mixture={"a": 1}, length_warmup={4: 0.2, 2: 0.1})
    plan = plan_stage(stage, fresh(lots), place(batch=4))
    assert [(s.rows, s.batch, s.steps) for s in plan.segments] == [(128, 16, 8), (128, 8, 16), (224, 4, 56)]
    assert [s.why for s in plan.segments] == ["planned", "length", "length"]
    assert [{a.lot for a in used(s, s.rows)} for s in plan.segments] == [{"a-l2"}, {"a-l4"}, {"a-0"}]
    with pytest.raises(PlanError, match=r"in rows of 2 tokens\n.*asked 4,480 tokens, available 600"):
        plan_stage(stage.model_copy(update={"length_warmup": {2: 0.5, 4: 0.1}, "tokens": 280 * 4 * LENGTH}), fresh(lots), place(batch=4))


def test_a_blend_goes_from_the_mixture_before_to_the_stage_s_own():
    lots = [lot(source, 0, 4000) for source in "abc"]
    first = plan_stage(Stage(name="one", tokens=400 * LENGTH, mixture={"a": 3, "b": 1}), fresh(lots), place())
    stage = Stage(name="two", tokens=3200 * LENGTH, mixture={"c": 1}, blend=0.5)
    plan = plan_stage(stage, first.after, place(400, 100), Earlier(last_shares(first.segments[-1])))
    assert [segment.why for segment in plan.segments] == ["planned", *["blend"] * 8]
    assert [segment.rows for segment in plan.segments] == [200] * 8 + [1600]
    sources = [source for source, *_ in dealt(plan.segments, lots)]
    for number in range(8):
        counts = Counter(sources[200 * number : 200 * number + 200])
        own = (2 * number + 1) / 16
        assert counts["c"] == pytest.approx(200 * own, abs=1)
        assert counts["a"] == pytest.approx(200 * (1 - own) * 0.75, abs=1)
    assert set(sources[1600:]) == {"c"}


def replaying(lots, share=0.25, tokens=80, first=None, then=None, name="again"):
    """A first stage, then one that replays it; returns both plans."""
    one = plan_stage(first or Stage(name="one", tokens=80 * LENGTH, mixture={"a": 1}), fresh(lots), place())
    spent = {"one": [a for segment in one.segments for a in used(segment, segment.rows)]}
    stage = Stage(name=name, tokens=tokens * LENGTH, mixture=then or {"b": 1}, replay={"stages": ["one"], "share": share})
    return one, plan_stage(stage, one.after, place(one.rows, one.steps), Earlier(last_shares(one.segments[-1]), spent))


def test_replayed_rows_do_not_make_the_epochs_between_count_as_returned():
    lots = [lot("a", 0, 100, 4), lot("b", 0, 200)]
    one, two = replaying(lots)
    segments, end = [*one.segments, *two.segments], one.rows + two.rows
    assert any(share.replayed for segment in two.segments for share in segment.sources)
    states = replay(fresh(lots), segments, end)
    assert all(state.returned == () for state in states.values())
    third = plan_stage(Stage(name="third", tokens=200 * LENGTH, mixture={"a": 1}), states, place(end, 100))
    assert not any(line["returned"] for line in plan_rows("r", 2, 2, third.segments, states).to_pylist())
    stopped = replay(fresh(lots), [*segments, *third.segments], end + 40)
    fourth = plan_stage(Stage(name="fourth", tokens=200 * LENGTH, mixture={"a": 1}), stopped, place(end + 40, 110))
    lines = plan_rows("r", 3, 3, fourth.segments, stopped).to_pylist()
    assert sum(line["rows"] for line in lines if line["returned"]) == 160
    assert sum(line["rows"] for line in lines) == 200


def test_replay_gives_the_earlier_stage_s_rows_again_within_budgets():
    lots = [lot("a", 0, 100, 3), lot("b", 0, 200)]
    one, two = replaying(lots)
    seen = {(name, row) for _, name, row, _ in dealt(one.segments, lots)}
    again = [line for line in dealt(two.segments, lots) if line[0] == "a"]
    assert len(again) == 20 and {(name, row) for _, name, row, _ in again} <= seen
    assert [share.replayed for share in two.segments[0].sources] == [False, True]
    third = plan_stage(Stage(name="rest", tokens="rest"), two.after, place(160, 40))
    counts = Counter((name, row) for plan in (one, two, third) for _, name, row, _ in dealt(plan.segments, lots))
    assert counts == {(budget.lot, row): budget.repeats for budget in lots for row in range(budget.rows)}


def test_replay_beyond_the_budgets_is_refused_with_its_numbers():
    with pytest.raises(PlanError, match=r"source 'a': asked 160 tokens to be used again, the budgets hold 0"):
        replaying([lot("a", 0, 100, 1), lot("b", 0, 200)])
    with pytest.raises(PlanError, match="used nothing that could be replayed"):
        stage = Stage(name="s", tokens=80 * LENGTH, mixture={"a": 1}, replay={"stages": ["one"], "share": 0.1})
        plan_stage(stage, fresh([lot("a", 0, 100)]), place())


def test_a_lake_that_is_added_to_refuses_a_replay_beyond_its_budgets_beforehand():
    lots = [lot("a", 0, 100, 1), lot("b", 0, 200)]
    one = plan_stage(Stage(name="one", tokens=80 * LENGTH, mixture={"a": 1}), fresh(lots), place())
    spent = {"one": [a for segment in one.segments for a in used(segment, segment.rows)]}
    stage = Stage(name="two", tokens=80 * LENGTH, mixture={"b": 1}, replay={"stages": ["one"], "share": 0.25})
    more = fresh([lot("a", 1, 500, 1)])  # what was added is no use of what "one" used
    with pytest.raises(PlanError, match=r"leave out the replay, or raise sources.a.max_epochs with `generations: one`"):
        refuse_replay(stage, {**one.after, **more}, replace(place(one.rows, one.steps), append=True), Earlier(used=spent))
    refuse_replay(stage.model_copy(update={"replay": None}), one.after, place(one.rows, one.steps), Earlier(used=spent))


@st.composite
def changing(draw):
    """Lots of two row lengths, and stages with ramps, warm-ups, blends and replays."""
    lots = []
    for source in "abc"[: draw(st.integers(1, 3))]:
        repeats = draw(st.integers(1, 4))
        lots += [lot(source, b, draw(st.integers(20, 80)), repeats) for b in range(draw(st.integers(1, 2)))]
        lots.append(short(source, draw(st.integers(20, 120)), 4, repeats))
    sources = sorted({budget.source for budget in lots})
    stages = []
    for number in range(draw(st.integers(2, 4))):
        options = {
            "mixture": draw(
                st.one_of(
                    st.sampled_from(["proportional", "unimax"]),
                    st.dictionaries(st.sampled_from(sources), st.sampled_from([1, 3]), min_size=1),
                )
            )
        }
        if draw(st.booleans()):
            options["batch_ramp"] = {"start": draw(st.integers(1, 3)), "share": draw(st.sampled_from([0.2, 0.7, 1.0]))}
        if draw(st.booleans()):
            options["length_warmup"] = {4: draw(st.sampled_from([0.1, 0.5]))}
        if number and draw(st.booleans()):
            options["blend"] = draw(st.sampled_from([0.3, 1.0]))
        if number and draw(st.booleans()):
            options["replay"] = {"stages": [f"s{draw(st.integers(0, number - 1))}"], "share": draw(st.sampled_from([0.05, 0.3]))}
        stages.append(
            (
                Stage(name=f"s{number}", tokens=draw(st.integers(2, 30)) * 4 * LENGTH, **options),
                draw(st.one_of(st.none(), st.integers(0, 8))),
            )
        )
    return lots, stages


@settings(deadline=None, max_examples=80)
@given(changing())
def test_no_row_is_used_more_often_than_its_count_whatever_changes_on_the_way(curriculum):
    lots, stages = curriculum
    limits = {budget.lot: budget for budget in lots}
    states, row, step, earlier, counts, seen = fresh(lots), 0, 0, Earlier(), Counter(), {}
    for stage, stop in stages:
        try:
            plan = plan_stage(stage, states, Place(row, step, 4, LENGTH, 1, 8), earlier)
        except PlanError:
            continue
        assert all(
            later.first_row == one.first_row + one.rows and later.first_step == one.first_step + one.steps
            for one, later in zip(plan.segments, plan.segments[1:], strict=False)
        )
        ends = [segment.first_row + segment.rows for segment in plan.segments]
        end = ends[-1] if stop is None else min(ends[-1], row + stop * plan.segments[0].batch)
        lines = dealt(plan.segments, lots)[: end - row]
        counts.update((name, at) for _, name, at, _ in lines)
        states = replay(states, plan.segments, end)
        spent = {}
        for segment in plan.segments:
            for a in used(segment, min(max(end - segment.first_row, 0), segment.rows)):
                spent.setdefault(a.lot, []).append(a)
        if stage.replay is not None:
            again = {share.source for segment in plan.segments for share in segment.sources if share.replayed}
            assert again <= {limits[name].source for name, _ in seen.get(stage.replay.stages[0], ())}
        seen[stage.name] = [(name, at) for _, name, at, _ in lines]
        earlier = Earlier(last_shares(plan.segments[-1]), {**earlier.used, stage.name: [a for mine in spent.values() for a in mine]})
        step, row = step + 1000, end
    assert all(count <= limits[name].repeats for (name, _), count in counts.items())
    assert sum(counts.values()) == sum(state.lot.uses - state.left for state in states.values())
