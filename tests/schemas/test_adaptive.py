"""Adaptive weights: bounds hold, noise falls, and nothing moves without a signal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.adaptive import AdaptiveSettings, bounded, decide

WEIGHTS = st.lists(st.floats(0.01, 1), min_size=1, max_size=6)


def named(values):
    return {f"s{number}": value for number, value in enumerate(values)}


@given(WEIGHTS, st.data())
def test_bounded_weights_keep_their_bounds_and_add_up_to_one(values, data):
    least = named(data.draw(st.floats(0, 1 / len(values))) for _ in values)
    most = named(data.draw(st.floats(0.05, 1)) for _ in values)
    found = bounded(named(values), least, most)
    if sum(most.values()) < 1:
        assert found is None
        return
    assert found is not None and sum(found.values()) == pytest.approx(1)
    for name, weight in found.items():
        assert min(least[name], most[name]) - 1e-9 <= weight <= most[name] + 1e-9
    free = [name for name in found if min(least[name], most[name]) + 1e-9 < found[name] < most[name] - 1e-9]
    ratios = [found[name] / named(values)[name] for name in free]
    assert not ratios or max(ratios) == pytest.approx(min(ratios))


def settings(by, reference=None, **changes):
    start = {"a": 0.25, "b": 0.25, "noise": 0.5}
    return AdaptiveSettings(**{"by": by, "every": 1, "rate": 3.0, "least": 0.1, "start": start, "reference": reference or {}} | changes)


LIMITS = dict.fromkeys(("a", "b", "noise"), 1.0)


@pytest.mark.parametrize("by", ["speed", "excess"])
def test_noise_falls_and_what_is_learnt_rises(by):
    reference = {"a": 2.0, "b": 2.0, "noise": 5.5}
    made = settings(by, reference)
    weights, history = dict(made.start), []
    for step in range(8):
        losses = {"a": 2.0 + 3 * math.exp(-step / 4), "b": 2.0 + 2 * math.exp(-step / 4), "noise": 5.5}
        decisions = decide(made, weights, losses, history, LIMITS)
        assert sum(d.after for d in decisions) == pytest.approx(1)
        assert [d.before for d in decisions] == list(weights.values())
        weights, history = {d.source: d.after for d in decisions}, [*history, losses]
    assert by == "excess" or weights["a"] == pytest.approx(weights["b"])
    assert weights["a"] >= weights["b"] - 1e-9 and weights["b"] > 0.2
    assert 0.05 <= weights["noise"] < 0.5 / 3


def test_nothing_moves_without_a_signal():
    first = decide(settings("speed"), settings("speed").start, {"a": 3.0, "b": 3.0, "noise": 5.5}, [], LIMITS)
    assert all(d.before == d.after and d.signal is None and d.loss is not None for d in first)
    worse = decide(settings("speed"), settings("speed").start, {"a": 4.0, "b": 3.0}, [{"a": 3.0, "b": 3.0}], LIMITS)
    assert all(d.before == d.after for d in worse)


def test_a_source_without_a_loss_keeps_its_weight_and_budgets_are_the_limit():
    losses, before = {"a": 2.0, "b": 2.9, "noise": math.nan}, {"a": 3.0, "b": 3.0, "noise": 5.5}
    found = {d.source: d for d in decide(settings("speed"), settings("speed").start, losses, [before], LIMITS | {"a": 0.3})}
    assert found["a"].after == pytest.approx(0.3) and found["a"].limit == 0.3
    assert found["noise"].signal is None
    rest = {d.source: d for d in decide(settings("speed"), settings("speed").start, losses, [before], LIMITS)}
    assert rest["noise"].after == 0.5
    assert rest["a"].after - 0.125 == pytest.approx((rest["b"].after - 0.125) * math.exp(3 * (1 - 0.1 / 0.25)))


def test_noise_that_the_reference_knew_better_does_not_come_back():
    reference = {"a": 2.0, "b": 2.0, "noise": 5.0}
    made = settings("excess", reference)
    weights, history = dict(made.start), []
    for step in range(40):
        learnt = 1.9 + 2 * math.exp(-step / 4)  # better than the reference in the end, while the noise is fitted ever less
        losses = {"a": learnt, "b": learnt, "noise": 5.05 + step / 40}
        weights = {d.source: d.after for d in decide(made, weights, losses, history, LIMITS)}
        history.append(losses)
    assert weights["noise"] < 0.5 / 3
