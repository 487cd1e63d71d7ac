"""Early stopping against a plain restatement, with NaN and a save and load at any point."""

from __future__ import annotations

import dataclasses
import json
import math

from hypothesis import given
from hypothesis import strategies as st

from schemas.settings import EarlyStopSettings
from train.early_stop import EarlyStop

VALUES = st.lists(st.one_of(st.floats(0, 5), st.just(math.nan), st.just(math.inf)), max_size=12)


@given(VALUES, st.integers(1, 4), st.sampled_from([0.0, 0.5]), st.integers(0, 12), st.integers(0, 12))
def test_it_fires_after_patience_evaluations_without_improvement(values, patience, min_delta, min_steps, saved_at):
    stop = EarlyStop(EarlyStopSettings(patience=patience, min_delta=min_delta, min_steps=min_steps))
    good = [math.inf]
    for number, value in enumerate(values):
        lowest = min([v for v in values[:number] if math.isfinite(v)], default=math.inf)
        assert stop.update(number, value) == (math.isfinite(value) and value < lowest)
        good.append(value if math.isfinite(value) and value < min(good) - min_delta else math.inf)
        since = next((i for i, v in enumerate(reversed(good)) if v < math.inf), len(good) - 1)
        assert stop.waited == since
        due = since >= patience and number >= min_steps
        assert dataclasses.replace(stop).fire(number, 0, 99) == due
        if number == saved_at:
            state = json.loads(json.dumps(stop.state()))
            stop = EarlyStop(stop.settings)
            stop.load(state)
    finite = [v for v in values if math.isfinite(v)]
    assert stop.best == min(finite, default=math.inf)
    assert stop.best_step == (values.index(min(finite)) if finite else -1)


def test_without_settings_it_tracks_the_best_and_never_fires():
    stop = EarlyStop(None)
    assert [stop.update(i, v) for i, v in enumerate([2.0, 3.0, 1.0, 1.0, 1.0])] == [True, False, True, False, False]
    assert stop.monitor == "heldout" and not stop.fire(10**9, 0, 10**9)


def test_the_cool_down_falls_by_equal_parts_and_its_evaluations_count_for_the_best_alone():
    stop = EarlyStop(EarlyStopSettings(patience=1, on_stop="cooldown", cooldown=4))
    assert stop.update(10, 2.0) and not stop.fire(10, 5, 40)
    assert not stop.update(12, 2.5) and stop.fire(12, 5, 40) and not stop.fire(12, 5, 40)
    assert stop.end(40) == 16 and [stop.factor(step) for step in range(12, 16)] == [4 / 5, 3 / 5, 2 / 5, 1 / 5]
    assert stop.update(14, 1.0) and stop.best_step == 14 and (stop.waited, stop.reference) == (1, 2.0)
    again = EarlyStop(dataclasses.replace(stop.settings, cooldown=9))
    again.load(json.loads(json.dumps(stop.state())))
    assert (again.end(40), again.factor(13), again.fire(13, 5, 40)) == (16, 3 / 5, False)
    short = EarlyStop(EarlyStopSettings(patience=0, on_stop="cooldown", cooldown=4))
    assert short.fire(38, 5, 40) and short.end(40) == 40
