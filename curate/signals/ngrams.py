"""Repeated word n-grams of a text: the most frequent 2-, 3- and 4-grams and the characters in repeated 5- to 10-grams.

Little is looked up by its full hash, without changing a count. A small table first counts, by place alone, how often the 2-gram at each
word may occur; the most frequent n-gram is then sought among the words whose 2-grams occur often enough, and among more of them only
where that was too few. For repeated n-grams the key is the words run together, as the rule asks, so equal keys may hide other word
borders: an n-gram of at least 8, 16 or 32 characters can only repeat where the stream's next 8, 16 or 32 characters do, seen from the
start of another word.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from curate.signals.hashing import ONE, SPREAD, following, home, load_word, power, shift_for
from curate.signals.kernels import at, inlined, kernel, small
from curate.signals.lines import seen_before
from schemas.signals import SIGNALS

TOP_2_GRAM_CHARS = SIGNALS.get_field_index("top_2_gram_chars")
DUP_5_GRAM_CHARS = SIGNALS.get_field_index("dup_5_gram_chars")
SHORT, MIDDLE, LONG = 8, 16, 32
"""Lengths whose repeats are marked; each is also the mark's bit."""
TINY = 1
"""Mark of words whose 5-grams are shorter than SHORT."""
MOST = (1 << 16) - 1
PAIRS = 1 << 17
"""Most slots in which 2-grams are counted: half of a common second cache. In a long text more share a slot, and what is sought there
occurs more often."""
PAIRS_SHIFT = np.uint64(64 - 17)
END = (1 << 31) - 1
"""A place in the stream that no word ends beyond."""


class GramRoom(NamedTuple):
    """Scratch for the n-grams of a text."""

    places: npt.NDArray[np.uint32]  # lists of words, and slots; these four have an entry for each word
    listed: npt.NDArray[np.uint32]
    marks: npt.NDArray[np.uint8]
    met: npt.NDArray[np.uint16]
    prefix: npt.NDArray[np.uint64]  # one longer
    keys: npt.NDArray[np.uint64]  # a table, and the counts of its keys
    counts: npt.NDArray[np.int32]
    sieve: npt.NDArray[np.uint8]
    pairs: npt.NDArray[np.uint16]


@njit(nogil=True)
def gram_room(size):  # type: ignore[no-untyped-def]
    """Scratch for texts of up to `size` words."""
    slots = np.int64(1) << (np.uint64(64) - shift_for(size + 1))
    places, listed, marks = np.empty(size, np.uint32), np.empty(size, np.uint32), np.empty(size, np.uint8)
    met, prefix, keys = np.empty(size, np.uint16), np.empty(size + 1, np.uint64), np.empty(slots, np.uint64)
    counts, sieve, pairs = np.empty(slots, np.int32), np.empty(4 * slots, np.uint8), np.empty(PAIRS, np.uint16)
    return GramRoom(places, listed, marks, met, prefix, keys, counts, sieve, pairs)


@inlined
def cleared(table, shift):  # type: ignore[no-untyped-def]
    """The part of a table that 2 ** (64 - shift) slots take, emptied."""
    view = table[: np.int64(1) << (np.uint64(64) - shift)]
    view[:] = 0
    return view


@inlined
def joined(gram, word):  # type: ignore[no-untyped-def]
    """The hash of an n-gram with one more word."""
    return (gram ^ (gram >> np.uint64(29))) * SPREAD + word


@small
def count_pairs(n, words, places, pairs, met):  # type: ignore[no-untyped-def]
    """Sets met[word] to how often the 2-gram at each word may occur, at most MOST; returns the largest.

    `places` is scratch of n entries, `pairs` of PAIRS.
    """
    shift = max(shift_for(2 * n), PAIRS_SHIFT)
    counts = cleared(pairs, shift)
    most = np.uint16(0)
    for word in range(n - 1):
        place = np.uint32(home(joined(words[word], words[word + 1]), shift))
        places[word] = place
        count = np.uint16(min(counts[place] + 1, MOST))
        counts[place] = count
        most = max(most, count)
    for word in range(n - 1):
        met[word] = counts[places[word]]
    return int(most)


@small
def list_frequent(n, least, met, listed):  # type: ignore[no-untyped-def]
    """Lists the words whose 2-gram may occur `least` times; returns how many."""
    found = np.uint32(0)
    for word in range(n - 1):
        listed[found] = word
        found = np.uint32(found + np.uint32(met[word] >= least))
    return int(found)


@small
def narrow(size, least, n, met, listed, found, chosen):  # type: ignore[no-untyped-def]
    """Chooses of the words listed those at which all 2-grams of the n-gram of `size` words may occur `least` times; returns how many."""
    while found > 0 and listed[found - 1] + size > n:
        found -= 1
    kept = np.uint32(0)
    for k in range(found):
        word = listed[k]
        enough = met[word] >= least
        if size > 2:
            enough &= at(met, word + 1) >= least
        if size > 3:
            enough &= at(met, word + 2) >= least
        chosen[kept] = word
        kept = np.uint32(kept + np.uint32(enough))
    return int(kept)


@small
def key_at(size, words, word):  # type: ignore[no-untyped-def]
    """The hash of the n-gram of 2, 3 or 4 words at a word; never 0, which marks a free slot."""
    key = joined(words[word], at(words, word + 1))
    if size > 2:
        key = joined(key, at(words, word + 2))
    if size > 3:
        key = joined(key, at(words, word + 3))
    return max(key, ONE)


@small
def slot_for(table, shift, key):  # type: ignore[no-untyped-def]
    """The slot of a key, or the free one where it belongs."""
    slot = home(key, shift)
    while table[slot] != 0 and table[slot] != key:
        slot = following(table, slot)
    return slot


@small
def most_frequent(size, words, chosen, found, keys, numbers):  # type: ignore[no-untyped-def]
    """The largest count of an n-gram of `size` words among those at the chosen words, and the first word of the first such."""
    shift = shift_for(found + 1)
    table, counts = cleared(keys, shift), cleared(numbers, shift)
    best = np.int32(0)
    for k in range(found):
        key = key_at(size, words, chosen[k])
        slot = slot_for(table, shift, key)
        table[slot] = key
        count = np.int32(counts[slot] + 1)
        counts[slot] = count
        best = max(best, count)
    first = 0
    for k in range(found):
        if counts[slot_for(table, shift, key_at(size, words, chosen[k]))] == best:
            first = int(chosen[k])
            break
    return int(best), first


@kernel
def top_ngrams(borders, n, words, room, out):  # type: ignore[no-untyped-def]
    """Adds the character counts of the most frequent 2-, 3- and 4-grams.

    Args:
        borders: Where each word starts in the stream, and where the last ends.
        n: The number of words.
        words: The hash of each word.
        room: A `GramRoom` for n words.
        out: The row of signals to add to.
    """
    if n < 2:
        return
    listed, chosen, met = room.places, room.listed, room.met
    bound = count_pairs(n, words, listed, room.pairs, met)
    # A guess that is too high costs another look, one that is too low many full hashes. After one that was too high, half of it is tried,
    # but no less than was found: the true best occurs at least as often. All looks share a list for the lowest guess that is likely.
    guess = bound - bound // 4
    listed_from = max(bound // 8, 2)
    candidates = list_frequent(n, listed_from, met, listed)
    for size in range(2, min(n, 4) + 1):
        best, first = 1, 0
        least = max(guess, 2)
        while bound > 1:
            if least < listed_from:
                listed_from = least
                candidates = list_frequent(n, least, met, listed)
            found = narrow(size, least, n, met, listed, candidates, chosen)
            best, first = most_frequent(size, words, chosen, found, room.keys, room.counts)
            if best >= least or least == 2:
                break
            least = max(best, least // 2, 2)
        if best < 2:
            best, first = 1, 0
        out[TOP_2_GRAM_CHARS + size - 2] = (borders[first + size] - borders[first] + size - 1) * best
        bound, guess = best, best // (4 if size == 2 else 2)


@small
def window(s, start, length):  # type: ignore[no-untyped-def]
    """A hash of characters among s[start:start + length], for a length of 8, 16 or 32: equal where all are equal."""
    key = load_word(s, start)
    if s.itemsize == 1:
        for begun in range(SHORT, length, SHORT):
            key = joined(key, load_word(s, start + begun))
        return key
    # Four loads of two code points each, spread over the length.
    for part_number in range(1, 4):
        key = joined(key, load_word(s, start + (length - 2) * part_number // 3))
    return key


@small
def mark_repeats(s, borders, chosen, found, length, n, room, marked):  # type: ignore[no-untyped-def]
    """Marks the words from whose start the next `length` characters may repeat from the start of another such word.

    Hashes are only counted by place, so some words are marked in vain and none is missed.

    Args:
        s: The stream.
        borders: Where each word starts in it, and where the last ends.
        chosen: The words to look at, in their order.
        found: How many they are.
        length: SHORT, MIDDLE or LONG.
        n: The number of words.
        room: Scratch; its marks receive the mark `length`.
        marked: Receives the words marked, in their order; may be `chosen`.

    Returns:
        How many words are marked.
    """
    places, marks = room.places, room.marks
    shift = shift_for(4 * n)
    seen = cleared(room.sieve, shift)
    while found > 0 and borders[chosen[found - 1]] + length > len(s):
        found -= 1
    for k in range(found):
        place = np.uint32(home(window(s, borders[chosen[k]], length), shift))
        seen[place] = min(seen[place] + 1, 2)
        places[k] = place
    kept = np.uint32(0)
    for k in range(found):
        word = chosen[k]
        again = np.uint8(seen[places[k]] > 1)
        marks[word] |= np.uint8(length * again)
        marked[kept] = word
        kept = np.uint32(kept + again)
    return int(kept)


@small
def list_members(s, borders, n, room):  # type: ignore[no-untyped-def]
    """Lists in `places` the words at which an n-gram of five words or more may repeat, and in `listed` the last place where it may end.

    Returns how many they are.
    """
    places, listed, marks = room.places, room.listed, room.marks
    if len(s) < SHORT:
        for word in range(n - 4):
            places[word], listed[word] = word, END
        return n - 4
    brief = np.uint32(0)
    for word in range(n - 4):
        length = borders[word + 5] - borders[word]
        marks[word] = np.uint8(length < SHORT) * TINY
        listed[brief] = word
        brief = np.uint32(brief + np.uint32(length < MIDDLE))
    mark_repeats(s, borders, listed, int(brief), SHORT, n, room, listed)
    if len(s) >= MIDDLE:
        for word in range(n - 4):
            listed[word] = word
        middle = mark_repeats(s, borders, listed, n - 4, MIDDLE, n, room, listed)
        if len(s) >= LONG:
            mark_repeats(s, borders, listed, middle, LONG, n, room, listed)
    members = np.uint32(0)
    for word in range(n - 4):
        mark = marks[word]
        places[members] = word
        listed[members] = END if mark & LONG else borders[word] + ((LONG if mark & MIDDLE else MIDDLE) - 1)
        members = np.uint32(members + np.uint32(mark != 0))
    return int(members)


@small
def still_members(size, borders, n, places, lasts, members):  # type: ignore[no-untyped-def]
    """Keeps of the listed words those at which an n-gram of `size` words may repeat; returns how many."""
    while members > 0 and places[members - 1] + size > n:
        members -= 1
    left = np.uint32(0)
    for member in range(members):
        word, last = places[member], lasts[member]
        places[left], lasts[left] = word, last
        left = np.uint32(left + np.uint32(at(borders, word + size) <= last))
    return int(left)


@kernel
def duplicate_ngrams(s, borders, n, words, powers, room, out):  # type: ignore[no-untyped-def]
    """Adds the characters of repeated 5- to 10-grams.

    Args:
        s: The stream.
        borders: Where each word starts in it, and where the last ends.
        n: The number of words.
        words: The hash of each word.
        powers: Powers of the hash base.
        room: A `GramRoom` for n words.
        out: The row of signals to add to.
    """
    if n < 6:
        return
    members = list_members(s, borders, n, room)
    if members < 2:
        return
    places, prefix = room.places, room.prefix
    prefix[0] = 0
    for word in range(n):
        prefix[word + 1] = prefix[word] * power(powers, borders[word + 1] - borders[word]) + words[word]
    for size in range(5, 11):
        members = still_members(size, borders, n, places, room.listed, members)
        shift = shift_for(members)
        table = cleared(room.keys, shift)
        chars, resume = 0, 0
        for member in range(members):
            word = places[member]
            if word < resume:
                continue
            end = np.uint32(word + size)
            length = borders[end] - borders[word]
            if seen_before(table, shift, prefix[end] - prefix[word] * power(powers, length)):
                chars += length
                resume = int(end)
        out[DUP_5_GRAM_CHARS + size - 5] = chars
