"""Streams take turns so that each is within one row of its share after any number of rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.interleave import Interleave, hamilton, whole_quotas

quota_lists = st.lists(st.integers(0, 400), min_size=1, max_size=9).filter(lambda quotas: sum(quotas) > 0)


@given(quota_lists)
@settings(max_examples=60, deadline=None)
def test_every_prefix_is_within_one_row_of_each_share(quotas):
    turns = Interleave(quotas)
    stream, _ = turns.at(np.arange(2 * turns.period))
    had = np.cumsum(stream[:, None] == np.arange(len(quotas)), axis=0)
    target = np.arange(1, len(stream) + 1)[:, None] * np.array(quotas) / turns.period
    assert np.abs(had - target).max() < 1


@given(quota_lists, st.integers(0, 5000))
@settings(max_examples=60, deadline=None)
def test_position_inverts_at_and_counts_agree(quotas, length):
    turns = Interleave(quotas)
    positions = np.arange(length)
    stream, index = turns.at(positions)
    assert (turns.position(stream, index) == positions).all()
    assert (turns.counts(length) == np.bincount(stream, minlength=len(quotas))).all()


@given(quota_lists, st.lists(st.integers(0, 300), min_size=9, max_size=9))
@settings(max_examples=60, deadline=None)
def test_longest_is_the_last_length_that_every_stream_can_serve(quotas, available):
    turns = Interleave(quotas)
    have = np.array(available[: len(quotas)])
    longest = turns.longest(list(have))
    assert (turns.counts(longest) <= have)[np.array(quotas) > 0].all()
    assert (turns.counts(longest + 1) > have).any()


def test_a_source_of_half_a_percent_is_never_starved():
    quotas = whole_quotas([0.5, 0.495, 0.005])
    turns = Interleave(quotas)
    stream, _ = turns.at(np.arange(10_000))
    gaps = np.diff(np.flatnonzero(stream == 2))
    assert 49 <= (stream == 2).sum() <= 51
    assert gaps.max() <= 400


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_whole_quotas_keep_every_weight_within_half_a_percent(weights):
    quotas = whole_quotas(weights)
    for quota, weight in zip(quotas, weights, strict=True):
        share = weight / sum(weights)
        assert quota > 0
        assert abs(quota / sum(quotas) - share) <= 0.005 * share or sum(quotas) == 65_536


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=20), st.integers(0, 10_000))
def test_hamilton_shares_out_everything_within_one(weights, total):
    units = hamilton(weights, total)
    assert sum(units) == total
    assert all(abs(unit - weight / sum(weights) * total) < 1 + 1e-9 for unit, weight in zip(units, weights, strict=True))


@pytest.mark.parametrize("quotas", [[], [0], [-1, 2], [65_537]])
def test_impossible_quotas_are_refused(quotas):
    with pytest.raises(ValueError):
        Interleave(quotas)
