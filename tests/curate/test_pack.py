"""Packing: nothing lost, nothing over, little padding, few cuts, the same for the same lengths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.pack import pack


def check(lengths, row_length, min_tail, packing):
    """Pieces of a document are its tokens in order, rows hold them without overlap, and all counts agree."""
    assert packing.length.sum() + packing.discarded == lengths.sum()
    assert (np.diff(packing.row) >= 0).all()
    first = np.concatenate([[True], np.diff(packing.row) > 0])[: len(packing.row)]
    assert (packing.start[first] == 0).all()
    follows = np.flatnonzero(~first)
    assert (packing.start[follows] == packing.start[follows - 1] + packing.length[follows - 1]).all()
    assert (packing.start + packing.length <= row_length).all()
    assert set(packing.row) == set(range(packing.rows))
    order = np.lexsort((packing.offset, packing.document))
    document, offset, length = packing.document[order], packing.offset[order], packing.length[order]
    begins = np.concatenate([[True], np.diff(document) > 0])[: len(document)]
    assert (offset[begins] == 0).all()
    assert (offset[~begins] == (offset + length)[np.flatnonzero(~begins) - 1]).all()
    kept = np.bincount(document, weights=length, minlength=len(lengths)).astype(int)
    lost = lengths - kept
    assert (lost < min_tail).all()
    assert (lost[lengths <= row_length] == 0).all()


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(0, 300), max_size=120), st.integers(8, 100), st.integers(1, 8), st.sampled_from([0.0, 0.005, 0.1, 1.0]))
def test_every_token_is_in_one_row_or_discarded(lengths, row_length, min_tail, max_padding):
    lengths = np.array(lengths, dtype=np.int64)
    packing = pack(lengths, row_length, min_tail, max_padding)
    check(lengths, row_length, min_tail, packing)
    if max_padding == 1:
        assert packing.cut == 0


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=60))
def test_best_fit_decreasing_equals_the_textbook(lengths):
    """Without cuts: each item, the longest first, goes to the fullest open row that still holds it."""
    rows = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row in rows if sum(row) + length <= 64]
        max(fitting, key=sum).append(length) if fitting else rows.append([length])
    packing = pack(np.array(lengths), 64, 1, 1.0)
    assert packing.rows == len(rows)
    assert sorted(np.bincount(packing.row, weights=packing.length)) == sorted(map(sum, rows))


@pytest.mark.parametrize("row_length", [256, 2048])
@pytest.mark.parametrize("kind", ["web", "halves", "thirds", "one_size"])
def test_padding_stays_within_its_limit_and_fewer_documents_are_cut_than_by_chunking(row_length, kind):
    draw = np.random.default_rng(0)
    lengths = {
        "web": np.exp(draw.normal(6, 1.2, 20_000)).astype(np.int64) + 2,
        "halves": draw.integers(row_length * 11 // 20, row_length, 8000),
        "thirds": draw.integers(row_length * 7 // 20, row_length * 9 // 20, 8000),
        "one_size": np.full(5000, row_length * 3 // 5),
    }[kind]
    packing = pack(lengths, row_length, 8)
    check(lengths, row_length, 8, packing)
    assert 1 - packing.length.sum() / (packing.rows * row_length) <= 0.005 + 1 / packing.rows
    ends = np.cumsum(lengths)
    chunked = ((ends - lengths) // row_length != (ends - 1) // row_length) & (lengths <= row_length)
    assert packing.cut < 0.7 * chunked.sum()


def test_a_document_longer_than_a_row_fills_rows_and_a_short_tail_is_discarded():
    packing = pack(np.array([25, 23]), 10, 4)
    assert packing.discarded == 3
    assert sorted(zip(packing.document, packing.offset, packing.length)) == [(0, 0, 10), (0, 10, 10), (0, 20, 5), (1, 0, 10), (1, 10, 10)]


def test_nothing_to_pack_is_no_row():
    assert pack(np.array([], dtype=np.int64), 16).rows == 0
    assert pack(np.array([0, 0]), 16).rows == 0
