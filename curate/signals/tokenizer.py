"""English words as spaCy's blank English tokenizer cuts them, over arrays of code points.

A chunk is a run without white space. From a chunk, prefixes and suffixes are split off one at a time until an exception is left or
nothing more splits; the middle stays whole if it is an exception, a host name, URL or e-mail address, and is otherwise cut at its
infixes. Last, neighbouring words that together spell an exception are joined or cut as it says. White space makes no words.

Words are returned as offsets into the stream: the text's code points without its white space. The functions take `c` (code points,
uint8 or uint32), the stream `s` of the same type, half-open spans of the stream, and `rules` (`Rules`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from curate.signals import code_points
from curate.signals.code_points import (
    BEFORE_DOT,
    CURRENCY,
    DIGIT,
    HOST,
    HOT,
    ICON,
    INFIX,
    LETTER,
    LOWER,
    PREFIX,
    QUOTE,
    SPACE,
    SUFFIX,
    TABLE_SIZE,
    UNIT_END,
    UPPER,
    WORD,
)
from curate.signals.exceptions import exceptions
from curate.signals.hashing import BASE, ONE, hash_text, home, part, power_table
from curate.signals.kernels import inlined, kernel, sources_digest

LAST_CLASS = TABLE_SIZE - 1
SLOTS_SHIFT = np.uint64(64 - 12)
"""Exceptions and units live in tables of 4,096 slots."""
MAX_EXCEPTION = 16
MAX_UNIT = 5


class Rules(NamedTuple):
    """The tables that splitting looks at; a tuple of arrays, so that compiled code takes it as an argument."""

    classes: npt.NDArray[np.uint32]
    powers: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint32]  # by first character (all from 255 on together), bit k: an exception of k characters starts so
    keys: npt.NDArray[np.uint64]  # exceptions by hash, open addressing; 0 is free
    cuts: npt.NDArray[np.uint32]  # bit k: a word of the exception starts at its k-th character
    joins: npt.NDArray[np.uint32]  # the same for the words it would fall into; 0 where joining cannot happen
    join_starts: npt.NDArray[np.uint64]  # hashes of the first words of joinable exceptions
    units: npt.NDArray[np.uint64]  # units by hash


@inlined
def class_of(classes, code):  # type: ignore[no-untyped-def]
    """The class mask of a code point."""
    return classes[min(np.int64(code), LAST_CLASS)]


@inlined
def slot_of(keys, key):  # type: ignore[no-untyped-def]
    """The slot that holds a key, or -1."""
    slot = home(key, SLOTS_SHIFT)
    while keys[slot] != 0:
        if keys[slot] == key:
            return slot
        slot = (slot + 1) & (len(keys) - 1)
    return -1


@inlined
def exception_at(rules, s, prefix, a, b):  # type: ignore[no-untyped-def]
    """The slot of the exception that s[a:b] is, or -1."""
    if b - a > MAX_EXCEPTION or b <= a or not (rules.lengths[min(s[a], 255)] >> np.uint32(b - a)) & np.uint32(1):
        return -1
    return slot_of(rules.keys, part(prefix, rules.powers, a, b))


@kernel
def prefix_length(rules, s, a, b):  # type: ignore[no-untyped-def]
    """Characters to split off the start of s[a:b]; 0 for none."""
    first = s[a]
    if class_of(rules.classes, first) & PREFIX:
        return 1
    if first == 46:
        end = a + 1
        while end < b and s[end] == 46:
            end += 1
        return end - a if end - a > 1 else 0
    if first == 43:
        return 0 if a + 1 < b and class_of(rules.classes, s[a + 1]) & DIGIT else 1
    if a + 2 < b and first == 85 and s[a + 1] == 83 and s[a + 2] == 36:  # US$
        return 3
    if a + 1 < b and (first == 67 or first == 65) and s[a + 1] == 36:  # C$ and A$
        return 2
    if a + 3 == b and first == 85 and s[a + 1] == 83 and s[a + 2] == 36:
        return 3
    return 0


@kernel
def unit_length(rules, s, prefix, a, b):  # type: ignore[no-untyped-def]
    """Length of the unit at the end of s[a:b] that follows an ASCII digit; 0 for none."""
    start = b - 1
    while start > a and b - start <= MAX_UNIT:
        if class_of(rules.classes, s[start - 1]) & DIGIT:
            return b - start if slot_of(rules.units, part(prefix, rules.powers, start, b)) >= 0 else 0
        start -= 1
    return 0


@kernel
def dot_is_suffix(classes, s, a, b):  # type: ignore[no-untyped-def]
    """Whether the single full stop at the end of s[a:b] is split off."""
    if b - a < 2:
        return False
    before = class_of(classes, s[b - 2])
    if before & BEFORE_DOT:
        return True
    if b - a < 3:
        return False
    if before & UPPER and class_of(classes, s[b - 3]) & UPPER:
        return True
    return s[b - 3] == 0xB0 and (s[b - 2] == 70 or s[b - 2] == 67 or s[b - 2] == 75)


@kernel
def suffix_length(rules, s, prefix, a, b):  # type: ignore[no-untyped-def]
    """Characters to split off the end of s[a:b]: the longest rule that matches, 0 for none."""
    if b <= a:
        return 0
    last = s[b - 1]
    mask = class_of(rules.classes, last)
    if last == 46:
        start = b - 1
        while start > a and s[start - 1] == 46:
            start -= 1
        if b - start > 1:
            return b - start
        return 1 if dot_is_suffix(rules.classes, s, a, b) else 0
    if last == 0x2026:
        return 2 if b - a > 1 and s[b - 2] == 0x2026 else 1
    if mask & SUFFIX:
        return 1
    if b - a < 2:
        return 0
    before = s[b - 2]
    if (last == 115 or last == 83) and (before == 39 or before == 0x2019):  # 's
        return 2
    digit_before = class_of(rules.classes, before) & DIGIT
    if digit_before and (last == 43 or mask & CURRENCY):
        return 1
    if last == 36 and b - a > 2:
        if (before == 67 or before == 65) and class_of(rules.classes, s[b - 3]) & DIGIT:
            return 2
        if b - a > 3 and before == 83 and s[b - 3] == 85 and class_of(rules.classes, s[b - 4]) & DIGIT:
            return 3
    if mask & UNIT_END:
        return unit_length(rules, s, prefix, a, b)
    return 0


@kernel
def hyphen_length(classes, s, k, b):  # type: ignore[no-untyped-def]
    """Length of the hyphen or dash at s[k] that a letter follows; 0 for none. A letter or digit before it is given."""
    sign = s[k]
    longest = 1
    if sign == 45:
        longest = 3
    elif sign == 0x2014:
        longest = 2
    elif sign != 0x2013 and sign != 126:
        return 0
    for length in range(1, longest + 1):
        end = k + length
        if end >= b:
            return 0
        if class_of(classes, s[end]) & LETTER:
            return length
        if s[end] != sign:
            return 0
    return 0


@kernel
def infix_length(classes, s, a, k, b):  # type: ignore[no-untyped-def]
    """Length of the infix that starts at s[k] inside s[a:b]; 0 for none."""
    mask = class_of(classes, s[k])
    if not mask & INFIX:
        return 0
    sign = s[k]
    if sign == 46 and k + 1 < b and s[k + 1] == 46:
        end = k + 2
        while end < b and s[end] == 46:
            end += 1
        return end - k
    if sign == 0x2026 or mask & ICON:
        return 1
    if k == a or k + 1 >= b:
        return 0
    before, after = class_of(classes, s[k - 1]), class_of(classes, s[k + 1])
    if (sign == 43 or sign == 45 or sign == 42 or sign == 94) and before & DIGIT and (after & DIGIT or s[k + 1] == 45):
        return 1
    if sign == 46:
        return 1 if before & (LOWER | QUOTE) and after & (UPPER | QUOTE) else 0
    if sign == 44:
        return 1 if before & LETTER and after & LETTER else 0
    if not before & (LETTER | DIGIT):
        return 0
    if (58 <= sign <= 62 and sign != 59) or sign == 47:
        return 1 if after & LETTER else 0
    return hyphen_length(classes, s, k, b)


@kernel
def octet(s, k, b, place):  # type: ignore[no-untyped-def]
    """End of the IPv4 number at s[k], -1 if it is none; place 0 is the first, 3 the last."""
    end = k
    value = np.int64(0)
    while end < b and end - k < 4 and 48 <= s[end] <= 57:
        value = value * 10 + (np.int64(s[end]) - 48)
        end += 1
    digits = end - k
    if digits == 0 or digits > 3 or (digits == 3 and s[k] == 48):
        return -1
    if place == 0:
        return end if s[k] != 48 and value <= 223 and value != 10 and value != 127 else -1
    if place == 3:
        return end if s[k] != 48 and value <= 254 else -1
    return end if value <= 255 else -1


@kernel
def address_end(s, a, b):  # type: ignore[no-untyped-def]
    """End of the public IPv4 address at the start of s[a:b], -1 if there is none."""
    k = a
    for place in range(4):
        end = octet(s, k, b, place)
        if end < 0:
            return -1
        k = end
        if place < 3:
            if k >= b or s[k] != 46:
                return -1
            k += 1
    private = (s[a] == 49 and s[a + 1] == 54 and s[a + 2] == 57 and s[a + 3] == 46 and s[a + 4] == 50 and s[a + 5] == 53
               and s[a + 6] == 52 and s[a + 7] == 46)  # fmt: skip
    private |= (s[a] == 49 and s[a + 1] == 57 and s[a + 2] == 50 and s[a + 3] == 46 and s[a + 4] == 49 and s[a + 5] == 54
                and s[a + 6] == 56 and s[a + 7] == 46)  # fmt: skip
    if s[a] == 49 and s[a + 1] == 55 and s[a + 2] == 50 and s[a + 3] == 46 and s[a + 6] == 46:
        second = (np.int64(s[a + 4]) - 48) * 10 + np.int64(s[a + 5]) - 48
        private |= 16 <= second <= 31
    return -1 if private else k


@kernel
def host_end(classes, s, a, b):  # type: ignore[no-untyped-def]
    """End of the host name at the start of s[a:b], -1 if there is none: labels, a full stop, a top level of small letters."""
    end = a
    label = a
    labels = 0
    while end < b:
        mask = class_of(classes, s[end])
        if s[end] == 46:
            length = end - label
            if length == 0 or length > 64:
                return -1
            if not (class_of(classes, s[label]) & HOST and class_of(classes, s[end - 1]) & HOST):
                return -1
            labels += 1
            label = end + 1
        elif not (mask & (HOST | LOWER) or s[end] == 95 or s[end] == 45):
            break
        end += 1
    if labels == 0 or end - label < 2 or end - label > 63:
        return -1
    for k in range(label, end):
        if not class_of(classes, s[k]) & LOWER:
            return -1
    return end


@kernel
def ends_url(s, k, b):  # type: ignore[no-untyped-def]
    """Whether s[k:b] is an optional port and an optional path."""
    if k < b and s[k] == 58:
        end = k + 1
        while end < b and 48 <= s[end] <= 57:
            end += 1
        if not 2 <= end - k - 1 <= 5:
            return False
        k = end
    return k == b or s[k] == 47 or s[k] == 63 or s[k] == 35


@kernel
def hosts_at(classes, s, k, b):  # type: ignore[no-untyped-def]
    """Whether s[k:b] is an address or host name with an optional port and path."""
    end = address_end(s, k, b)
    if end >= 0 and ends_url(s, end, b):
        return True
    end = host_end(classes, s, k, b)
    return end >= 0 and ends_url(s, end, b)


@kernel
def is_url(classes, s, a, b):  # type: ignore[no-untyped-def]
    """Whether s[a:b] is a URL, a host name with a dot, an e-mail address, or a public IPv4 address."""
    dot = False
    for k in range(a + 1, b - 1):
        if s[k] == 46:
            dot = True
            break
    if not dot:
        return False
    if hosts_at(classes, s, a, b):
        return True
    k = a
    while k < b and (class_of(classes, s[k]) & WORD or s[k] == 43 or s[k] == 45 or s[k] == 46):
        k += 1
    if k - a >= 2 and k + 3 < b and s[k] == 58 and s[k + 1] == 47 and s[k + 2] == 47 and hosts_at(classes, s, k + 3, b):
        return True
    for k in range(a + 1, b - 1):  # noqa: SIM110
        if s[k] == 64 and hosts_at(classes, s, k + 1, b):
            return True
    return False


@kernel
def put_cuts(cuts, a, ends, n):  # type: ignore[no-untyped-def]
    """Appends the inner word starts of an exception at s[a] to `ends`; the caller appends its end."""
    cuts >>= 1
    k = a + 1
    while cuts:
        if cuts & 1:
            ends[n] = k
            n += 1
        cuts >>= 1
        k += 1
    return n


@kernel
def put_exception(rules, slot, a, b, ends, n):  # type: ignore[no-untyped-def]
    """Appends the ends of the words of the exception s[a:b]."""
    n = put_cuts(np.int64(rules.cuts[slot]), a, ends, n)
    ends[n] = b
    return n + 1


@kernel
def put_middle(classes, s, a, b, ends, n):  # type: ignore[no-untyped-def]
    """Appends the ends of the words of s[a:b], from which no affix splits any more and which is no exception."""
    k = a
    while k < b and not class_of(classes, s[k]) & INFIX:
        k += 1
    start = a
    if k < b and not is_url(classes, s, a, b):
        while k < b:
            length = infix_length(classes, s, a, k, b)
            if length == 0:
                k += 1
                continue
            if k > a:
                if k > start:
                    ends[n] = k
                    n += 1
                ends[n] = k + length
                n += 1
                start = k + length
            k += length
    if start < b:
        ends[n] = b
        n += 1
    return n


@kernel
def split_chunk(rules, s, prefix, a, b, ends, n, suffixes, use_exceptions):  # type: ignore[no-untyped-def]
    """Appends the ends of the words of the chunk s[a:b] to `ends`; returns the new number of words."""
    stacked = 0
    slot = -1
    while a < b:
        if use_exceptions:
            slot = exception_at(rules, s, prefix, a, b)
            if slot >= 0:
                break
        lead = prefix_length(rules, s, a, b)
        if lead and use_exceptions:
            slot = exception_at(rules, s, prefix, a + lead, b)
            if slot >= 0:
                a += lead
                ends[n] = a
                n += 1
                break
        tail = suffix_length(rules, s, prefix, a + lead, b)
        if tail and use_exceptions:
            slot = exception_at(rules, s, prefix, a, b - tail)
            if slot >= 0:
                suffixes[stacked] = b
                stacked += 1
                b -= tail
                break
        if lead:
            a += lead
            ends[n] = a
            n += 1
        if tail:
            suffixes[stacked] = b
            stacked += 1
            b -= tail
        if not (lead or tail):
            break
    if slot >= 0:
        n = put_exception(rules, slot, a, b, ends, n)
    elif a < b:
        n = put_middle(rules.classes, s, a, b, ends, n)
    while stacked > 0:
        stacked -= 1
        ends[n] = suffixes[stacked]
        n += 1
    return n


@kernel
def may_join(rules, prefix, start, ends, first, n):  # type: ignore[no-untyped-def]
    """Whether any word of a chunk but its last begins a joinable exception."""
    for word in range(first, n - 1):
        short = ends[word] - start <= MAX_EXCEPTION
        if short and slot_of(rules.join_starts, part(prefix, rules.powers, start, ends[word])) >= 0:
            return True
        start = ends[word]
    return False


@kernel
def join_words(rules, s, prefix, start, ends, first, n, taken):  # type: ignore[no-untyped-def]
    """Replaces neighbouring words of a chunk that spell an exception by its pieces; longer runs win, then earlier ones.

    `taken` is scratch with an entry for each word: 0 free, 1 part of a run, 2 and more the first word of a run that is replaced (its
    slot plus 2). Words first to n - 1 are the chunk's; the chunk starts at `start`. Returns the new number of words.
    """
    for word in range(first, n):
        taken[word] = 0
    for size in range(MAX_EXCEPTION, 1, -1):
        for word in range(first, n - size + 1):
            begin = start if word == first else ends[word - 1]
            end = ends[word + size - 1]
            slot = exception_at(rules, s, prefix, begin, end)
            if slot < 0 or rules.joins[slot] == 0:
                continue
            shape = np.uint32(0)
            for k in range(word, word + size):
                shape |= np.uint32(1) << np.uint32((start if k == first else ends[k - 1]) - begin)
            if shape != rules.joins[slot]:
                continue
            free = taken[word] == 0 and taken[word + size - 1] == 0
            for k in range(word, word + size):
                taken[k] = max(taken[k], 1)
            if free:
                taken[word] = slot + 2
    return rebuild(rules, start, ends, first, n, taken)


@kernel
def rebuild(rules, start, ends, first, n, taken):  # type: ignore[no-untyped-def]
    """Writes the chunk's words anew after `join_words` chose the runs; none has more pieces than it has words."""
    out = first
    word = first
    while word < n:
        if taken[word] < 2:
            ends[out] = ends[word]
            out += 1
            word += 1
            continue
        slot = taken[word] - 2
        begin = start if word == first else ends[word - 1]
        size = np.int64(0)
        shape = rules.joins[slot]
        while shape:
            size += np.int64(shape & np.uint32(1))
            shape >>= np.uint32(1)
        end = ends[word + size - 1]
        out = put_cuts(np.int64(rules.cuts[slot]), begin, ends, out)
        ends[out] = end
        out += 1
        word += size
    return out


@kernel
def tokenize(rules, c, s, prefix, ends, scratch):  # type: ignore[no-untyped-def]
    """Cuts a text into words.

    Args:
        rules: The tables of `english_rules`.
        c: Code points of the text.
        s: Receives the stream, the text without white space; as long as `c`.
        prefix: Receives the hash of each prefix of the stream; one longer than `c`.
        ends: Receives the end of each word in the stream; as long as `c`.
        scratch: int64, as long as `c`.

    Returns:
        The number of words and the length of the stream.
    """
    n = 0
    m = 0
    i = 0
    size = len(c)
    value = np.uint64(0)
    prefix[0] = value
    while i < size:
        seen = np.uint32(0)
        start = m
        while i < size:
            code = c[i]
            mask = class_of(rules.classes, code)
            i += 1
            if mask & SPACE:
                break
            seen |= mask
            value = value * BASE + (np.uint64(code) + ONE)
            s[m] = code
            m += 1
            prefix[m] = value
        if m == start:
            continue
        if seen & HOT or (seen & DIGIT and seen & UNIT_END):
            first = n
            n = split_chunk(rules, s, prefix, start, m, ends, n, scratch, True)
            if n - first > 1 and may_join(rules, prefix, start, ends, first, n):
                n = join_words(rules, s, prefix, start, ends, first, n, scratch)
        else:
            slot = exception_at(rules, s, prefix, start, m)
            if slot >= 0:
                n = put_exception(rules, slot, start, m, ends, n)
            else:
                ends[n] = m
                n += 1
    return n, m


@kernel
def split_bare(rules, c, s, prefix, ends, scratch):  # type: ignore[no-untyped-def]
    """Like `tokenize` for a text that is one chunk, without exceptions."""
    value = np.uint64(0)
    prefix[0] = value
    for i in range(len(c)):
        value = value * BASE + (np.uint64(c[i]) + ONE)
        s[i] = c[i]
        prefix[i + 1] = value
    return split_chunk(rules, s, prefix, 0, len(c), ends, 0, scratch, False), len(c)


def _entry(digest: int) -> Callable[..., tuple[int, int]]:
    """The compiled entry point for single texts; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def cut(rules, c, s, prefix, ends, scratch, use_exceptions):  # type: ignore[no-untyped-def]
        if use_exceptions and digest >= 0:
            return tokenize(rules, c, s, prefix, ends, scratch)
        return split_bare(rules, c, s, prefix, ends, scratch)

    return cut  # type: ignore[no-any-return]


_cut = _entry(sources_digest())


def _insert(keys: npt.NDArray[np.uint64], text: str) -> int:
    """Puts a string into a table and returns its slot."""
    key = hash_text(text)
    slot = (key * 0x9E3779B97F4A7C15 % 2**64) >> int(SLOTS_SHIFT)
    while keys[slot] not in (0, key):
        slot = (slot + 1) % len(keys)
    keys[slot] = key
    return slot


def _starts(pieces: tuple[str, ...]) -> int:
    """The bit mask of the places where pieces start."""
    mask, place = 0, 0
    for piece in pieces:
        mask |= 1 << place
        place += len(piece)
    return mask


@lru_cache(maxsize=1)
def english_rules() -> Rules:
    """The tables of the English tokenizer; built once a process."""
    slots = 1 << (64 - int(SLOTS_SHIFT))
    rules = Rules(
        classes=code_points.class_table(),
        powers=power_table(),
        lengths=np.zeros(256, np.uint32),
        keys=np.zeros(slots, np.uint64),
        cuts=np.zeros(slots, np.uint32),
        joins=np.zeros(slots, np.uint32),
        join_starts=np.zeros(slots, np.uint64),
        units=np.zeros(slots, np.uint64),
    )
    for unit in code_points.UNITS:
        _insert(rules.units, unit)
    table = exceptions()
    for text, pieces in table.items():
        rules.cuts[_insert(rules.keys, text)] = _starts(pieces)
        rules.lengths[min(ord(text[0]), 255)] |= np.uint32(1 << len(text))
    for text in table:
        words = words_of(text, use_exceptions=False, rules=rules)
        if len(words) > 1:
            rules.joins[_insert(rules.keys, text)] = _starts(words)
            _insert(rules.join_starts, words[0])
    return rules


def words_of(text: str, *, use_exceptions: bool = True, rules: Rules | None = None) -> tuple[str, ...]:
    """The words of a text as strings; for inspection and tests, not for bulk."""
    rules = rules or english_rules()
    codes = np.array([ord(char) for char in text], np.uint32)
    stream = np.empty_like(codes)
    prefix = np.empty(len(codes) + 1, np.uint64)
    ends, scratch = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
    count, length = _cut(rules, codes, stream, prefix, ends, scratch, use_exceptions)
    bounds = [0, *ends[:count].tolist()]
    whole = "".join(map(chr, stream[:length].tolist()))
    return tuple(whole[a:b] for a, b in pairwise(bounds))
