"""Plans: budgets hold over stages and early stops, mixtures hold at every prefix, the impossible is refused with its numbers."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.budget import LotBudget, LotState, fresh, replay
from curate.plan import Place, plan_curriculum, plan_stage, training_lots
from schemas.errors import PlanError, RecipeError
from schemas.segments import Allotment, ends, unused
from schemas.stages import Stage
from tests.curate.judged_lake import recipe
from train.order import Order
from train.schedule import check_schedule

LENGTH = 8


def lot(source, bin=0, rows=10, repeats=1):
    return LotBudget(f"{source}-{bin}", source, bin, repeats, rows, rows * LENGTH, rows, LENGTH)


def stage(tokens="rest", mixture="proportional", order="shuffled", name="s", pacing=None, **training):
    return Stage(name=name, tokens=tokens, mixture=mixture, order=order, pacing=pacing, training=training)


def place(first_row=0, first_step=0, batch=4):
    return Place(first_row, first_step, batch, LENGTH, 1, 8)


def order_of(segments, lots):
    return Order(segments, {lot.lot: [lot.rows] for lot in lots})


@st.composite
def corpora(draw):
    lots = []
    for source in "abc"[: draw(st.integers(1, 3))]:
        repeats = draw(st.integers(1, 4))
        lots += [lot(source, b, draw(st.integers(1, 60)), repeats) for b in range(draw(st.integers(1, 3)))]
    return lots


@st.composite
def curricula(draw):
    """Lots, and stages with the batch and the step at which each is stopped (None: not)."""
    lots = draw(corpora())
    sources = sorted({lot.source for lot in lots})
    stages = []
    for number in range(draw(st.integers(1, 5))):
        weights = st.dictionaries(st.sampled_from(sources), st.sampled_from([0.1, 0.25, 1, 3]), min_size=1)
        mixture = draw(st.one_of(st.sampled_from(["proportional", "temperature", "unimax"]), weights))
        tokens = draw(st.one_of(st.just("rest"), st.integers(1, 60).map(lambda steps: steps * 4 * LENGTH)))
        order = draw(st.sampled_from(["shuffled", "easy_to_hard", "hard_to_easy"]))
        pacing = draw(st.sampled_from([None, "linear", "root", "exponential", "step"])) if order != "shuffled" else None
        stop = draw(st.one_of(st.none(), st.integers(0, 12)))
        stages.append((stage(tokens, mixture, order, f"s{number}", pacing), draw(st.integers(1, 4)), stop))
    return lots, stages


def run(lots, stages):
    """Plan stage after stage, each ending at its stop; refused stages are skipped. Returns (segments, end) by stage, states, position."""
    states, ended, row, step = fresh(lots), [], 0, 0
    for planned, batch, stop in stages:
        try:
            plan = plan_stage(planned, states, place(row, step, batch))
        except PlanError:
            continue
        assert plan.segments[0].first_row == row
        end = row + plan.rows
        next_row = end if stop is None else min(end, row + stop * batch)
        states = replay(states, plan.segments, next_row)
        ended.append((plan.segments, next_row))
        step, row = step + -(-(next_row - row) // batch), next_row
    return ended, states, row


def used(ended, lots):
    """How often each use, and each row, of each lot is used: by the trainer's order, stage by stage as the trainer builds it."""
    uses, rows = Counter(), Counter()
    for segments, end in ended:
        order = order_of(segments, lots)
        found = order.rows(np.arange(segments[0].first_row, end))
        uses.update((order.lots[a], int(use)) for a, use in zip(found.lot, found.use))
        rows.update((order.lots[a], int(row)) for a, row in zip(found.lot, found.row))
    return uses, rows


@settings(deadline=None, max_examples=150)
@given(curricula())
def test_no_row_is_used_more_often_than_its_count_over_stages_and_early_stops(curriculum):
    lots, stages = curriculum
    ended, states, row = run(lots, stages)
    if ended:
        uses, rows = used(ended, lots)
        assert max(uses.values(), default=1) == 1
        limits = {lot.lot: lot for lot in lots}
        assert all(use < limits[name].uses for name, use in uses)
        assert all(count <= limits[name].repeats for (name, _), count in rows.items())
        assert sum(uses.values()) == row == sum(state.lot.uses - state.left for state in states.values())


@settings(deadline=None, max_examples=60)
@given(curricula())
def test_what_is_left_at_the_end_gives_every_row_exactly_its_count(curriculum):
    lots, stages = curriculum
    ended, states, row = run(lots, stages)
    if any(state.left for state in states.values()):
        last = plan_stage(stage(name="last"), states, place(row, 1000))
        assert all(state.left == 0 for state in last.after.values())
        ended.append((last.segments, row + last.rows))
    _, rows = used(ended, lots)
    assert rows == {(lot.lot, r): lot.repeats for lot in lots for r in range(lot.rows)}


@settings(deadline=None, max_examples=60)
@given(curricula())
def test_a_stage_takes_returned_rows_before_new_ones(curriculum):
    lots, stages = curriculum
    _, states, row = run(lots, stages)
    if any(state.left for state in states.values()):
        plan = plan_stage(stage(name="last"), states, place(row))
        taken = {}
        for segment in plan.segments:
            for share in segment.sources:
                for stream in share.streams:
                    for a in stream.allotments:
                        taken.setdefault(a.lot, []).append((a.start, a.stop))
        for name, ranges in taken.items():
            assert ranges[: len(states[name].returned)] == list(states[name].returned)


@pytest.mark.parametrize("weights", [{"a": 0.7, "b": 0.295, "c": 0.005}, {"a": 2, "b": 1, "c": 1}, {"a": 1, "b": 0.333}])
@pytest.mark.parametrize("order", ["shuffled", "easy_to_hard"])
def test_each_source_is_within_one_row_of_its_weight_at_every_prefix(weights, order):
    lots = [lot(source, b, 4000, 2) for source in "abc" for b in range(3)]
    plan = plan_stage(stage(8000 * LENGTH, weights, order), fresh(lots), place(batch=8))
    deal = order_of(plan.segments, lots)
    rows = deal.rows(np.arange(plan.rows))
    assert plan.rows == 8000
    total = sum(weights.values())
    for name, weight in weights.items():
        had = np.cumsum(rows.source == deal.sources.index(name))
        assert np.abs(had - np.arange(1, plan.rows + 1) * weight / total).max() < 1


@pytest.mark.parametrize("sizes", [(1_000_003, 77, 51_000, 9), (65_537, 65_536, 1), (12, 5, 30)])
def test_proportional_rest_spends_every_use_whatever_the_sizes(sizes):
    lots = [lot("a", 0, sizes[0], 2), lot("a", 1, sizes[1], 2), *(lot(f"b{i}", 0, rows, 1) for i, rows in enumerate(sizes[2:]))]
    plan = plan_stage(stage(), fresh(lots), place(batch=16))
    assert plan.rows == sum(lot.uses for lot in lots)
    assert all(state.left == 0 for state in plan.after.values())
    assert all(segment.rows % 16 == 0 for segment in plan.segments[:-1])
    assert len(plan.segments) <= 6
    for before, after in zip(plan.segments, plan.segments[1:]):
        assert (after.first_row, after.first_step) == (before.first_row + before.rows, before.first_step + before.steps)


@pytest.mark.parametrize(("order", "sign"), [("easy_to_hard", 1), ("hard_to_easy", -1)])
def test_ordered_stages_go_through_bins_in_order(order, sign):
    lots = [lot(source, b, 30) for source in "ab" for b in range(4)]
    plan = plan_stage(stage(order=order), fresh(lots), place())
    deal = order_of(plan.segments, lots)
    rows = deal.rows(np.arange(plan.rows))
    bins = np.array([int(name[-1]) for name in deal.lots])[rows.lot]
    for source in range(2):
        assert (np.diff(bins[rows.source == source]) * sign >= 0).all()


def test_token_targets_are_whole_steps_and_never_more_than_asked():
    plan = plan_stage(stage(1000), fresh([lot("a", 0, 500)]), place(batch=16))
    assert (plan.rows, plan.steps) == (1000 // (16 * LENGTH) * 16, 1000 // (16 * LENGTH))
    with pytest.raises(PlanError, match="less than one step of 16 rows of 8 tokens"):
        plan_stage(stage(127), fresh([lot("a", 0, 500)]), place(batch=16))


def test_the_impossible_is_refused_with_its_numbers():
    lots = [lot("a", 0, 100, 2), lot("b", 0, 1000, 1)]
    states = replay(fresh(lots), plan_stage(stage(100 * LENGTH, {"a": 1}), fresh(lots), place()).segments, 100)
    with pytest.raises(PlanError) as caught:
        plan_stage(stage(400 * LENGTH, {"a": 3, "b": 1}, name="greedy"), states, place(100, 25))
    message = str(caught.value)
    assert "stage 'greedy'" in message
    assert "source 'a': asked 2,400 tokens, available 800 (1.00 of 2 epochs are used before; 4 epochs would be needed)" in message
    assert "lower its tokens to 1,056" in message
    assert "raise sources.a.max_epochs to 4" in message
    assert "source 'b'" not in message
    assert plan_stage(stage(1056, {"a": 3, "b": 1}), states, place(100, 25)).rows == 132
    with pytest.raises(PlanError, match="asked"):
        plan_stage(stage(1056 + 8 * 4, {"a": 3, "b": 1}), states, place(100, 25))


def test_more_than_seven_epochs_need_the_explicit_word():
    with pytest.raises(PlanError, match=r"\(or `rest`\), or raise sources.a.max_epochs to 9 with allow_many_epochs: true"):
        plan_stage(stage(88 * LENGTH, {"a": 1}), fresh([lot("a", 0, 10, 7)]), place())


def test_a_source_without_rows_is_refused():
    with pytest.raises(PlanError, match="no document of it was kept"):
        plan_stage(stage(mixture={"b": 1}), fresh([lot("a")]), place())
    spent = plan_stage(stage(), fresh([lot("a")]), place()).after
    with pytest.raises(PlanError, match="used up by earlier stages"):
        plan_stage(stage(mixture={"a": 1}), spent, place())
    with pytest.raises(PlanError, match="no source has anything left"):
        plan_stage(stage(), spent, place())


def test_proportional_targets_above_everything_left_are_refused():
    with pytest.raises(PlanError, match="asked 160 tokens, available 80"):
        plan_stage(stage(20 * LENGTH), fresh([lot("a", 0, 10)]), place())


def test_a_past_that_was_not_left_is_refused():
    segments = plan_stage(stage(), fresh([lot("a", 0, 10)]), place()).segments
    with pytest.raises(PlanError, match="not among those left"):
        replay(replay(fresh([lot("a", 0, 10)]), segments, 10), segments, 10)
    with pytest.raises(PlanError, match="no longer has it"):
        replay(fresh([lot("b")]), segments, 10)


def test_states_join_ranges_and_know_what_was_given_before():
    state = LotState(lot("a", 0, 10, 2), ((12, 20),), ((0, 12),)).give_back([(3, 5), (5, 7), (11, 12)])
    assert state.returned == ((3, 7), (11, 12))
    taken, after = state.take(7)
    assert [(a.start, a.stop) for a in taken] == [(3, 7), (11, 12), (12, 14)]
    assert (after.given, after.returned, after.left) == (((0, 14),), (), 6)
    assert state.give([Allotment("a-0", 4, 6)]).returned == ((3, 4), (6, 7), (11, 12))
    assert state.exclude([(4, 6), (13, 30)]).free == ((3, 4), (6, 7), (11, 13))
    with pytest.raises(ValueError, match="more than lot"):
        after.take(7)


def test_a_curriculum_goes_on_where_the_last_stage_left_the_sources():
    made = recipe(
        pack={"row_length": 64, "rows_per_shard": 50},
        training={"batch_rows": 2},
        stages=[
            {"name": "one", "tokens": 64 * 8, "mixture": {"web": 1}},
            {"name": "two", "tokens": "rest", "mixture": {"web": 1, "books": 1}, "training": {"batch_rows": 4}},
        ],
    )
    lots = training_lots(
        {"lot": name, "source": name, "split": "train", "bin": 0, "repeats": 1, "rows": 20, "tokens": 1, "documents": 1, "row_length": 64}
        for name in ("web", "books")
    )
    one, two = plan_curriculum(made, lots)
    assert (one.rows, two.rows, two.segments[0].first_row, two.segments[0].first_step) == (8, 24, 8, 4)
    assert two.segments[0].batch == 4
    assert {segment.window for segment in (*one.segments, *two.segments)} == {made.shuffle_window} == {8}
    assert {segment.seed for segment in (*one.segments, *two.segments)} == {made.seed}


def test_stage_training_changes_the_recipes_settings_field_by_field():
    made = recipe(training={"clip": 0.5, "optimizer": {"lr": 0.1}})
    changed = made.training_of(stage(optimizer={"weight_decay": 0.0}, early_stop={"patience": 4}))
    assert (changed.clip, changed.optimizer.lr, changed.optimizer.weight_decay, changed.early_stop.patience) == (0.5, 0.1, 0.0, 4)
    with pytest.raises(RecipeError, match="did you mean 'batch_rows'"):
        made.training_of(stage(batch_row=3))


def test_a_stage_of_another_schedule_does_not_take_over_what_only_the_recipes_has():
    made = recipe(training={"schedule": {"name": "wsd", "cooldown": 4, "cooldown_shape": "cosine", "warmup_steps": 3}})
    cooled = made.training_of(stage(schedule={"name": "linear", "start": "continue"})).schedule
    check_schedule(cooled)
    assert (cooled.name, cooled.start, cooled.warmup_steps) == ("linear", "continue", 3)
    assert made.training_of(stage(schedule={"warmup_steps": 0})).schedule.cooldown == 4
    with pytest.raises(RecipeError, match="'linear' has no cooldown"):
        check_schedule(made.training_of(stage(schedule={"name": "linear", "cooldown": 9})).schedule)


def test_unused_counts_segments_never_reached():
    lots = [lot("a", 0, 1_000_003, 1), lot("a", 1, 77, 1)]
    plan = plan_stage(stage(), fresh(lots), place(batch=16))
    assert len(plan.segments) > 1
    assert sum(a.rows for a in unused(plan.segments, 160)) == plan.rows - 160
    after = replay(fresh(lots), plan.segments, 160)
    again = plan_stage(stage(name="t"), after, place(160, 10, 16))
    assert again.rows == plan.rows - 160
    assert ends([*plan.segments, *again.segments])[0] == 160
