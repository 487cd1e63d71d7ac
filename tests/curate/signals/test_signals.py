"""The compiled signals equal a plain Python count on any text, in any batch."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.signals import compute_signals
from curate.signals.code_points import PUNCT
from curate.signals.tokenizer import english_rules, words_of
from schemas.signals import SIGNALS
from tests.curate.signals import oracle

SPACES = ["a", "ab", "abc", "b", " ", "  ", "\n", "\n\n", "\n \n", "\t", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u3000"]
MARKS = [".", "..", "...", "…", "-", "•", "#", "!", "?", "。", '"', "'", "’", ")", "(", "{", "}", "[", "]", ",", "1", "12", "é", "漢", "😀"]
CHUNKS = ["the ", "to be ", "The", "don't ", "javaScript", "Lorem ipsum", "x_y", "fooBar ", "a@b.com", "e.g.", ":)", "\u0301", "\x00"]
PIECES = st.sampled_from(SPACES + MARKS + CHUNKS)
TEXTS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=60).map("".join))
WORDS = st.lists(st.sampled_from(["a", "b", "ab", "ba", "aab", "aba", "abab", "cccccccc", "ccccccccc"]), max_size=60).map(" ".join)


def rows(texts: list[str]) -> list[dict[str, int]]:
    return compute_signals(pa.array(texts, pa.large_string())).to_pylist()


def punctuation() -> frozenset[str]:
    classes = english_rules().classes
    return frozenset(map(chr, np.flatnonzero(classes & PUNCT).tolist()))


def expected(text: str) -> dict[str, int]:
    return oracle.line_signals(text) | oracle.word_signals(words_of(text), punctuation())


def assert_equals_oracle(text: str) -> None:
    row = rows([text])[0]
    counted = expected(text)
    assert {name: row[name] for name in counted} == counted


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_every_count_equals_the_oracle(text: str) -> None:
    if text:
        assert_equals_oracle(text)


@given(WORDS)
@settings(max_examples=300, deadline=None)
def test_repeated_ngrams_equal_the_oracle_where_words_run_together(text: str) -> None:
    """a|ab and aa|b are one key: the cascade must not lose repeats whose word borders differ."""
    if text:
        assert_equals_oracle(text)


@given(st.lists(TEXTS, max_size=12), st.data())
@settings(max_examples=100, deadline=None)
def test_a_row_depends_on_its_text_alone(texts: list[str], data: st.DataObject) -> None:
    whole = compute_signals(pa.array(texts, pa.large_string()))
    cut = data.draw(st.integers(0, len(texts)))
    array = pa.array(["padding", *texts], pa.large_string())
    parts = [compute_signals(array.slice(1, cut)), compute_signals(array.slice(1 + cut))]
    assert pa.Table.from_batches([whole]).equals(pa.Table.from_batches(parts).combine_chunks())


def test_the_schema_is_declared_and_documented() -> None:
    batch = compute_signals(pa.array(["one text"], pa.large_string()))
    assert batch.schema.equals(SIGNALS, check_metadata=True)
    assert all(pa.types.is_integer(field.type) and field.metadata[b"doc"] for field in SIGNALS)


def test_empty_text_counts_nothing() -> None:
    assert set(rows([""])[0].values()) == {0}
    assert compute_signals(pa.array([], pa.large_string())).num_rows == 0


def test_nulls_and_other_types_are_refused_with_a_reason() -> None:
    with pytest.raises(ValueError, match="1 of 2 texts are null"):
        compute_signals(pa.array(["a", None], pa.large_string()))
    with pytest.raises(TypeError, match="large_string"):
        compute_signals(pa.array(["a"]))


def test_a_text_beyond_32_bit_positions_is_refused() -> None:
    offsets = pa.py_buffer(np.array([0, 1 << 31], np.int64))
    never_touched = pa.py_buffer(np.zeros(1 << 31, np.uint8))
    with pytest.raises(ValueError, match="2,147,483,648 bytes"):
        compute_signals(pa.LargeStringArray.from_buffers(1, offsets, never_touched))


EDGES = {
    "white space only": " \n \t\n\n ",
    "one word": "word",
    "only newlines": "\n\n\n",
    "newlines at both ends": "\n\na\n\nb\n",
    "spaces before the full stop": "a line   .\nanother . ",
    "line breaks inside a paragraph": "one\u2028two\x85three\x0cfour\n\nfive",
    "carriage returns": "a\r\nb\rc\n\r\n",
    "full-width ends": "一つ。\n二つ。\n",
    "stop words are case-sensitive": "The Be To of",
    "dots and ellipsis": "...\n…\n....\n......\n. . .",
    "tie of two top n-grams": "b a b a c d c d",
    "emoji and combining marks": "e\u0301 👩‍👩‍👧 ❤️ a\u0300b",
    "nul and the last code points": "\x00a\U0010ffffb\ue000",
    "underscores at either end of a name": "a__ _a __b_ a_b_ _a__b A_b__",
    "lone quote before letters of other scripts": "ųvaųcript vaųcript lorem\x00ipsum",
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_equal_the_oracle(name: str) -> None:
    assert_equals_oracle(EDGES[name])


def test_a_text_of_a_million_characters_equals_the_oracle() -> None:
    text = "".join(f"Line {i % 977} of a long text, with {i} words...\n" for i in range(24_000)) + "x" * 10_000
    assert len(text) > 1_000_000
    assert_equals_oracle(text)


@pytest.mark.parametrize("words", [50, 100_000])
def test_word_counts_are_exact(words: int) -> None:
    assert rows(["word " * words])[0]["n_content_words"] == words


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_sentences_end_before_white_space(text: str) -> None:
    if text:
        assert rows([text])[0]["n_sentences"] == oracle.sentences(text)


def test_difficulty_is_the_flesch_kincaid_grade() -> None:
    row = rows(["The cat sat on the mat. It was happy."])[0]
    assert (row["n_sentences"], row["n_alpha_words"], row["n_syllables"]) == (2, 9, 10)
    grade = 0.39 * 9 / 2 + 11.8 * 10 / 9 - 15.59
    assert row["difficulty_milli"] == int(grade * 1000 // 1)
    hard, easy = rows(["Incomprehensible organizational documentation necessitates deliberation.", "He ran to the dog."])
    assert hard["difficulty_milli"] > easy["difficulty_milli"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("20°C.°C", ("20", "°", "C", ".", "°", "C")), ("°F.😀Why're 12", ("°", "F", ".", "😀", "Why're", "12"))],
)
def test_joined_words_may_fall_into_more_pieces(text: str, words: tuple[str, ...]) -> None:
    """A degree sign and `C.` are two words, and the exception that they spell has three."""
    assert words_of(text) == words
    assert rows([text])[0]["n_words"] == len(words)


@given(st.lists(st.sampled_from(["wo", "rd", "a", "longer", "thewordswerelong", ".", "é", "…"]), min_size=20, max_size=200))
@settings(max_examples=150, deadline=None)
def test_repeats_of_every_length_equal_the_oracle(words: list[str]) -> None:
    """5-grams shorter than 8, 16 and 32 characters and longer ones take different ways."""
    assert_equals_oracle(" ".join(words))


def test_classes_are_those_of_the_running_python_where_unicode_14_agrees() -> None:
    classes = english_rules().classes
    assert all(bool(classes[code] & 1) == chr(code).isspace() for code in range(0x3100))
    assert all(bool(classes[code] & 4) == chr(code).isalpha() for code in range(0x800))
    assert unicodedata.category("\u00a6") == "So" and re.match(r"\s", "\u2028")
