"""Ranges against Python's sets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from schemas.ranges import both, minus, size, union

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def numbers(ranges):
    return {n for start, stop in ranges for n in range(start, stop)}


@given(RANGES, RANGES)
def test_they_are_sets(a, b):
    for made, wanted in (
        (union(a), numbers(a)),
        (minus(a, b), numbers(a) - numbers(b)),
        (both(a, b), numbers(a) & numbers(b)),
    ):
        assert numbers(made) == wanted and size(made) == len(wanted)
        assert all(x[1] < y[0] for x, y in pairwise(made)) and all(start < stop for start, stop in made)
