"""Content hashes against Python's own white-space folding."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.dedup.exact import content_hash, text_buffers

SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
text = st.text(st.characters(codec="utf-8") | st.sampled_from(SPACES), max_size=40)


def hashes(texts: list[str]) -> list[tuple[int, ...]]:
    return [tuple(row) for row in content_hash(pa.array(texts, pa.large_string())).tolist()]


@given(st.lists(text, max_size=12))
def test_texts_hash_equal_exactly_when_python_folds_them_to_the_same(texts: list[str]) -> None:
    folded = [" ".join(t.split()) for t in texts]
    got = hashes(texts)
    for i in range(len(texts)):
        for j in range(i):
            assert (got[i] == got[j]) == (folded[i] == folded[j])


@given(text, st.lists(st.text(SPACES, min_size=1, max_size=3), min_size=1, max_size=5))
def test_amount_and_kind_of_white_space_do_not_matter(word: str, gaps: list[str]) -> None:
    assert hashes([(gap).join([word, word]) for gap in gaps]) == hashes([word + " " + word]) * len(gaps)


pieces = st.sampled_from(
    ["a", "!", "word", "exactly8", " ", " ", "  ", "\t", "\n", "\x1f", "\x1b", "\0", "\x7f", "é", "\u2009", "\xa0", "\u3000"]
)


@given(st.lists(pieces, max_size=40).map("".join))
@settings(max_examples=500)
def test_long_texts_hash_as_what_python_folds_them_to(mixed: str) -> None:
    assert hashes([mixed]) == hashes([" ".join(mixed.split())])


def test_every_white_space_character_of_unicode_folds() -> None:
    assert len(set(hashes([f"{space}a{space}{space}b{space}" for space in SPACES]))) == 1


def test_no_other_character_below_u3100_is_white_space() -> None:
    others = [chr(code) for code in range(0x3100) if not chr(code).isspace()]
    assert len(set(hashes([f"a{char}b" for char in others]))) == len(others)


def test_prefixes_and_block_lengths_differ() -> None:
    texts = ["x" * n for n in range(70)] + ["\0" * n for n in range(1, 70)]
    assert len(set(hashes(texts))) == len(texts)


@given(st.lists(text, max_size=10), st.integers(0, 10))
def test_slices_and_batches_hash_alike(texts: list[str], cut: int) -> None:
    whole = pa.array(texts, pa.large_string())
    halves = [content_hash(whole[:cut]), content_hash(whole[cut:])]
    assert np.array_equal(np.concatenate(halves), content_hash(whole))
    assert np.array_equal(content_hash(pa.array(texts, pa.string())), content_hash(whole))


def test_nulls_and_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="1 of 2 texts are null"):
        text_buffers(pa.array(["a", None], pa.large_string()))
    with pytest.raises(TypeError, match="int64"):
        text_buffers(pa.array([1]))


def test_hashes_are_pinned() -> None:
    assert hashes(["", "the quick  brown fox"]) == PINNED


PINNED = [(9857975930163783078, 3116539122818504297), (11948657556454261629, 3208506638099186039)]
