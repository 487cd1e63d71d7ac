"""Learning-rate schedules against their formulas in float64, and what every one of them keeps to."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RecipeError
from schemas.settings import ScheduleSettings
from train.schedule import check_schedule, scale

STEPS, WARMUP, LEAST = 40, 5, 0.1
FALLS = {"linear": lambda x: 1 - x, "cosine": lambda x: (1 + np.cos(np.pi * x)) / 2, "one_minus_sqrt": lambda x: 1 - np.sqrt(x)}
AFTER = np.arange(STEPS - WARMUP, dtype=np.float64)


def found(settings: ScheduleSettings, steps: int = STEPS) -> np.ndarray:
    return np.array([scale(settings, step, steps) for step in range(steps)])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "constant"}, np.ones(STEPS - WARMUP)),
        ({"name": "cosine"}, LEAST + (1 - LEAST) * FALLS["cosine"](AFTER / AFTER[-1])),
        ({"name": "linear"}, LEAST + (1 - LEAST) * FALLS["linear"](AFTER / AFTER[-1])),
        ({"name": "step", "decay_every": 7, "decay_factor": 0.4}, np.maximum(LEAST, 0.4 ** np.repeat(np.arange(5), 7))),
        ({"name": "inverse_sqrt"}, np.maximum(LEAST, (AFTER + WARMUP + 1) ** -0.5 * np.sqrt(WARMUP + 1))),
    ],
)
def test_formulas(options, expected):
    values = found(ScheduleSettings(warmup_steps=WARMUP, min_ratio=LEAST, **options))
    np.testing.assert_allclose(values[:WARMUP], np.arange(1, 6) / 6, rtol=1e-15)
    np.testing.assert_allclose(values[WARMUP:], expected, rtol=1e-12)


@pytest.mark.parametrize("shape", FALLS)
@pytest.mark.parametrize(("cooldown", "falling"), [(10.0, 10), (0.25, 10), (1000.0, STEPS - WARMUP), (1.0, 1)])
def test_wsd_is_constant_then_cools_down_over_its_last_steps(shape, cooldown, falling):
    values = found(ScheduleSettings("wsd", WARMUP, LEAST, cooldown=cooldown, cooldown_shape=shape))
    assert (values[WARMUP : STEPS - falling] == 1).all()
    expected = LEAST + (1 - LEAST) * FALLS[shape](np.arange(1, falling + 1) / falling)
    np.testing.assert_allclose(values[STEPS - falling :], expected, rtol=1e-12)


@given(
    st.sampled_from(["cosine", "linear", "constant", "step", "inverse_sqrt", "wsd"]),
    st.integers(0, 30),
    st.floats(0, 1),
    st.integers(1, 100),
    st.sampled_from([0.01, 0.5, 1.0, 3.0, 200.0]),
    st.sampled_from(list(FALLS)),
)
def test_any_schedule_rises_through_warm_up_then_never_again_and_stays_in_bounds(name, warmup, min_ratio, steps, cooldown, shape):
    values = found(ScheduleSettings(name, warmup, min_ratio, cooldown=cooldown, cooldown_shape=shape), steps).tolist()
    assert all(0 < value <= 1 for value in values[:warmup]) and all(min_ratio - 1e-12 <= value <= 1 for value in values[warmup:])
    assert values[:warmup] == sorted(values[:warmup])
    assert values[warmup:] == sorted(values[warmup:], reverse=True)
    if steps > warmup + 1 and name in ("cosine", "linear", "wsd"):
        assert values[-1] == pytest.approx(min_ratio)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_ratio": 1.5}, r"schedule\.min_ratio: 1.5 is not in"),
        ({"warmup_steps": -1}, "-1 is not at least 0"),
        ({"name": "wsd", "cooldown": 0.0}, "0.0 is not above 0"),
        ({"name": "step", "decay_factor": 1.0}, "1.0 is not in"),
        ({"name": "step", "decay_every": 0}, "0 is not at least 1"),
        ({"cooldown": 0.3}, "'cosine' has no cooldown"),
    ],
)
def test_values_without_a_meaning_are_refused(change, message):
    check_schedule(ScheduleSettings())
    with pytest.raises(RecipeError, match=message):
        check_schedule(dataclasses.replace(ScheduleSettings(), **change))


@pytest.mark.parametrize("name", ["constant", "cosine", "linear", "step", "inverse_sqrt", "wsd"])
def test_a_later_stage_continues_or_rewarms(name):
    alone = found(ScheduleSettings(name=name, warmup_steps=0))
    settings = ScheduleSettings(name=name, start="continue", warmup_steps=9)
    np.testing.assert_allclose([scale(settings, step, STEPS, 0.3) for step in range(STEPS)], 0.3 * alone, rtol=1e-12)
    settings = dataclasses.replace(settings, start="rewarm", warmup_steps=WARMUP)
    rates = [scale(settings, step, STEPS, 0.3) for step in range(STEPS)]
    np.testing.assert_allclose(rates[:WARMUP], 0.3 + 0.7 * np.arange(1, WARMUP + 1) / (WARMUP + 1), rtol=1e-12)
    assert rates[WARMUP:] == found(dataclasses.replace(settings, start="fresh"))[WARMUP:].tolist()
    assert [scale(dataclasses.replace(settings, start="fresh"), step, STEPS, 0.3) for step in range(WARMUP)] == found(
        dataclasses.replace(settings, start="fresh")
    )[:WARMUP].tolist()
