"""Mixtures: laws over sources give the published shares and never more than a source has."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.budget import fresh
from curate.mixture import source_quotas, unimax, whole
from curate.plan import plan_curriculum, plan_stage
from schemas.errors import PlanError
from schemas.interleave import MAX_PERIOD
from schemas.stages import Stage
from tests.curate.judged_lake import recipe
from tests.curate.test_plan import LENGTH, lot, order_of, place


def by_source(plan):
    rows = {}
    for segment in plan.segments:
        for share in segment.sources:
            rows[share.source] = rows.get(share.source, 0) + sum(a.rows for stream in share.streams for a in stream.allotments)
    return rows


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 1000), min_size=1), st.data())
def test_unimax_gives_the_same_of_each_as_far_as_budgets_go(left, data):
    rows = data.draw(st.integers(0, sum(left.values())))
    shares = unimax(rows, left)
    assert sum(shares.values()) == rows
    assert all(shares[name] <= left[name] for name in left)
    highest = max(shares.values())
    assert all(shares[name] == left[name] or shares[name] >= highest - 1 for name in left)


def test_a_unimax_stage_spends_small_sources_and_shares_the_rest_evenly():
    lots = [lot("a", 0, 10), lot("b", 0, 300), lot("c", 0, 500), lot("c", 1, 500)]
    plan = plan_stage(Stage(name="s", tokens=408 * LENGTH, mixture="unimax"), fresh(lots), place(batch=8))
    assert by_source(plan) == {"a": 10, "b": 199, "c": 199}
    with pytest.raises(PlanError, match="lower its tokens to 10,432"):
        plan_stage(Stage(name="s", tokens=1400 * LENGTH, mixture="unimax"), fresh(lots), place(batch=8))


@pytest.mark.parametrize(("exponent", "ratio"), [(None, 4), (0.5, 4), (1, 16), (0, 1)])
def test_temperature_weighs_by_a_power_of_size(exponent, ratio):
    lots = [lot("a", 0, 1000, 3), lot("b", 0, 16_000)]
    stage = Stage(name="s", tokens=3000 * LENGTH, mixture="temperature", exponent=exponent)
    quotas = source_quotas(stage, fresh(lots), 3000)
    assert quotas["b"] / quotas["a"] == pytest.approx(ratio, rel=0.01)


def test_a_law_may_be_limited_to_some_sources():
    lots = [lot("a", 0, 100), lot("b", 0, 100), lot("c", 0, 100)]
    plan = plan_stage(Stage(name="s", tokens="rest", sources=["a", "c"]), fresh(lots), place())
    assert by_source(plan) == {"a": 100, "c": 100}


@given(st.lists(st.one_of(st.integers(1, 10**9), st.floats(0.001, 1000)), min_size=1, max_size=8), st.integers(1, 10**7))
@settings(max_examples=60, deadline=None)
def test_whole_numbers_are_in_the_ratio_of_the_weights(weights, rows):
    quotas = whole([Fraction(weight) for weight in weights], rows)
    assert min(quotas) >= 1
    assert sum(quotas) <= MAX_PERIOD
    shares = np.array(weights) / sum(weights)
    error = np.abs(np.array(quotas) / sum(quotas) - shares)
    assert (error <= np.maximum(0.001 * shares, 1.5 / sum(quotas))).all()


def test_a_weight_too_small_for_any_period_is_refused_where_it_stands():
    with pytest.raises(PlanError, match="stage 's'.*below 1/65536"):
        source_quotas(Stage(name="s", tokens=8, mixture={"a": 1, "b": 1e-7}), fresh([lot("a"), lot("b")]), 10**6)


def test_chinchilla_is_20_tokens_for_each_parameter():
    made = recipe(
        model={"layers": 1, "width": 16, "heads": 2, "ff_width": 32},
        pack={"row_length": 8},
        training={"batch_rows": 4},
        stages=[{"name": "all", "tokens": "chinchilla"}],
    )
    (plan,) = plan_curriculum(made, [lot("web", 0, 10**6)], vocabulary=500)
    size = 500 * 16 + (4 * 16 * 16 + 3 * 16 * 32 + 2 * 16) + 16
    assert plan.rows == 20 * size // 32 * 4


PACED = [lot(source, b, 300) for source in "ab" for b in range(4)]
OPENINGS = {
    "linear": [0, 1 / 6, 1 / 2, 5 / 6],
    "root": [0, 1 / 12, 0.35, 0.75],
    "exponential": [0, 0.2925, 0.661, 0.9037],
    "step": [0, 0.5, 0.5, 0.5],
}
"""Progress at which 4 bins open when a quarter is open at the start."""


@pytest.mark.parametrize("pacing", OPENINGS)
@pytest.mark.parametrize("order", ["easy_to_hard", "hard_to_easy"])
def test_paced_stages_open_bins_in_time_and_spend_everything(pacing, order):
    stage = Stage(name="s", tokens="rest", mixture={"a": 1, "b": 1}, order=order, pacing=pacing)
    plan = plan_stage(stage, fresh(PACED), place(batch=4))
    assert plan.rows == 2400
    assert all(segment.rows % 4 == 0 for segment in plan.segments)
    assert len(plan.segments) <= 8
    deal = order_of(plan.segments, PACED)
    rows = deal.rows(np.arange(plan.rows))
    bins = np.array([int(name[-1]) for name in deal.lots])[rows.lot]
    bins = bins if order == "easy_to_hard" else 3 - bins
    first = [np.flatnonzero(bins == b)[0] / 2400 for b in range(4)]
    # A bin opens sooner than it is due only when the open ones are spent: each holds a quarter of the stage.
    assert first == pytest.approx([min(due, b / 4) for b, due in enumerate(OPENINGS[pacing])], abs=0.01)
    for segment in plan.segments:
        counts = np.bincount(rows.source[segment.first_row : segment.first_row + segment.rows], minlength=2)
        assert abs(counts[0] - counts[1]) <= 1


def test_paced_stages_draw_from_all_open_bins_alike():
    stage = Stage(name="s", tokens=400 * LENGTH, mixture={"a": 1}, order="easy_to_hard", pacing="linear", pacing_start=0.5)
    plan = plan_stage(stage, fresh(PACED), place(batch=4))
    deal = order_of(plan.segments, PACED)
    bins = np.array([int(name[-1]) for name in deal.lots])[deal.rows(np.arange(plan.rows)).lot]
    assert np.bincount(bins[:100]).tolist() == [50, 50]
    assert np.bincount(bins[100:300], minlength=4).tolist() == pytest.approx([200 * 250 / 800] * 2 + [200 * 300 / 800, 0], abs=1)
    assert set(bins[300:]) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "options",
    [
        {"mixture": {"a": 1}, "sources": ["a"]},
        {"exponent": 0.3},
        {"pacing": "linear"},
        {"order": "easy_to_hard", "pacing_start": 0.5},
    ],
)
def test_options_without_effect_are_refused(options):
    with pytest.raises(ValueError, match="sources|exponent|pacing"):
        Stage(name="s", tokens="rest", **options)
