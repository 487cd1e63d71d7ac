"""Words of texts in scripts that put no spaces between them: cut by ICU's dictionaries, and the signals of words counted anew.

The words of every other text are those of the English tokenizer, which agree with ICU's breaks in Arabic, Hebrew, Hangul, Cyrillic or
Devanagari as they do in Latin (F1 .99 and more). Which texts are cut here, the text alone says: those in which at least a letter in
four is of Han, kana, bopomofo, Thai, Lao, Khmer, Burmese, Tibetan or Ethiopic. A word is then what lies between two word breaks of ICU
(UAX #29 with its dictionaries), white space left out; marks are words of their own, as in the English tokenizer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from curate.signals.batch import buffers, decode
from curate.signals.code_points import SPACE, class_of
from curate.signals.hashing import BASE, ONE
from curate.signals.kernels import kernel, sources_digest
from curate.signals.ngrams import duplicate_ngrams, gram_room, top_ngrams
from curate.signals.tokenizer import english_rules, kind_of
from curate.signals.words import WORD, reading_signals, word_signals
from schemas.errors import RecipeError
from schemas.signals import SIGNALS

WORDS_VERSION = 1
"""Raised whenever other texts are cut, or the signals of equal words differ."""
SHARE = 4
"""A letter in so many makes a text one of these scripts."""
ZERO_WIDTH_SPACE = 0x200B
"""What some put between words of Khmer and Thai; no word."""

_UNSPACED = (
    (0x0E01, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1200, 0x139F), (0x1780, 0x17FF), (0x19E0, 0x19FF), (0x2D80, 0x2DDF),
    (0x3005, 0x3007), (0x3041, 0x30FF), (0x3105, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0xAB00, 0xAB2F), (0xF900, 0xFAFF), (0xFF66, 0xFF9D), (0x1AFF0, 0x1B16F), (0x20000, 0x3FFFD),
)  # fmt: skip
COUNTED = (
    *("n_words", "n_content_words", "content_word_chars", "n_alpha_words", "n_stop_words", "n_syllables", "difficulty_milli"),
    *(f"top_{n}_gram_chars" for n in (2, 3, 4)),
    *(f"dup_{n}_gram_chars" for n in range(5, 11)),
)
"""Signals that are counted in words."""

Rows = npt.NDArray[np.int64]


@lru_cache(maxsize=1)
def _unspaced_table() -> npt.NDArray[np.bool_]:
    table = np.zeros(0x40000, np.bool_)
    for first, last in _UNSPACED:
        table[first : last + 1] = True
    return table


@kernel
def count_unspaced(unspaced, data):  # type: ignore[no-untyped-def]
    """Code points of scripts without spaces in valid UTF-8; all of them take three bytes or four."""
    count = np.int64(0)
    for k in range(len(data)):
        byte = np.int64(data[k])
        if byte >= 0xE0:
            code = (byte & 15) << 12 | (np.int64(data[k + 1]) & 63) << 6 | (np.int64(data[k + 2]) & 63)
            if byte >= 0xF0:
                code = (code & 0xFFF) << 6 | (np.int64(data[k + 3]) & 63) | (byte & 7) << 18
            count += code < len(unspaced) and unspaced[code]
    return count


@kernel
def describe_words(classes, c, s, cuts, ends, hashes, kinds):  # type: ignore[no-untyped-def]
    """Writes end, hash and kind of the words between cuts (in UTF-16 units of the text `c`); returns their number and the length."""
    n = at = place = unit = 0
    for cut in cuts:
        value, mask, before = np.uint64(0), np.uint32(0), at
        while unit < cut:
            code = c[place]
            kind = class_of(classes, code)
            place += 1
            unit += 1 + (code > 0xFFFF)
            if kind & SPACE or code == ZERO_WIDTH_SPACE:
                continue
            s[at] = code
            value = value * BASE + (np.uint64(code) + ONE)
            mask |= kind
            at += 1
        if at > before:
            ends[n], hashes[n], kinds[n] = at, value, kind_of(mask)
            n += 1
    return n, at


def _entries(signals: int, mine: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """The compiled entry points; see `curate.signals.kernels` for the digests."""

    @njit(nogil=True, cache=True)
    def look(unspaced, data, offsets, rows, counts):  # type: ignore[no-untyped-def]
        if signals >= 0 and mine >= 0:
            for i in range(len(rows)):
                counts[i] = count_unspaced(unspaced, data[offsets[rows[i]] : offsets[rows[i] + 1]])

    @njit(nogil=True, cache=True)
    def count(rules, data, cuts, out):  # type: ignore[no-untyped-def]
        if signals >= 0 and mine >= 0:
            codes = np.empty(len(data), np.uint32)
            size, _, _ = decode(rules.classes, data, codes)
            s, borders = np.empty(size, np.uint32), np.zeros(size + 1, np.int32)
            ends = borders[1:]
            hashes, kinds = np.empty(size, np.uint64), np.empty(size, np.uint8)
            n, length = describe_words(rules.classes, codes[:size], s, cuts, ends, hashes, kinds)
            word_signals(ends, hashes, kinds, n, out)
            reading_signals(s[:length], ends, kinds, n, np.empty(length + WORD, np.uint8), out)
            grams = gram_room(max(n, 1))
            top_ngrams(borders, n, hashes, grams, out)
            duplicate_ngrams(s[:length], borders, n, hashes, rules.powers, grams, out)

    return look, count


_look, _count = _entries(sources_digest(), sources_digest(__file__))


def splitter() -> tuple[int, str]:
    """What words of these scripts depend on: this module's version and ICU's, with its dictionaries.

    Raises:
        RecipeError: ICU is not installed.
    """
    try:
        import icu4py
    except ImportError as error:
        raise RecipeError(
            "words of languages that are written without spaces need icu4py, which is not installed",
            where="language",
            fix="pip install 'gristmill[text]'",
        ) from error
    return WORDS_VERSION, str(icu4py.icu_version)


def word_breaks(text: str) -> npt.NDArray[np.int64]:
    """Where ICU breaks a text into words, in UTF-16 units from its start; the last is its length."""
    from icu4py.breakers import WordBreaker

    spans = np.fromiter(itertools.chain.from_iterable(WordBreaker(text, "und").segments()), np.int64)
    return spans[1::2]


def unspaced_rows(texts: pa.LargeStringArray, signals: pa.RecordBatch) -> Rows:
    """Rows of the texts in scripts without spaces; only texts of many long code points are looked into."""
    size, chars, letters = (signals.column(name).to_numpy() for name in ("n_bytes", "n_chars", "n_alpha_chars"))
    rows = np.flatnonzero(2 * SHARE * (size - chars) >= letters)
    rows = rows[size[rows] > chars[rows]]
    counts = np.empty(len(rows), np.int64)
    _look(_unspaced_table(), *buffers(texts), rows, counts)
    chosen: Rows = rows[(counts > 0) & (SHARE * counts >= letters[rows])]
    return chosen


def with_words(texts: pa.LargeStringArray, signals: pa.RecordBatch) -> pa.RecordBatch:
    """Signals in which those of words are ICU's wherever a text is in a script without spaces.

    Args:
        texts: Any Unicode texts; no nulls.
        signals: What `compute_signals` gives for them.

    Returns:
        The same columns; rows of other texts are as they were.
    """
    rows = unspaced_rows(texts, signals)
    if len(rows) == 0:
        return signals
    data, offsets = buffers(texts)
    out = np.zeros((len(rows), len(SIGNALS)), np.int64)
    out[:, SIGNALS.get_field_index("n_sentences")] = signals.column("n_sentences").to_numpy()[rows]
    for i, row in enumerate(rows.tolist()):
        _count(english_rules(), data[offsets[row] : offsets[row + 1]], word_breaks(texts[row].as_py()), out[i])
    columns: dict[str, Any] = dict(zip(SIGNALS.names, signals.columns, strict=True))
    for name in COUNTED:
        values = columns[name].to_numpy().copy()
        values[rows] = out[:, SIGNALS.get_field_index(name)]
        columns[name] = pa.array(values)
    return pa.record_batch(list(columns.values()), schema=SIGNALS)
