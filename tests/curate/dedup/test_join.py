"""The LSH join against a dictionary of keys."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup.join import Buckets, join, probability_curve
from curate.dedup.sketch import SketchSettings


def as_sets(buckets: Buckets) -> list[tuple[int, ...]]:
    return sorted(tuple(buckets.members[a:b].tolist()) for a, b in zip(buckets.starts, buckets.starts[1:], strict=False))


def brute(bands: list[np.ndarray]) -> list[tuple[int, ...]]:
    out = []
    for band in bands:
        groups = defaultdict(list)
        for i, key in enumerate(band.tolist()):
            groups[key].append(i)
        out += [tuple(group) for group in groups.values() if len(group) > 1]
    return sorted(out)


keys = st.sampled_from([0, 1, 2, 3, (1 << 31) - 1, 1 << 31, (1 << 32) - 2, (1 << 32) - 1])


columns = st.integers(0, 30).flatmap(lambda n: st.lists(st.lists(keys, min_size=n, max_size=n), min_size=1, max_size=4))


@given(columns, st.sampled_from([None, 0, 13, 32]))
def test_buckets_are_the_documents_of_equal_keys(columns: list[list[int]], wide: int | None) -> None:
    bands = [np.array(column, np.uint32) if wide is None else np.array(column, np.uint64) << np.uint64(wide) for column in columns]
    assert as_sets(join(bands)) == brute(bands)


def test_keys_that_cluster_are_still_put_in_order() -> None:
    draw = np.random.default_rng(1)
    bands = [draw.integers(0, 3, 20_000, np.uint32), draw.integers(0, 300, 20_000, np.uint32) << np.uint32(2)]
    assert as_sets(join(bands)) == brute(bands)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_bands_beyond_the_memory_limit_join_alike_from_files(tmp_path, dtype) -> None:
    draw = np.random.default_rng(3)
    pool = draw.integers(0, np.iinfo(dtype).max, 60_000, dtype, endpoint=True)
    ends = np.array([0, 0, np.iinfo(dtype).max, np.iinfo(dtype).max], dtype)
    bands = [np.append(draw.choice(pool, 100_000), ends) for _ in range(2)]
    mapped = []
    for number, band in enumerate(bands):
        band.tofile(tmp_path / str(number))
        mapped.append(np.memmap(tmp_path / str(number), dtype, "r"))
    small, large = join(mapped, memory_limit=1 << 20), join(bands)
    assert np.array_equal(small.starts, large.starts) and np.array_equal(small.members, large.members)
    assert as_sets(large) == brute(bands)


def test_a_bucket_of_k_documents_takes_k_entries() -> None:
    buckets = join([np.zeros(5000, np.uint32)])
    assert len(buckets) == 1 and len(buckets.members) == 5000 == buckets.largest


def test_no_documents_and_no_repeated_key_give_no_buckets() -> None:
    for bands in ([np.empty(0, np.uint32)], [np.arange(9, dtype=np.uint32)], [np.arange(9, dtype=np.uint64)]):
        buckets = join(bands)
        assert len(buckets) == 0 == len(buckets.members) and buckets.largest == 0


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="unequal lengths"):
        join([np.zeros(2, np.uint32), np.zeros(3, np.uint32)])
    with pytest.raises(ValueError, match="memory_limit"):
        join([np.zeros(2, np.uint32)], memory_limit=1000)


def test_the_curve_is_the_share_of_pairs_that_meet() -> None:
    settings, draw = SketchSettings(k=20, bands=5, rows=4), np.random.default_rng(0)
    for similarity in (0.3, 0.6, 0.9):
        equal = (draw.random((40_000, 5, 4)) < similarity).all(axis=2).any(axis=1).mean()
        assert abs(equal - probability_curve(settings, similarity)) < 0.012
    assert probability_curve(settings, [0.0, 1.0]).tolist() == [0.0, 1.0]
