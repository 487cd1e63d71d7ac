"""Learning-rate schedules as formulas."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.settings import ScheduleSettings
from train.schedule import scale


def test_cosine_by_hand():
    settings = ScheduleSettings("cosine", warmup_steps=3, min_ratio=0.2)
    found = [scale(settings, step, 8) for step in range(8)]
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[5] == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 2)) / 2)
    assert found[7] == pytest.approx(0.2)


@given(st.sampled_from(["cosine", "linear", "constant"]), st.integers(0, 30), st.floats(0, 1), st.integers(1, 100))
def test_any_schedule_rises_through_warm_up_then_never_again_and_stays_in_bounds(name, warmup, min_ratio, steps):
    settings = ScheduleSettings(name, warmup, min_ratio)
    found = [scale(settings, step, steps) for step in range(steps)]
    assert all(0 < value <= 1 for value in found[:warmup]) and all(min_ratio - 1e-12 <= value <= 1 for value in found[warmup:])
    assert found[:warmup] == sorted(found[:warmup])
    assert found[warmup:] == sorted(found[warmup:], reverse=True)
    if steps > warmup + 1:
        assert found[-1] == pytest.approx(1 if name == "constant" else min_ratio)
