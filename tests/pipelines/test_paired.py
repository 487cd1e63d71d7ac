"""Student's interval against printed tables, and what it says of differences."""

from __future__ import annotations

import pytest

from pipelines.paired import paired_interval, t_quantile


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (1000, 1.9623)])
def test_quantiles_are_those_of_the_tables(freedom: int, t: float) -> None:
    assert t_quantile(freedom) == pytest.approx(t, abs=1e-4)


def test_an_interval_over_zero_shows_no_difference() -> None:
    assert not paired_interval([-0.1, 0.2, 0.1]).shown
    clear = paired_interval([0.10, 0.12, 0.11])
    assert clear.shown and clear.low == pytest.approx(0.11 - 4.30265 * 0.01 / 3**0.5, abs=1e-5)
    assert paired_interval([-0.10, -0.12, -0.11]).shown and not paired_interval([0.0, 0.0, 0.0]).shown
