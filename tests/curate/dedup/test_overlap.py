"""The reference index against all pairs."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup import overlap
from curate.dedup.overlap import ReferenceIndex
from curate.dedup.shingles import shingle_sets

words = st.lists(st.sampled_from("abc"), max_size=12).map(" ".join)
loose = st.text(st.characters(codec="utf-8"), max_size=10)
texts = st.lists(words | loose, max_size=10)


def arrow(values: list[str]) -> pa.LargeStringArray:
    return pa.array(values, pa.large_string())


def sets(values: list[str], shingle: int) -> list[set[int]]:
    hashes, offsets = shingle_sets(arrow(values), shingle)
    return [set(hashes[offsets[i] : offsets[i + 1]].tolist()) for i in range(len(values))]


@given(texts, texts, st.integers(1, 4), st.sampled_from([0.05, 0.3, 0.5, 2 / 3, 1.0]), st.integers(1, 3))
def test_every_pair_from_the_threshold_on_is_found_and_no_other(references, stream, shingle, threshold, threads) -> None:
    expected = []
    held = sets(references, shingle) if references else []
    for row, one in enumerate(sets(stream, shingle) if stream else []):
        for reference, other in enumerate(held):
            jaccard = len(one & other) / len(one | other)
            if jaccard >= threshold:
                expected.append((row, reference, jaccard))
    found = ReferenceIndex(arrow(references), shingle).similar(arrow(stream), threshold, threads)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


def test_more_matches_than_a_call_has_room_for_are_all_found(monkeypatch) -> None:
    monkeypatch.setattr(overlap, "_MATCHES", 3)
    rows, references, jaccards = ReferenceIndex(arrow(["a b c d e f"] * 7)).similar(arrow(["a b c d e f", "x"] * 5), 0.5)
    assert rows.tolist() == [row for row in range(0, 10, 2) for _ in range(7)]
    assert references.tolist() == list(range(7)) * 5 and (jaccards == 1).all()


def test_large_texts_that_contain_a_reference_are_not_near_it() -> None:
    draw = np.random.default_rng(0)
    reference = " ".join(map(str, draw.integers(0, 1 << 40, 200)))
    longer = reference + " " + " ".join(map(str, draw.integers(0, 1 << 40, 300)))
    rows, _, jaccards = ReferenceIndex(arrow([reference])).similar(arrow([longer, reference * 3]), 0.3)
    assert rows.tolist() == [0, 1]
    assert jaccards[0] == pytest.approx(196 / 496) and jaccards[1] > 0.9


def test_thresholds_outside_the_unit_interval_are_refused() -> None:
    with pytest.raises(ValueError, match="threshold = 0"):
        ReferenceIndex(arrow(["a"])).similar(arrow(["a"]), 0)
