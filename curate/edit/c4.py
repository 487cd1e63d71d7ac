"""C4's rules (Raffel et al. 2020, section 2.2) as datatrove applies them: a text becomes the lines that pass, or its document is dropped.

All works on the UTF-8 bytes; only sentences are counted over code points, and only until there are enough of them. A line meets the
rules in the order of `schemas.edits.C4_RULES`; `lorem_ipsum` and `curly_bracket` drop the document, and see only lines that are left.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from curate.dedup.exact import text_buffers
from curate.edit.record import Edited, Failed
from curate.signals.batch import decode
from curate.signals.code_points import SPACE, TABLE_SIZE, class_of
from curate.signals.kernels import inlined, kernel, sources_digest
from curate.signals.tokenizer import cut_text, english_rules
from schemas.edits import C4_RULES

C4_VERSION = 2
"""Raised whenever the outcome for any text changes."""

DEFAULTS = {"too_long_word": 1000, "too_few_words": 3, "too_few_sentences": 5}
KINDS = ("too_long_word", "citation", "no_terminal_punct", "too_few_words", "javascript", "policy", "white_space")
"""What is cut out: whole lines by the rule that they fail, citation marks, and line ends and white space around lines that stay."""

TOO_LONG_WORD, CITATION, NO_TERMINAL, TOO_FEW_WORDS, LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, POLICY, TOO_FEW_SENTENCES = range(9)
_KIND_OF = np.array([KINDS.index(rule) if rule in KINDS else -1 for rule in C4_RULES])
_WHITE_SPACE = KINDS.index("white_space")
_KEPT = -1

_PHRASES = ("lorem ipsum", "javascript", "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_RULE_OF = np.array([LOREM_IPSUM, JAVASCRIPT, *[POLICY] * 6])
_PHRASE_BYTES = np.frombuffer("".join(_PHRASES).encode(), np.uint8)
_PHRASE_ENDS = np.cumsum([len(phrase) for phrase in _PHRASES])
_EDIT_MARK = np.frombuffer(b"edit]", np.uint8)
_NEEDED_MARK = np.frombuffer(b"citation needed]", np.uint8)

MARK = np.uint8(1)  # punctuation by category
SENTENCE = np.uint8(2)  # ends a sentence as a token of its own
DECIMAL = np.uint8(4)  # decimal digit of some script
PIECE = 2048
"""Code points that are cut into words at once."""

# What spaCy's sentencizer takes for the end of a sentence: Unicode's Sentence_Terminal of version 6 to 10, and full-width forms.
_SENTENCE_ENDS = (
    (0x21, 0x21), (0x2E, 0x2E), (0x3F, 0x3F), (0x589, 0x589), (0x61F, 0x61F), (0x6D4, 0x6D4), (0x700, 0x702), (0x7F9, 0x7F9),
    (0x964, 0x965), (0x104A, 0x104B), (0x1362, 0x1362), (0x1367, 0x1368), (0x166E, 0x166E), (0x1735, 0x1736), (0x1803, 0x1803),
    (0x1809, 0x1809), (0x1944, 0x1945), (0x1AA8, 0x1AAB), (0x1B5A, 0x1B5B), (0x1B5E, 0x1B5F), (0x1C3B, 0x1C3C), (0x1C7E, 0x1C7F),
    (0x203C, 0x203D), (0x2047, 0x2049), (0x2E2E, 0x2E2E), (0x2E3C, 0x2E3C), (0x3002, 0x3002), (0xA4FF, 0xA4FF), (0xA60E, 0xA60F),
    (0xA6F3, 0xA6F3), (0xA6F7, 0xA6F7), (0xA876, 0xA877), (0xA8CE, 0xA8CF), (0xA92F, 0xA92F), (0xA9C8, 0xA9C9), (0xAA5D, 0xAA5F),
    (0xAAF0, 0xAAF1), (0xABEB, 0xABEB), (0xFE52, 0xFE52), (0xFE56, 0xFE57), (0xFF01, 0xFF01), (0xFF0E, 0xFF0E), (0xFF1F, 0xFF1F),
    (0xFF61, 0xFF61), (0x10A56, 0x10A57), (0x11047, 0x11048), (0x110BE, 0x110C1), (0x11141, 0x11143), (0x111C5, 0x111C6),
    (0x111CD, 0x111CD), (0x111DE, 0x111DF), (0x11238, 0x11239), (0x1123B, 0x1123C), (0x112A9, 0x112A9), (0x1144B, 0x1144C),
    (0x115C2, 0x115C3), (0x115C9, 0x115D7), (0x11641, 0x11642), (0x1173C, 0x1173E), (0x11A42, 0x11A43), (0x11A9B, 0x11A9C),
    (0x11C41, 0x11C42), (0x16A6E, 0x16A6F), (0x16AF5, 0x16AF5), (0x16B37, 0x16B38), (0x16B44, 0x16B44), (0x1BC9F, 0x1BC9F),
    (0x1DA88, 0x1DA88),
)  # fmt: skip


@lru_cache(maxsize=1)
def flag_table() -> npt.NDArray[np.uint8]:
    """MARK, SENTENCE and DECIMAL of each code point; built once a process."""
    flags = np.zeros(TABLE_SIZE, np.uint8)
    for code in range(0x20000):
        category = unicodedata.category(chr(code))
        flags[code] = MARK * (category[0] == "P") + DECIMAL * (category == "Nd")
    for first, last in _SENTENCE_ENDS:
        flags[first : last + 1] |= SENTENCE
    return flags


@inlined
def space_at(data, at, end):  # type: ignore[no-untyped-def]
    """Bytes of the white-space character at `at`, by str.isspace; 0 where there is none."""
    byte = data[at]
    if byte < 0x80:
        return np.int64(byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31)
    if byte == 0xC2 and at + 1 < end:
        return 2 * np.int64(data[at + 1] == 0x85 or data[at + 1] == 0xA0)
    if byte < 0xE1 or byte > 0xE3 or at + 2 >= end:
        return np.int64(0)
    second, third = data[at + 1], data[at + 2]
    if byte == 0xE2 and second == 0x80:
        return 3 * np.int64(third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF)
    rare = (
        (byte == 0xE1 and second == 0x9A and third == 0x80)
        or (byte == 0xE2 and second == 0x81 and third == 0x9F)
        or (byte == 0xE3 and second == 0x80 and third == 0x80)
    )
    return 3 * np.int64(rare)


@inlined
def break_at(data, at, end):  # type: ignore[no-untyped-def]
    """Bytes of the line boundary at `at`, by str.splitlines; 0 where there is none."""
    byte = data[at]
    if byte == 13:
        return np.int64(1) + np.int64(at + 1 < end and data[at + 1] == 10)
    if byte < 0x80:
        return np.int64(10 <= byte <= 12 or 28 <= byte <= 30)
    if byte == 0xC2 and at + 1 < end and data[at + 1] == 0x85:
        return np.int64(2)
    if byte == 0xE2 and at + 2 < end and data[at + 1] == 0x80 and (data[at + 2] == 0xA8 or data[at + 2] == 0xA9):
        return np.int64(3)
    return np.int64(0)


@kernel
def stripped(data, a, b):  # type: ignore[no-untyped-def]
    """The span data[a:b] without white space at its ends."""
    while a < b:
        width = space_at(data, a, b)
        if width == 0:
            break
        a += width
    while a < b:
        width = np.int64(0)
        for size in range(1, min(np.int64(3), b - a) + 1):
            if space_at(data, b - size, b) == size:
                width = size
        if width == 0:
            break
        b -= width
    return a, b


@kernel
def count_words(data, a, b):  # type: ignore[no-untyped-def]
    """Runs without white space in data[a:b], and the code points of the longest."""
    words, length, longest = 0, 0, 0
    while a < b:
        width = space_at(data, a, b)
        if width:
            length = 0
            a += width
            continue
        words += int(length == 0)
        length += int((data[a] & 0xC0) != 0x80)
        longest = max(longest, length)
        a += 1
    return words, longest


@kernel
def starts_with(data, at, end, mark):  # type: ignore[no-untyped-def]
    """Whether data[at:end] starts with the mark."""
    if end - at < len(mark):
        return False
    for i in range(len(mark)):  # noqa: SIM110 (compiled)
        if data[at + i] != mark[i]:
            return False
    return True


@kernel
def citation_length(flags, data, at, end):  # type: ignore[no-untyped-def]
    """Bytes of the citation mark at `at`, an opening square bracket; 0 where there is none."""
    if starts_with(data, at + 1, end, _EDIT_MARK):
        return 1 + len(_EDIT_MARK)
    if starts_with(data, at + 1, end, _NEEDED_MARK):
        return 1 + len(_NEEDED_MARK)
    k = at + 1
    while k < end:
        byte = np.uint32(data[k])
        if byte == 93:
            return k + 1 - at
        size = 1 + int(byte >= 0xC0) + int(byte >= 0xE0) + int(byte >= 0xF0)
        code = byte if byte < 0x80 else byte & (np.uint32(0x7F) >> np.uint32(size))
        for i in range(1, size):
            code = (code << np.uint32(6)) | (np.uint32(data[k + i]) & np.uint32(63))
        if not flags[min(np.int64(code), TABLE_SIZE - 1)] & DECIMAL:
            return 0
        k += size
    return 0


@kernel
def copy_line(flags, on, data, a, b, out, to):  # type: ignore[no-untyped-def]
    """Copies data[a:b] to out[to:] without its citation marks; returns the end of the copy and the number of marks."""
    marks = 0
    while a < b:
        if data[a] == 91 and on & (1 << CITATION):
            width = citation_length(flags, data, a, b)
            if width:
                marks += 1
                a += width
                continue
        out[to] = data[a]
        to += 1
        a += 1
    return to, marks


@inlined
def lower_at(line, at, end):  # type: ignore[no-untyped-def]
    """The ASCII letter that a byte is in lower case; the Kelvin sign's first byte stands for k. Other bytes are themselves."""
    byte = line[at]
    if 65 <= byte <= 90:
        return np.uint8(byte + 32)
    return byte


@kernel
def phrase_at(line, at, end, start, stop):  # type: ignore[no-untyped-def]
    """Whether phrase bytes [start:stop] are at `at`, in any case; U+212A is a k in lower case."""
    for i in range(start, stop):
        if at >= end:
            return False
        if line[at] == 0xE2 and at + 2 < end and line[at + 1] == 0x84 and line[at + 2] == 0xAA:
            if _PHRASE_BYTES[i] != 107:
                return False
            at += 3
            continue
        if lower_at(line, at, end) != _PHRASE_BYTES[i]:
            return False
        at += 1
    return True


@kernel
def find_phrases(line, a, b):  # type: ignore[no-untyped-def]
    """Which of the phrase rules, and whether a curly bracket, line[a:b] holds: bits by rule."""
    found = 0
    for at in range(a, b):
        byte = lower_at(line, at, b)
        if byte == 123:
            found |= 1 << CURLY_BRACKET
        if not (byte == 108 or byte == 106 or byte == 116 or byte == 112 or byte == 99 or byte == 117):
            continue
        start = 0
        for phrase in range(len(_PHRASE_ENDS)):
            stop = _PHRASE_ENDS[phrase]
            if byte == _PHRASE_BYTES[start] and phrase_at(line, at, b, start, stop):
                found |= 1 << _RULE_OF[phrase]
            start = stop
    return found


@kernel
def ends_sentence(line, a, b):  # type: ignore[no-untyped-def]
    """Whether line[a:b] ends in one of . ? ! " ' and not in three full stops."""
    if a == b:
        return False
    last = line[b - 1]
    if last == 46:
        return not (b - a >= 3 and line[b - 2] == 46 and line[b - 3] == 46)
    return last == 63 or last == 33 or last == 34 or last == 39


@kernel
def failed_rule(on, line, a, b, words, longest, limits):  # type: ignore[no-untyped-def]
    """The first rule that a line fails, _KEPT if none; words and the longest are those before citations were removed."""
    if on & (1 << TOO_LONG_WORD) and longest > limits[0]:
        return TOO_LONG_WORD
    if on & (1 << NO_TERMINAL) and not ends_sentence(line, a, b):
        return NO_TERMINAL
    if on & (1 << TOO_FEW_WORDS) and words < limits[1]:
        return TOO_FEW_WORDS
    found = find_phrases(line, a, b) & on
    for rule in (LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, POLICY):
        if found & (1 << rule):
            return rule
    return _KEPT


@njit(nogil=True)
def piece_end(line, at, b):  # type: ignore[no-untyped-def]
    """The end of a piece from `at`: the white space after PIECE bytes and more, or the end."""
    q = min(at + PIECE, b)
    while q < b and (space_at(line, q, b) == 0 or (line[q] & 0xC0) == 0x80):
        q += 1
    return q


@njit(nogil=True)
def count_sentences(rules, flags, line, a, b, enough):  # type: ignore[no-untyped-def]
    """Sentences of line[a:b] as spaCy's rule-based splitter finds them, up to about `enough`.

    A sentence begins at the first token after an ending mark that is no punctuation; a run of white space is a token unless it is one
    space between words. Sentences of white space alone do not count.
    """
    count, visible, ended, at = 0, False, False, a
    while at < b and count < enough:
        stop = piece_end(line, at, b)
        codes = np.empty(stop - at, np.uint32)
        size, _, _ = decode(rules.classes, line[at:stop], codes)
        stream, ends = np.empty(size, np.uint32), np.empty(size, np.int32)
        words = cut_text(rules, codes[:size], stream, ends)
        i, start = 0, 0
        for word in range(words + 1):
            first = i
            while i < size and class_of(rules.classes, codes[i]) & SPACE:
                i += 1
            space = i > first and not (i - first == 1 and codes[first] == 32 and (at > a or first > 0))
            if space and ended:
                count, visible, ended = count + int(visible), False, False
            if word == words:
                break
            mark, sentence = True, ends[word] - start == 1 and flags[min(np.int64(stream[start]), TABLE_SIZE - 1)] & SENTENCE != 0
            for k in range(start, ends[word]):
                mark &= flags[min(np.int64(stream[k]), TABLE_SIZE - 1)] & MARK != 0
            if ended and not mark and not sentence:
                count, visible, ended = count + int(visible), False, False
            ended |= sentence
            visible = True
            i += ends[word] - start
            start = ends[word]
        at = stop
    return count + int(visible)


@njit(nogil=True)
def rewrite(rules, flags, on, limits, data, start, end, out, to, counts, removed):  # type: ignore[no-untyped-def]
    """Writes what is left of data[start:end] to out[to:]; returns its end, the failed rule or _KEPT, and the sentences seen."""
    begin, at, sentences = to, start, 0
    while at < end:
        stop, width = at, np.int64(0)
        while stop < end:
            width = break_at(data, stop, end)
            if width:
                break
            stop += 1
        a, b = stripped(data, at, stop)
        words, longest = count_words(data, a, b)
        line = to + int(to > begin)
        line_end, marks = copy_line(flags, on, data, a, b, out, line)
        rule = failed_rule(on, out, line, line_end, words, longest, limits)
        if rule in (LOREM_IPSUM, CURLY_BRACKET):
            return to, rule, 0
        whole = stop + width - at
        if rule == _KEPT:
            if on & (1 << TOO_FEW_SENTENCES) and sentences < limits[2]:
                sentences += count_sentences(rules, flags, out, line, line_end, limits[2] - sentences)
            counts[_KIND_OF[CITATION]] += marks
            removed[_KIND_OF[CITATION]] += b - a - (line_end - line)
            removed[_WHITE_SPACE] += whole - (b - a) - (line - to)
            if line > to:
                out[to] = 10
            # A line of nothing but white space and marks, which only loose settings keep, still takes its place.
            to = line_end
        else:
            counts[_KIND_OF[rule]] += 1
            removed[_KIND_OF[rule]] += whole
        at = stop + width
    if on & (1 << TOO_FEW_SENTENCES) and sentences < limits[2]:
        return to, TOO_FEW_SENTENCES, sentences
    a, b = stripped(out, begin, to)
    removed[_WHITE_SPACE] += to - begin - (b - a)
    if a > begin:
        out[begin : begin + b - a] = out[a:b].copy()
    return begin + b - a, _KEPT, sentences


def _entry(digest: int) -> Callable[..., None]:
    """The compiled entry point; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def batch(rules, flags, on, limits, data, offsets, out, new_offsets, failed, sentences, counts, removed):  # type: ignore[no-untyped-def]
        to = 0
        for row in range(len(offsets) - 1):
            if digest >= 0:
                start, end = offsets[row], offsets[row + 1]
                stop, rule, seen = rewrite(rules, flags, on, limits, data, start, end, out, to, counts[row], removed[row])
                failed[row], sentences[row] = rule, seen
                if rule != _KEPT:
                    counts[row], removed[row] = 0, 0
                    stop = to + end - start
                    out[to:stop] = data[start:end]
                to = stop
                new_offsets[row + 1] = to

    return batch  # type: ignore[no-any-return]


_batch = _entry(sources_digest())


def c4(texts: pa.LargeStringArray, off: Sequence[str] = (), thresholds: Mapping[str, int] | None = None) -> Edited:
    """Texts rewritten to the lines that C4's rules keep; the texts of documents that a rule drops stay as they are.

    Args:
        texts: large strings without nulls.
        off: rules of `schemas.edits.C4_RULES` that are switched off.
        thresholds: changes to DEFAULTS.
    """
    data, offsets = text_buffers(texts)
    chosen = DEFAULTS | dict(thresholds or {})
    on = sum(1 << position for position, rule in enumerate(C4_RULES) if rule not in off)
    limits = np.array([chosen[rule] for rule in DEFAULTS])
    rows = len(texts)
    out, new_offsets = np.empty(int(offsets[-1] - offsets[0]) + 1, np.uint8), np.zeros(rows + 1, np.int64)
    failed, sentences = np.empty(rows, np.int64), np.empty(rows, np.int64)
    counts, removed = np.zeros((rows, len(KINDS)), np.int64), np.zeros((rows, len(KINDS)), np.int64)
    _batch(english_rules(), flag_table(), on, limits, data, offsets, out, new_offsets, failed, sentences, counts, removed)
    new = pa.LargeStringArray.from_buffers(rows, pa.py_buffer(new_offsets), pa.py_buffer(out[: new_offsets[-1]]))
    fell = np.flatnonzero(failed != _KEPT)
    few = failed[fell] == TOO_FEW_SENTENCES
    failures = Failed(
        fell,
        [f"c4_{C4_RULES[rule]}" for rule in failed[fell].tolist()],
        np.where(few, sentences[fell].astype(np.float64), np.nan),
        np.where(few, float(chosen["too_few_sentences"]), np.nan),
    )
    return Edited(new, KINDS, counts, removed, np.zeros_like(removed), failures)
