"""The quality signals of RedPajama-v2 that are functions of a text alone, counted over its code points.

Source: Weber et al. 2024, RedPajama: an Open Dataset for Training Large Language Models, table 9 and the published code's arithmetic;
signals by line are summed over the lines. Not here: stop words (a list for each language), block lists, and scores of models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from curate.families import normal_forms
from curate.families.normal_forms import LIMIT, forms, normalise, normalised
from curate.signals import hashing
from curate.signals.batch import buffers
from curate.signals.hashing import BASE, HIGH_BITS, ONE, SPREAD, load_word
from curate.signals.kernels import inlined, kernel, sources_digest
from schemas.families import FAMILIES

_COLUMNS = FAMILIES["redpajama"].names
(WORDS, WORD_CHARS, UNIQUE_WORDS, ENTROPY_MICRO, RAW_WORDS, ALPHA_WORDS, CAPS_WORDS, SYMBOLS, SENTENCES) = range(9)
(CURLY_BRACKETS, LOREM_IPSUM, JAVASCRIPT, LINES, TERMINAL_LINES, ELLIPSIS_LINES, BULLET_LINES, UPPER_CHARS, NUMERIC_CHARS) = range(9, 18)
TOP_2_GRAM = 18

WORD, SPACE, UPPER, SMALL, NUMERIC, BULLET = np.uint8(1), np.uint8(2), np.uint8(4), np.uint8(8), np.uint8(16), np.uint8(32)
_BULLETS = "\u2022\u2023\u25b6\u25c0\u25e6\u25a0\u25a1\u25aa\u25ab\u2013"
_JAVASCRIPT, _LOREM, _IPSUM = (np.array(list(word.encode()), np.uint32) for word in ("javascript", "lorem", "ipsum"))


@lru_cache(maxsize=1)
def _classes() -> npt.NDArray[np.uint8]:
    """Python's classes of every code point; a tenth of a second. None from LIMIT on is in any."""
    table = np.zeros(0x110000, np.uint8)
    tests = {WORD: str.isalnum, SPACE: str.isspace, UPPER: str.isupper, NUMERIC: str.isnumeric}
    for code in range(LIMIT):
        char = chr(code)
        for mask, test in tests.items():
            if test(char):
                table[code] |= mask
        if char.islower() or (char.istitle() and not char.isupper()):
            table[code] |= SMALL
    for char in _BULLETS:
        table[ord(char)] |= BULLET
    table[ord("_")] |= WORD
    return table


@kernel
def decode(data, codes):  # type: ignore[no-untyped-def]
    """Writes the code points of valid UTF-8; returns how many there are."""
    n = k = 0
    size = len(data)
    while k < size:
        if k + 8 <= size and load_word(data, k) & HIGH_BITS == 0:
            for j in range(8):
                codes[n + j] = data[k + j]
            n += 8
            k += 8
            continue
        lead = np.uint32(data[k])
        length = 1 + int(lead >= 0xC0) + int(lead >= 0xE0) + int(lead >= 0xF0)
        code = lead & np.uint32(0x7F >> (length - (length == 1)))
        for j in range(1, length):
            code = (code << np.uint32(6)) | (np.uint32(data[k + j]) & np.uint32(63))
        codes[n] = code
        n += 1
        k += length
    return n


@kernel
def raw_signals(classes, c, out):  # type: ignore[no-untyped-def]
    """Adds the counts of the text as it is: words, symbols, capitals, brackets."""
    size = len(c)
    words = alphas = caps = symbols = brackets = uppers = np.int64(0)
    k = 0
    while k < size:
        mask = classes[c[k]]
        kind = mask & (WORD | SPACE)
        seen = mask
        alpha = False
        dots = 0
        while mask & (WORD | SPACE) == kind:
            code = c[k]
            seen |= mask
            alpha |= 97 <= code | 32 <= 122
            uppers += np.int64(mask & UPPER != 0)
            dots = dots + 1 if code == 46 else 0
            symbols += int(code == 35 or code == 0x2026 or (dots > 0 and dots % 3 == 0))
            brackets += int(code == 123 or code == 125)
            k += 1
            if k == size:
                break
            mask = classes[c[k]]
        if kind & SPACE == 0:
            words += 1
            alphas += int(alpha)
            caps += int(seen & UPPER != 0 and seen & SMALL == 0)
    out[RAW_WORDS], out[ALPHA_WORDS], out[CAPS_WORDS] = words, alphas, caps
    out[SYMBOLS], out[CURLY_BRACKETS], out[UPPER_CHARS] = symbols, brackets, uppers


@inlined
def stops(code):  # type: ignore[no-untyped-def]
    """Whether a code point ends a sentence."""
    return code == 46 or code == 33 or code == 63


@kernel
def sentence_signals(classes, c, out):  # type: ignore[no-untyped-def]
    """Adds the sentences."""
    size = len(c)
    k = 0
    while k < size:
        while k < size and classes[c[k]] & WORD == 0:
            k += 1
        out[SENTENCES] += int(k < size)
        while k < size and not stops(c[k]):
            k += 1
        while k < size and stops(c[k]):
            k += 1


@kernel
def line_signals(classes, c, out):  # type: ignore[no-untyped-def]
    """Adds lines and how they begin and end."""
    size = len(c)
    start = 0
    while start < size:
        end = start
        while end < size and c[end] != 10:
            end += 1
        out[LINES] += 1
        a, b = start, end
        while a < b and classes[c[a]] & SPACE:
            a += 1
        while a < b and classes[c[b - 1]] & SPACE:
            b -= 1
        if a < b:
            last = c[b - 1]
            out[TERMINAL_LINES] += int(stops(last) or last == 0x201D)
            out[ELLIPSIS_LINES] += int(last == 0x2026 or (b - a > 2 and last == 46 and c[b - 2] == 46 and c[b - 3] == 46))
            out[BULLET_LINES] += int((classes[c[a]] & BULLET) != 0)
        start = end + 1


@inlined
def stirred(value):  # type: ignore[no-untyped-def]
    """A hash whose every bit depends on every bit, never 0, which marks an empty slot."""
    value = (value ^ (value >> np.uint64(29))) * SPREAD
    return (value ^ (value >> np.uint64(32))) | ONE


@kernel
def equals(m, start, end, word):  # type: ignore[no-untyped-def]
    """Whether m[start:end] is `word`."""
    if end - start != len(word):
        return False
    same = True
    for k in range(len(word)):
        same &= m[start + k] == word[k]
    return same


@kernel
def find_words(classes, m, words, out):  # type: ignore[no-untyped-def]
    """Writes hash and length of each normalised word and adds what single words tell; returns their number."""
    hashes, lengths = words
    size = len(m)
    n = k = 0
    chars = numerics = scripts = lorems = np.int64(0)
    lorem = False
    while k < size:
        mask = classes[m[k]]
        if mask & SPACE:
            k += 1
            continue
        start = k
        value = np.uint64(0)
        while mask & SPACE == 0:
            value = value * BASE + (np.uint64(m[k]) + ONE)
            numerics += np.int64(mask & NUMERIC != 0)
            k += 1
            if k == size:
                break
            mask = classes[m[k]]
        hashes[n] = stirred(value)
        lengths[n] = k - start
        chars += k - start
        if k - start >= len(_LOREM):
            scripts += int(equals(m, start, k, _JAVASCRIPT))
            lorems += int(lorem and equals(m, start, start + len(_IPSUM), _IPSUM))
            lorem = equals(m, k - len(_LOREM), k, _LOREM)
        else:
            lorem = False
        n += 1
    out[WORDS], out[WORD_CHARS], out[NUMERIC_CHARS], out[JAVASCRIPT], out[LOREM_IPSUM] = n, chars, numerics, scripts, lorems
    return n


@kernel
def count_keys(hashes, n, table, slots):  # type: ignore[no-untyped-def]
    """Counts equal keys among the first n; writes the slot of each, returns how many differ. `table` is keys and counts, left dirty."""
    keys, counts = table
    room = np.int64(16)
    while room < 2 * n:
        room *= 2
    keys[:room] = 0
    counts[:room] = 0
    different = 0
    for k in range(n):
        key = hashes[k]
        slot = np.int64(key >> np.uint64(20)) & (room - 1)
        while keys[slot] != 0 and keys[slot] != key:
            slot = (slot + 1) & (room - 1)
        different += int(keys[slot] == 0)
        keys[slot] = key
        counts[slot] += 1
        slots[k] = slot
    return different


@kernel
def distribution(n, table, slots, out):  # type: ignore[no-untyped-def]
    """Adds the entropy of words counted by `count_keys`, each word's term added where it is met first."""
    _, counts = table
    total = 0.0
    for k in range(n):
        count = counts[slots[k]]
        if count > 0:
            total += count * np.log(np.float64(count))
            counts[slots[k]] = 0
    out[ENTROPY_MICRO] = np.int64(np.floor((np.log(np.float64(n)) - total / n) * 1e6 + 0.5))


@kernel
def gram_signals(words, n, grams, table, slots, chosen, repeats, out):  # type: ignore[no-untyped-def]
    """Adds the signals of n-grams of 2 to 10 words.

    An n-gram can only repeat where both its (n - 1)-grams do, so only those are counted; its key is made of that of the (n - 1)-gram at the
    same place. `repeats` says at first which words occur more than once, `chosen` and `slots` are scratch, `grams` also holds the hashes.
    """
    hashes, lengths = words
    keys, counts = grams[1], table[1]
    for k in range(n):
        grams[0][k] = hashes[k]
    for length in range(2, 11):
        found = 0
        for k in range(n - length + 1):
            chosen[found] = k
            found += int(repeats[k] & repeats[k + 1])
        for place in range(found):
            k = chosen[place]
            grams[0][k] = keys[place] = stirred(grams[0][k] * BASE + hashes[k + length - 1])
        if found < 2 or count_keys(keys, found, table, slots) == found:
            return  # no longer n-gram occurs twice either
        for k in range(n - length + 2):
            repeats[k] = 0
        top = most = reach = 0
        for place in range(found):
            count, k = counts[slots[place]], chosen[place]
            repeats[k] = count > 1
            if count > most:
                top, most = k, count
            if length > 4 and count > 1:
                for w in range(max(k, reach), k + length):
                    out[TOP_2_GRAM + length - 2] += lengths[w]
                reach = k + length
        if length <= 4:
            for k in range(top, top + length):
                out[TOP_2_GRAM + length - 2] += most * lengths[k]


def _entry(digest: int) -> Callable[..., None]:
    """The compiled entry point; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def count(classes, forms, data, offsets, rows, given, stops, left, out):  # type: ignore[no-untyped-def]
        if digest < 0:
            return
        longest = 0
        for row in rows:
            longest = max(longest, offsets[row + 1] - offsets[row])
        size = longest // 2 + 2
        room = 16
        while room < 2 * size:
            room *= 2
        codes, written = np.empty(longest, np.uint32), np.empty(4 * longest, np.uint32)
        words = np.empty(size, np.uint64), np.empty(size, np.int64)
        grams, slots = (np.empty(size, np.uint64), np.empty(size, np.uint64)), np.empty(size, np.int64)
        chosen, repeats = np.empty(size, np.int64), np.empty(size + 1, np.uint8)
        table = np.empty(room, np.uint64), np.empty(room, np.int64)
        for i in range(len(rows)):
            text, mine = codes[: decode(data[offsets[rows[i]] : offsets[rows[i] + 1]], codes)], out[rows[i]]
            if len(stops) > 0:
                m = given[stops[i] : stops[i + 1]]
            else:
                length = normalise(forms, text, written)
                left[rows[i]] = length < 0
                if length < 0:
                    continue
                m = written[:length]
            raw_signals(classes, text, mine)
            sentence_signals(classes, text, mine)
            line_signals(classes, text, mine)
            n = find_words(classes, m, words, mine)
            if n > 0:
                mine[UNIQUE_WORDS] = count_keys(words[0], n, table, slots)
                for k in range(n):
                    repeats[k] = table[1][slots[k]] > 1
                distribution(n, table, slots, mine)
                gram_signals(words, n, grams, table, slots, chosen, repeats, mine)

    return count  # type: ignore[no-any-return]


_count = _entry(sources_digest(__file__, normal_forms.__file__, hashing.__file__))


def redpajama_signals(texts: pa.LargeStringArray) -> pa.RecordBatch:
    """The signals of each text.

    Args:
        texts: Any Unicode texts, empty ones too; no nulls.

    Returns:
        One row a text in the order of the texts, columns of `schemas.families`.
    """
    data, offsets = buffers(texts)
    out, left = np.zeros((len(texts), len(_COLUMNS)), np.int64), np.zeros(len(texts), np.bool_)
    tables = _classes(), forms()
    nothing = np.zeros(0, np.uint32), np.zeros(0, np.int64)
    _count(*tables, data, offsets, np.arange(len(texts)), *nothing, left, out)
    if left.any():
        rows = np.flatnonzero(left)
        plain = [normalised(text) for text in texts.take(pa.array(rows)).to_pylist()]
        given = np.array(np.frombuffer("".join(plain).encode("utf-32-le"), np.uint32))
        _count(*tables, data, offsets, rows, given, np.cumsum([0, *map(len, plain)], dtype=np.int64), left, out)
    return pa.record_batch([pa.array(np.ascontiguousarray(column)) for column in out.T], schema=FAMILIES["redpajama"])
