"""Early stopping against a plain restatement, with NaN and a save and load at any point."""

from __future__ import annotations

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
        assert stop.fired(number) == (since >= patience and number >= min_steps)
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
    assert stop.monitor == "heldout" and not stop.fired(10**9)
