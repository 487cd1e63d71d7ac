"""Shingle sets against sets of words made in Python."""

import itertools
import re
import sys
import unicodedata

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup.shingles import ALONE, shingle_sets, word_table

text = st.text(st.characters(codec="utf-8") | st.sampled_from(list("ab _-.\n漢ไéİßÀ")), max_size=60)


def words(value: str) -> list[str]:
    out, run = [], ""
    table = word_table()
    for char in value:
        code = ord(char)
        entry = int(table[code]) if code < len(table) else (code | ALONE if code < 0x40000 else 0)
        if entry and not entry & ALONE:
            run += chr(entry)
            continue
        out += [run] if run else []
        out += [chr(entry ^ ALONE)] if entry else []
        run = ""
    return out + ([run] if run else [])


def python_set(value: str, shingle: int) -> set[object]:
    tokens = words(value)
    if len(tokens) < shingle:
        return {" ".join(value.split())}
    return {tuple(tokens[i : i + shingle]) for i in range(len(tokens) - shingle + 1)}


def sets(texts: list[str], shingle: int = 5) -> list[set[int]]:
    hashes, offsets = shingle_sets(pa.array(texts, pa.large_string()), shingle)
    return [set(hashes[a:b].tolist()) for a, b in itertools.pairwise(offsets)]


@given(st.lists(text, min_size=2, max_size=8), st.integers(1, 6))
def test_sets_overlap_as_sets_of_words_do(texts: list[str], shingle: int) -> None:
    expected, got = [python_set(t, shingle) for t in texts], sets(texts, shingle)
    for i in range(len(texts)):
        assert len(got[i]) == len(expected[i])
        for j in range(i):
            assert len(got[i] & got[j]) == len(expected[i] & expected[j])


@given(st.lists(text, max_size=8), st.integers(1, 4))
def test_sets_are_sorted_and_do_not_depend_on_batches_or_threads(texts: list[str], threads: int) -> None:
    array = pa.array(texts, pa.large_string())
    hashes, offsets = shingle_sets(array, 2)
    again, places = shingle_sets(array, 2, threads)
    assert np.array_equal(hashes, again) and np.array_equal(offsets, places)
    for i in range(len(texts)):
        one = hashes[offsets[i] : offsets[i + 1]]
        assert len(one) and np.array_equal(one, np.unique(one))
        assert np.array_equal(one, shingle_sets(array[i : i + 1], 2)[0])


def test_words_are_pythons_where_scripts_have_spaces() -> None:
    sample = "Don't stop_here: naïve ÉCOLE 42nd №5 Привет, МИР! kitāb שלום عربي e\u0301."
    assert words(sample) == re.findall(r"[\w\u0300-\u036f]+", sample.lower())


def test_characters_of_unspaced_scripts_are_words() -> None:
    assert words("漢字かなABC ไทย𠀀x") == ["漢", "字", "か", "な", "abc", "ไ", "ท", "ย", "𠀀", "x"]


def test_the_table_knows_python_s_letters() -> None:
    table, later = word_table(), 0
    for code in range(len(table)):
        mark = unicodedata.category(chr(code)) in ("Mn", "Mc") and not 0xFE00 <= code <= 0xFE0F
        word = chr(code).isalnum() or chr(code) == "_" or mark
        if bool(table[code]) != word:
            later += 1
            assert word and code > 0xCF0
    assert later == 0 if sys.version_info < (3, 12) else later < 400


def test_short_texts_are_equal_only_when_they_compare_exactly() -> None:
    texts = ["", "  \n", "!!!", "???", "one", "One", "one two", "one, two", "one  two", "one two three four"]
    groups: dict[frozenset[int], list[str]] = {}
    for value, hashes in zip(texts, sets(texts), strict=True):
        groups.setdefault(frozenset(hashes), []).append(value)
    assert sorted(groups.values()) == sorted(
        [["", "  \n"], ["one two", "one  two"], *([t] for t in texts[2:] if t not in ("one two", "one  two"))]
    )


def test_repeats_of_one_shingle_count_once() -> None:
    assert [len(s) for s in sets(["a " * 500, "a b " * 500])] == [1, 2]
