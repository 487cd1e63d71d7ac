"""Repeated runs of tokens against brute force: every window of every text is compared with all before it."""

import re

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.dedup.lines import cut_units, repeats
from curate.dedup.substrings import split_windows

SPACE = r"\s\x00-\x20\x85\xa0"
TOKEN = re.compile(rf"(?:[0-9A-Za-z]|[^\x00-\x7f{SPACE}\u2000-\u207f\u2e80-\U0010ffff])+|[^{SPACE}]")

words = st.sampled_from(["a", "b", "c", "ab", "é", "日", "。", "x1", "-", ".", "😀", "—", "ß"])
spaces = st.sampled_from([" ", " ", "\n", "\t ", "\u00a0", "\u3000", "\u2028", "\x00", ""])
texts = st.lists(st.lists(st.tuples(words, spaces), max_size=30).map(lambda pairs: "".join(a + b for a, b in pairs)), max_size=5)


def brute(values: list[str], n: int) -> list[str]:
    """Texts without the windows of n tokens that occur before: in an earlier text, or further left without an overlap."""
    seen, out = {}, []
    for number, value in enumerate(values):
        tokens = [(match.start(), match.end(), match.group()) for match in TOKEN.finditer(value)]
        gone = set()
        for first in range(len(tokens) - n + 1):
            window = tuple(token for _, _, token in tokens[first : first + n])
            text, place = seen.setdefault(window, (number, first))
            if text != number or first - place >= n:
                gone |= set(range(tokens[first][0], tokens[first + n - 1][1]))
        out.append("".join(char for place, char in enumerate(value) if place not in gone))
    return out


def all_repeats(windows, n):
    return repeats(windows.hashes, None, n, np.arange(len(windows.row)) + n * windows.row.astype(np.int64))


@settings(max_examples=300, deadline=None)
@given(texts, st.integers(1, 6))
def test_what_is_cut_is_what_brute_force_finds(values, n):
    array = pa.array(values, pa.large_string())
    windows = split_windows(array, n)
    cut, removed = cut_units(array, windows, all_repeats(windows, n))
    assert cut.to_pylist() == brute(values, n)
    assert removed.tolist() == [len(a.encode()) - len(b.encode()) for a, b in zip(values, brute(values, n), strict=True)]


@given(texts, st.integers(1, 4))
def test_within_documents_each_text_is_by_itself(values, n):
    array = pa.array(values, pa.large_string())
    windows = split_windows(array, n)
    cut, _ = cut_units(array, windows, repeats(windows.hashes, windows.row.astype(np.int64), n))
    assert cut.to_pylist() == [text for value in values for text in brute([value], n)]


def test_periodic_text_keeps_its_first_window_and_empty_text_is_no_trouble():
    array = pa.array(["word " * 200_000, "\n" * 1000, ""], pa.large_string())
    windows = split_windows(array, 50)
    cut, _ = cut_units(array, windows, all_repeats(windows, 50))
    assert cut[0].as_py().split() == ["word"] * 50
    assert cut.to_pylist()[1:] == ["\n" * 1000, ""]


def test_units_whose_first_hashes_collide_are_told_apart():
    hashes = np.array([[7, 1], [7, 2], [7, 1], [9, 1], [7, 2], [9, 1]], np.uint64)
    assert repeats(hashes).tolist() == [False, False, True, False, True, True]
    assert repeats(hashes, None, 3).tolist() == [False, False, False, False, True, False]
