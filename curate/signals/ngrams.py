"""Repeated word n-grams of a text: the most frequent 2-, 3- and 4-grams and the characters in repeated 5- to 10-grams.

Two cascades leave almost nothing to hash, without changing a count. For the most frequent n-grams a key is the sequence of words: an
n-gram can only repeat where both (n-1)-grams inside it do. For repeated n-grams the key is the words run together, as the rule asks, so
equal keys may hide other word borders: there an n-gram of at least 8, 16 or 32 characters can only repeat where the stream's next 8, 16
or 32 characters do, seen from the start of another word.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from curate.signals.hashing import ONE, SPREAD, home, part, shift_for
from curate.signals.lines import seen_before
from schemas.signals import SIGNALS

TOP_2_GRAM_CHARS = SIGNALS.get_field_index("top_2_gram_chars")
DUP_5_GRAM_CHARS = SIGNALS.get_field_index("dup_5_gram_chars")
FIRST_LEVEL = 8
LAST_LEVEL = 32
PAIR = np.uint64(0xD1342543DE82EF95)


@njit(nogil=True, _nrt=False, inline="always")
def count_key(keys, counts, shift, key):  # type: ignore[no-untyped-def]
    """Counts a key; returns its slot."""
    if key == 0:
        key = ONE
    slot = home(key, shift)
    while keys[slot] != 0 and keys[slot] != key:
        slot = (slot + 1) & (len(keys) - 1)
    if keys[slot] == 0:
        keys[slot] = key
        counts[slot] = 0
    counts[slot] += 1
    return slot


@njit(nogil=True, _nrt=False, inline="always")
def cleared(table, shift):  # type: ignore[no-untyped-def]
    """The part of a table that 2 ** (64 - shift) slots take, emptied."""
    view = table[: np.int64(1) << (np.uint64(64) - shift)]
    view[:] = 0
    return view


@njit(nogil=True, _nrt=False)
def top_ngrams(ends, n, prefix, powers, keys, counts, grams, slots, out):  # type: ignore[no-untyped-def]
    """Adds the character counts of the most frequent 2-, 3- and 4-grams.

    `grams` receives the hash of the n-gram at each word and is extended from n to n + 1; `slots` is where its count lies, -1 where the
    n-gram cannot repeat. Both are as long as the number of words.
    """
    start = 0
    for word in range(n):
        # The length sets words apart from their pieces: a separator that no word can hold.
        grams[word] = part(prefix, powers, start, ends[word]) * PAIR + np.uint64(ends[word] - start)
        start = ends[word]
    possible = n
    for size in range(2, 5):
        total = n - size + 1
        if total <= 0:
            return
        for word in range(total):
            if size > 2 and not (repeats(slots[word], counts) and repeats(slots[word + 1], counts)):
                slots[word] = -1
        shift = shift_for(possible + 1)
        table = cleared(keys, shift)
        best, best_word, possible = 1, 0, 0
        # Counts of the last size are read above and overwritten below.
        for word in range(total):
            if size > 2 and slots[word] < 0:
                continue
            tail = part(prefix, powers, ends[word + size - 2], ends[word + size - 1])
            key = (
                (grams[word] ^ (grams[word] >> np.uint64(29))) * SPREAD
                + tail * PAIR
                + np.uint64(ends[word + size - 1] - ends[word + size - 2])
            )
            grams[word] = key
            slots[word] = count_key(table, counts, shift, key)
        for word in range(total):
            slot = slots[word]
            if slot >= 0 and counts[slot] > 1:
                possible += 1
                if counts[slot] > best:
                    best, best_word = counts[slot], word
        begin = ends[best_word - 1] if best_word > 0 else 0
        out[TOP_2_GRAM_CHARS + size - 2] = (ends[best_word + size - 1] - begin + size - 1) * best


@njit(nogil=True, _nrt=False, inline="always")
def repeats(slot, counts):  # type: ignore[no-untyped-def]
    """Whether the n-gram counted in a slot was met more than once."""
    return slot >= 0 and counts[slot] > 1


@njit(nogil=True, _nrt=False)
def mark_levels(ends, n, prefix, powers, keys, counts, slots, levels):  # type: ignore[no-untyped-def]
    """Sets levels[word] to the longest of 0, 8, 16, 32 characters from the word's start that another word's start shares."""
    stream = ends[n - 1]
    levels[:n] = 0
    required, length = 0, FIRST_LEVEL
    members = n
    while length <= LAST_LEVEL and members > 1:
        shift = shift_for(members)
        table = cleared(keys, shift)
        start = 0
        for word in range(n):
            slots[word] = -1
            if levels[word] == required and start + length <= stream:
                slots[word] = count_key(table, counts, shift, part(prefix, powers, start, start + length))
            start = ends[word]
        members = 0
        for word in range(n):
            if slots[word] >= 0 and counts[slots[word]] > 1:
                levels[word] = length
                members += 1
        required, length = length, 2 * length


@njit(nogil=True, _nrt=False, inline="always")
def level_for(length):  # type: ignore[no-untyped-def]
    """The level a word must have for an n-gram of this length to repeat."""
    if length >= LAST_LEVEL:
        return LAST_LEVEL
    if length >= 2 * FIRST_LEVEL:
        return 2 * FIRST_LEVEL
    return FIRST_LEVEL if length >= FIRST_LEVEL else 0


@njit(nogil=True, _nrt=False)
def duplicate_ngrams(ends, n, prefix, powers, keys, counts, slots, levels, out):  # type: ignore[no-untyped-def]
    """Adds the characters of repeated 5- to 10-grams; `slots` and `levels` are scratch as long as the number of words."""
    if n < 6:
        return
    mark_levels(ends, n, prefix, powers, keys, counts, slots, levels)
    members = 0
    for word in range(n - 4):
        start = ends[word - 1] if word > 0 else 0
        if levels[word] >= level_for(ends[word + 4] - start):
            slots[members] = word
            members += 1
    for size in range(5, 11):
        if members < 2:
            return
        shift = shift_for(members)
        table = cleared(keys, shift)
        chars, resume, left = 0, 0, 0
        for member in range(members):
            word = slots[member]
            if word + size > n:
                break
            start = ends[word - 1] if word > 0 else 0
            length = ends[word + size - 1] - start
            if levels[word] < level_for(length):
                continue
            slots[left] = word
            left += 1
            if word < resume:
                continue
            if seen_before(table, shift, part(prefix, powers, start, start + length)):
                chars += length
                resume = word + size
        members = left
        out[DUP_5_GRAM_CHARS + size - 5] = chars
