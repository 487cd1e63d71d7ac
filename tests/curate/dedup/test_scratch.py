"""Arrays with an entry a document: mapped or not they hold the same, equal hashes are found alike, and little memory is taken."""

import errno
import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.dedup import scratch as module
from curate.dedup.partitions import Components
from curate.dedup.scratch import Scratch


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_arrays_are_zero_or_filled_and_leave_no_file(limit, tmp_path):
    made = Scratch(module.CHUNK + 5, limit, tmp_path)
    assert made.mapped == (limit == 0)
    numbers, flags = made.array(np.int64, -1), made.array(np.bool_)
    numbers[module.CHUNK] = 7
    assert numbers.sum() == 7 - (module.CHUNK + 4) and not flags.any()
    flags[[3, module.CHUNK + 1]] = True
    assert [rows.tolist() for rows in made.where(lambda span: flags[span])] == [[3], [module.CHUNK + 1]]
    assert list(tmp_path.iterdir()) == []
    assert Scratch(0, limit).array(np.int64).shape == (0,)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=40), st.randoms(use_true_random=False), st.booleans()
)
@settings(max_examples=100, deadline=None)
def test_the_most_preferred_of_equal_hashes_is_first(rows, draw, parted):
    spread = np.uint64(0x9E3779B97F4A7C15)
    high = np.array([h for h, _, _ in rows], np.uint64) * spread
    low = np.array([low for _, low, _ in rows], np.uint64)
    alive = np.array([a for _, _, a in rows], np.bool_)
    rank = np.array(draw.sample(range(len(rows)), len(rows)), np.int64)
    made, first = Scratch(len(rows), 1 << 30), np.full(len(rows), -1, np.int64)
    if parted:  # as many parts as for a corpus beyond memory
        made._memory, made.size = 0, 1 << 19
    made.first_of_equal(high, low, rank, alive, first)
    for i, (h, w, living) in enumerate(rows):
        same = [j for j, (a, b, c) in enumerate(rows) if (a, b) == (h, w) and c]
        assert first[i] == (min(same, key=lambda j: rank[j]) if living else -1)


def test_a_mapped_search_takes_less_than_its_arrays():
    """Of a million documents: the arrays alone would be 33 MB, sorting them as a whole another 40."""
    size, limit = 1_000_000, 8 << 20
    tracemalloc.start()
    try:
        made = Scratch(size, limit)
        high, low, rank, first = (made.array(kind) for kind in (np.uint64, np.uint64, np.int64, np.int64))
        alive = made.array(np.bool_, 1)
        for span in made.chunks():
            high[span] = (np.arange(span.start, span.stop) // 3).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            rank[span] = -np.arange(span.start, span.stop)
        made.first_of_equal(high, low, rank, alive, first)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20e6
    assert (first == np.minimum(np.arange(size) // 3 * 3 + 2, size - 1)).all()


def test_a_disk_without_room_for_an_array_is_an_error_before_a_page_of_it_is_written(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        Scratch(module.CHUNK, 0, tmp_path).array(np.int64)
    with pytest.raises(OSError, match="No space"):
        Components(tmp_path, 100, 0, 0)
