"""English words as spaCy's blank English tokenizer cuts them, over arrays of code points.

From a chunk (a run without white space), prefixes and suffixes are split off one at a time until an exception is left or nothing more
splits; the middle stays whole if it is an exception, a host name, URL or e-mail address, and is otherwise cut at its infixes. Last,
neighbouring words that together spell an exception are joined or cut as it says. White space makes no words.

Words are returned as offsets into the stream: the text's code points without its white space. The functions take `s` (part of the
stream, uint8 or uint32), `prefix` (the hash of each prefix of that part), half-open spans of it, and `rules` (`Rules`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from numba import njit

from curate.signals import code_points
from curate.signals.affixes import dot_is_suffix, infix_length, prefix_length, suffix_length
from curate.signals.chunks import find_chunks
from curate.signals.code_points import ALPHA, CONTENT, DIGIT, HOT, INFIX, PREFIX, SUFFIX, UNIT_END, class_of, point_of
from curate.signals.english import FILTER_SHIFT, MAX_EXCEPTION, SLOTS_SHIFT, Rules, exception_at, exception_slot, in_filter
from curate.signals.exceptions import exceptions
from curate.signals.hashing import BASE, ONE, SPREAD, hash_text, part, power, power_table
from curate.signals.hosts import is_url
from curate.signals.kernels import at, inlined, kernel, small, sources_digest

BASE_INVERSE = np.uint64(pow(int(BASE), -1, 1 << 64))
IS_CONTENT = 1
IS_ALPHA = 2


@small
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


@small
def put_exception(rules, slot, a, b, ends, n):  # type: ignore[no-untyped-def]
    """Appends the ends of the words of the exception s[a:b]."""
    n = put_cuts(np.int64(rules.cuts[slot]), a, ends, n)
    ends[n] = b
    return n + 1


@small
def put_middle(rules, s, a, b, ends, n):  # type: ignore[no-untyped-def]
    """Appends the ends of the words of s[a:b], from which no affix splits any more and which is no exception."""
    k = a
    while k < b and not class_of(rules.classes, at(s, k)) & INFIX:
        k += 1
    start = a
    if k < b and not is_url(rules.classes, s, a, b):
        while k < b:
            length = infix_length(rules, s, a, k, b)
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


@small
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
        n = put_middle(rules, s, a, b, ends, n)
    while stacked > 0:
        stacked -= 1
        ends[n] = suffixes[stacked]
        n += 1
    return n


@small
def can_join(rules, s, prefix, ends, hashes, n):  # type: ignore[no-untyped-def]
    """Whether `join_words` may change any of a chunk's words: far fewer run on to an exception than begin as one."""
    for word in range(n - 1):
        if in_filter(rules.join_starts, hashes[word]):
            begin = start_of(ends, word)
            for last in range(word + 1, min(word + MAX_EXCEPTION, n)):
                slot = exception_at(rules, s, prefix, begin, int(ends[last]))
                if slot >= 0 and rules.joins[slot] != 0:
                    return True
    return False


@kernel
def join_words(rules, s, prefix, ends, n, taken):  # type: ignore[no-untyped-def]
    """Replaces neighbouring words of a chunk that spell an exception by its pieces; longer runs win, then earlier ones.

    `taken` is scratch, twice as long as there are words; an entry is 0: free, 1: part of a run, 2 and more: the first word of a run
    that is replaced (its slot plus 2). Returns the new number of words.
    """
    taken[:n] = 0
    for size in range(MAX_EXCEPTION, 1, -1):
        for word in range(n - size + 1):
            begin = start_of(ends, word)
            slot = exception_at(rules, s, prefix, begin, int(ends[word + size - 1]))
            if slot < 0 or rules.joins[slot] == 0:
                continue
            shape = np.uint32(0)
            for k in range(word, word + size):
                shape |= np.uint32(1) << np.uint32(start_of(ends, k) - begin)
            if shape != rules.joins[slot]:
                continue
            free = taken[word] == 0 and taken[word + size - 1] == 0
            for k in range(word, word + size):
                taken[k] = max(taken[k], 1)
            if free:
                taken[word] = slot + 2
    return rebuild(rules, ends, n, taken)


@small
def start_of(ends, word):  # type: ignore[no-untyped-def]
    """Where a word starts: where the word before it ends."""
    return int(ends[word - 1]) if word > 0 else np.int64(0)


@kernel
def rebuild(rules, ends, n, taken):  # type: ignore[no-untyped-def]
    """Writes the chunk's words anew after `join_words` chose the runs; one may have more pieces than words, as a degree sign before F."""
    old = taken[n : 2 * n]
    for k in range(n):
        old[k] = ends[k]
    out = word = 0
    while word < n:
        size = 1
        if taken[word] >= 2:
            slot = taken[word] - 2
            size = 0
            shape = rules.joins[slot]
            while shape:
                size += int(np.int64(shape & np.uint32(1)))
                shape >>= np.uint32(1)
            out = put_cuts(np.int64(rules.cuts[slot]), start_of(old, word), ends, out)
        word += size
        ends[out] = old[word - 1]
        out += 1
    return out


@inlined
def needs_rules(mask):  # type: ignore[no-untyped-def]
    """Whether any rule may look at characters of these classes."""
    return mask & HOT or (mask & DIGIT and mask & UNIT_END)


@small
def kind_of(mask):  # type: ignore[no-untyped-def]
    """What a word of these classes counts as: IS_CONTENT, IS_ALPHA, both or neither."""
    return np.uint8((mask & CONTENT != 0) * IS_CONTENT + (mask & ALPHA != 0) * IS_ALPHA)


@small
def describe(rules, s, prefix, ends, n, hashes, kinds):  # type: ignore[no-untyped-def]
    """Writes hash and kind of the words of a chunk; returns whether any but the last begins a joinable exception."""
    start = 0
    joins = False
    for word in range(n):
        end = int(ends[word])
        key = part(prefix, rules.powers, start, end)
        mask = np.uint32(0)
        for k in range(start, end):
            mask |= class_of(rules.classes, at(s, k))
        hashes[word] = key
        kinds[word] = kind_of(mask)
        joins |= word < n - 1 and in_filter(rules.join_starts, key) != 0
        start = end
    return joins


@small
def write_prefixes(points, s, prefix):  # type: ignore[no-untyped-def]
    """Writes the hash of each prefix of a part of the stream."""
    value = np.uint64(0)
    prefix[0] = value
    for k in range(len(s)):
        value = value * BASE + (np.uint64(point_of(points, s, k)) + ONE)
        prefix[k + 1] = value


@small
def cut_chunk(rules, s, base, prefix, ends, hashes, kinds, scratch):  # type: ignore[no-untyped-def]
    """Cuts the chunk `s`, to which any rule may apply; `base` is its place in the stream. Returns the number of its words."""
    write_prefixes(rules.points, s, prefix)
    n = split_chunk(rules, s, prefix, 0, len(s), ends, 0, scratch, True)
    if describe(rules, s, prefix, ends, n, hashes, kinds) and can_join(rules, s, prefix, ends, hashes, n):
        n = join_words(rules, s, prefix, ends, n, scratch)
        describe(rules, s, prefix, ends, n, hashes, kinds)
    for word in range(n):
        ends[word] += base
    return n


@small
def put_word(ends, hashes, kinds, n, end, key, mask):  # type: ignore[no-untyped-def]
    """Writes one word."""
    n = np.uint64(n)
    ends[n] = end
    hashes[n] = key
    kinds[n] = kind_of(mask)


@small
def cut_simple(rules, s, start, stop, key, first, inner, last, ends, hashes, kinds, n):  # type: ignore[no-untyped-def]
    """Appends the words of s[start:stop] if no rule looks further than its first and its last character; else returns 0.

    Such are most chunks that any rule looks at: a word in brackets or quotes, or before a comma or full stop. Then at most one prefix
    and one suffix split off, the rest is one word, and no words spell an exception together that was not found as one.
    """
    words = 0
    a, b = start, stop
    dot = at(s, b - 1) == 46
    if first & PREFIX:
        a += 1
    if dot or last & SUFFIX:
        b -= 1
    core = inner
    if a == start:
        core |= first
    if b == stop:
        core |= last
    if a < b and not needs_rules(core):
        tailless = (key - (np.uint64(point_of(rules.points, s, stop - 1)) + ONE)) * BASE_INVERSE if b < stop else key
        lead = np.uint64(point_of(rules.points, s, start)) + ONE
        headless = key - lead * power(rules.powers, stop - start - 1) if a > start else key
        both = tailless - lead * power(rules.powers, b - start - 1) if a > start else tailless
        if not (
            exception_slot(rules, key) >= 0
            or (a > start and exception_slot(rules, headless) >= 0)
            or (b < stop and exception_slot(rules, tailless) >= 0)
            or exception_slot(rules, both) >= 0
        ):
            if dot and not dot_is_suffix(rules, s, a, stop):
                b, both, core = stop, headless, core | last
            if a > start:
                put_word(ends, hashes, kinds, n, a, lead, first)
                words = 1
            put_word(ends, hashes, kinds, n + words, b, both, core)
            words += 1
            if b < stop:
                put_word(ends, hashes, kinds, n + words, stop, np.uint64(point_of(rules.points, s, stop - 1)) + ONE, last)
                words += 1
    return words


@kernel
def tokenize(rules, s, chunks, starts, stops, chunk_hashes, inners, prefix, ends, hashes, kinds, scratch):  # type: ignore[no-untyped-def]
    """Cuts the chunks of a text into words.

    Args:
        rules: The tables of `english_rules`.
        s: The stream.
        chunks: The number of chunks; what `find_chunks` wrote of them follows.
        starts: Where each chunk starts in the text.
        stops: Where each ends.
        chunk_hashes: The hash of each.
        inners: The classes inside each.
        prefix: Scratch, one longer than the longest chunk.
        ends: Receives the end of each word in the stream; as long as `s`.
        hashes: Receives the hash of each word.
        kinds: Receives the kind of each word.
        scratch: int64, twice as long as the longest chunk.

    Returns:
        The number of words.
    """
    n = stop = 0
    for chunk in range(chunks):
        start = stop
        stop = start + int(stops[chunk]) - starts[chunk]
        key = chunk_hashes[chunk]
        first, inner, last = class_of(rules.classes, at(s, start)), inners[chunk], class_of(rules.classes, at(s, stop - 1))
        if not needs_rules(first | inner | last):
            if exception_slot(rules, key) < 0:
                put_word(ends, hashes, kinds, n, stop, key, first | inner | last)
                n += 1
                continue
        elif stop - start == 1:
            put_word(ends, hashes, kinds, n, stop, key, first)
            n += 1
            continue
        else:
            words = cut_simple(rules, s, start, stop, key, first, inner, last, ends, hashes, kinds, n)
            if words > 0:
                n += words
                continue
        n += cut_chunk(rules, s[start:stop], start, prefix, ends[n:], hashes[n:], kinds[n:], scratch)
    return n


@njit(nogil=True)
def cut_text(rules, c, s, ends):  # type: ignore[no-untyped-def]
    """Like `tokenize` for one short text, with scratch of its own: writes its stream and the ends of its words; returns their number."""
    size = len(c)
    starts, stops = np.empty(size + 1, np.int32), np.empty(size + 1, np.int32)
    keys, inners = np.empty(size + 1, np.uint64), np.empty(size + 1, np.uint32)
    prefix, scratch = np.empty(size + 1, np.uint64), np.empty(2 * size, np.int64)
    chunks, _ = find_chunks(rules.classes, rules.points, c, s, starts, stops, keys, inners)
    hashes, kinds = np.empty(size, np.uint64), np.empty(size, np.uint8)
    return tokenize(rules, s, chunks, starts, stops, keys, inners, prefix, ends, hashes, kinds, scratch)


def _entry(digest: int) -> Callable[..., int]:
    """The compiled entry point for single texts; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def cut(rules, c, s, ends, use_exceptions):  # type: ignore[no-untyped-def]
        if use_exceptions and digest >= 0:
            return cut_text(rules, c, s, ends)
        s[:] = c
        prefix = np.empty(len(c) + 1, np.uint64)
        write_prefixes(rules.points, s, prefix)
        return split_chunk(rules, s, prefix, 0, len(c), ends, 0, np.empty(len(c), np.int64), False)

    return cut  # type: ignore[no-any-return]


_cut = _entry(sources_digest())


def _insert(keys: npt.NDArray[np.uint64], text: str) -> int:
    """Puts a string into a table and returns its slot."""
    key = hash_text(text)
    slot = (key * int(SPREAD) % 2**64) >> int(SLOTS_SHIFT)
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


def _mark(bits: npt.NDArray[np.uint64], text: str) -> None:
    """Adds a string to a filter."""
    place = (hash_text(text) * int(SPREAD) % 2**64) >> int(FILTER_SHIFT)
    bits[place >> 6] |= np.uint64(1 << (place & 63))


@lru_cache(maxsize=1)
def english_rules() -> Rules:
    """The tables of the English tokenizer; built once a process."""
    slots, filter_words = 1 << (64 - int(SLOTS_SHIFT)), 1 << (64 - int(FILTER_SHIFT) - 6)
    rules = Rules(
        classes=code_points.class_table(),
        points=np.arange(256, dtype=np.uint32),
        powers=power_table(),
        lengths=np.zeros(256, np.uint32),
        keys=np.zeros(slots, np.uint64),
        cuts=np.zeros(slots, np.uint32),
        joins=np.zeros(slots, np.uint32),
        known=np.zeros(filter_words, np.uint64),
        join_starts=np.zeros(filter_words, np.uint64),
        units=np.zeros(slots, np.uint64),
    )
    for unit in code_points.UNITS:
        _insert(rules.units, unit)
    table = exceptions()
    for text, pieces in table.items():
        rules.cuts[_insert(rules.keys, text)] = _starts(pieces)
        _mark(rules.known, text)
        rules.lengths[min(ord(text[0]), 255)] |= np.uint32(1 << len(text))
    for text in table:
        words = words_of(text, use_exceptions=False, rules=rules)
        if len(words) > 1:
            rules.joins[_insert(rules.keys, text)] = _starts(words)
            _mark(rules.join_starts, words[0])
    return rules


def words_of(text: str, *, use_exceptions: bool = True, rules: Rules | None = None) -> tuple[str, ...]:
    """The words of a text as strings; for inspection and tests, not for bulk."""
    rules = rules or english_rules()
    codes = np.array([ord(char) for char in text], np.uint32)
    stream, ends = np.empty_like(codes), np.empty(len(codes), np.int32)
    bounds = [0, *ends[: _cut(rules, codes, stream, ends, use_exceptions)].tolist()]
    whole = "".join(map(chr, stream[: bounds[-1]].tolist()))
    return tuple(whole[a:b] for a, b in pairwise(bounds))
