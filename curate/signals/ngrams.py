"""Repeated word n-grams of a text: the most frequent 2-, 3- and 4-grams and the characters in repeated 5- to 10-grams.

Two cascades leave almost nothing to hash, without changing a count. For the most frequent n-grams a key is the sequence of words: an
n-gram can only repeat where both (n-1)-grams inside it do. For repeated n-grams the key is the words run together, as the rule asks, so
equal keys may hide other word borders: there an n-gram of at least 8, 16 or 32 characters can only repeat where the stream's next 8, 16
or 32 characters do, seen from the start of another word.
"""

from __future__ import annotations

import numpy as np

from curate.signals.hashing import ONE, SPREAD, home, part, power, shift_for
from curate.signals.kernels import inlined, kernel
from curate.signals.lines import seen_before
from schemas.signals import SIGNALS

TOP_2_GRAM_CHARS = SIGNALS.get_field_index("top_2_gram_chars")
DUP_5_GRAM_CHARS = SIGNALS.get_field_index("dup_5_gram_chars")
FIRST_LEVEL = 8
LAST_LEVEL = 32
PAIR = np.uint64(0xD1342543DE82EF95)


@inlined
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


@inlined
def cleared(table, shift):  # type: ignore[no-untyped-def]
    """The part of a table that 2 ** (64 - shift) slots take, emptied."""
    view = table[: np.int64(1) << (np.uint64(64) - shift)]
    view[:] = 0
    return view


@inlined
def filter_slot(key, shift):  # type: ignore[no-untyped-def]
    """The place of a key in a filter."""
    return np.int64((key * SPREAD) >> shift)


@kernel
def word_hashes(ends, n, prefix, powers, words):  # type: ignore[no-untyped-def]
    """Writes the hash of each word."""
    start = 0
    for word in range(n):
        # The length sets a word apart from its pieces: a separator that no word can hold.
        words[word] = part(prefix, powers, start, ends[word]) * PAIR + np.uint64(ends[word] - start)
        start = ends[word]


@kernel
def top_ngrams(ends, n, words, keys, counts, grams, slots, sieve, out):  # type: ignore[no-untyped-def]
    """Adds the character counts of the most frequent 2-, 3- and 4-grams.

    `words` holds the words' hashes. `grams` receives the hash of the n-gram at each word, extended from n to n + 1; `slots` is where
    its count lies, -1 where the n-gram cannot repeat. Both are as long as the number of words; `sieve` as `mark_levels` needs it.
    """
    possible = pair_slots(n, words, grams, slots, sieve)
    for size in range(2, 5):
        total = n - size + 1
        if total <= 0:
            return
        if size > 2:
            for word in range(total):
                if not (repeats(slots[word], counts) and repeats(slots[word + 1], counts)):
                    slots[word] = -1
        shift = shift_for(possible + 1)
        table = cleared(keys, shift)
        for word in range(total):
            if slots[word] < 0:
                continue
            if size > 2:
                grams[word] = joined(grams[word], words[word + size - 1])
            slots[word] = count_key(table, counts, shift, grams[word])
        best, best_word, possible = 1, 0, 0
        for word in range(total):
            slot = slots[word]
            if slot >= 0 and counts[slot] > 1:
                possible += 1
                if counts[slot] > best:
                    best, best_word = counts[slot], word
        begin = ends[best_word - 1] if best_word > 0 else 0
        out[TOP_2_GRAM_CHARS + size - 2] = (ends[best_word + size - 1] - begin + size - 1) * best


@inlined
def joined(gram, word):  # type: ignore[no-untyped-def]
    """The hash of an n-gram with one more word."""
    return (gram ^ (gram >> np.uint64(29))) * SPREAD + word


@kernel
def pair_slots(n, words, grams, slots, sieve):  # type: ignore[no-untyped-def]
    """Writes the hash of the 2-gram at each word, and slot 0 where it may repeat, -1 where it does not; returns how many may."""
    shift = shift_for(4 * n)
    places = cleared(sieve, shift)
    for word in range(n - 1):
        key = joined(words[word], words[word + 1])
        grams[word] = key
        place = filter_slot(key, shift)
        places[place] = min(places[place] + 1, 2)
    possible = 0
    for word in range(n - 1):
        may = places[filter_slot(grams[word], shift)] > 1
        slots[word] = 0 if may else -1
        possible += int(may)
    return possible


@inlined
def repeats(slot, counts):  # type: ignore[no-untyped-def]
    """Whether the n-gram counted in a slot was met more than once."""
    return slot >= 0 and counts[slot] > 1


@kernel
def mark_levels(ends, n, prefix, powers, grams, sieve, levels):  # type: ignore[no-untyped-def]
    """Sets levels[word] to the longest of 0, 8, 16, 32 characters from the word's start that another word's start may share.

    Hashes are only counted by place, so some words are marked in vain and none is missed. `sieve` has at least 8 places a word,
    rounded up to a power of two; `grams` is scratch as long as the number of words.
    """
    stream = ends[n - 1]
    levels[:n] = 0
    required, length = 0, FIRST_LEVEL
    members = n
    while length <= LAST_LEVEL and members > 1:
        shift = shift_for(4 * members)
        places = cleared(sieve, shift)
        step = power(powers, length)
        start = 0
        for word in range(n):
            if levels[word] == required and start + length <= stream:
                key = prefix[start + length] - prefix[start] * step
                grams[word] = key
                place = filter_slot(key, shift)
                places[place] = min(places[place] + 1, 2)
            start = ends[word]
        members = 0
        start = 0
        for word in range(n):
            if levels[word] == required and start + length <= stream and places[filter_slot(grams[word], shift)] > 1:
                levels[word] = length
                members += 1
            start = ends[word]
        required, length = length, 2 * length


@inlined
def level_for(length):  # type: ignore[no-untyped-def]
    """The level a word must have for an n-gram of this length to repeat."""
    if length >= LAST_LEVEL:
        return LAST_LEVEL
    if length >= 2 * FIRST_LEVEL:
        return 2 * FIRST_LEVEL
    return FIRST_LEVEL if length >= FIRST_LEVEL else 0


@kernel
def duplicate_ngrams(ends, n, prefix, powers, keys, grams, slots, sieve, levels, out):  # type: ignore[no-untyped-def]
    """Adds the characters of repeated 5- to 10-grams; the arrays after `powers` are scratch."""
    if n < 6:
        return
    mark_levels(ends, n, prefix, powers, grams, sieve, levels)
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
