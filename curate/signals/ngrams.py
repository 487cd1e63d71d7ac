"""Repeated word n-grams of a text: the most frequent 2-, 3- and 4-grams and the characters in repeated 5- to 10-grams.

Little is looked up by its full hash, without changing a count. A small table first counts, by place alone, how often the 2-gram at each
word may occur; the most frequent n-gram is then sought among the words whose 2-grams occur often enough, and among more of them only
where that was too few. For repeated n-grams the key is the words run together, as the rule asks, so equal keys may hide other word
borders: an n-gram of at least 8, 16 or 32 characters can only repeat where the stream's next 8, 16 or 32 characters do, seen from the
start of another word.
"""

from __future__ import annotations

import numpy as np

from curate.signals.hashing import ONE, SPREAD, home, load_word, power, shift_for
from curate.signals.kernels import inlined, kernel, small
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
    for word in range(n - 1):
        place = home(joined(words[word], words[word + 1]), shift)
        places[word] = place
        counts[place] = min(counts[place] + 1, MOST)
    most = 0
    for word in range(n - 1):
        found = counts[places[word]]
        met[word] = found
        most = max(most, int(found))
    return most


@small
def frequent(size, least, n, met, places):  # type: ignore[no-untyped-def]
    """Lists the words at which all 2-grams of the n-gram of `size` words may occur `least` times; returns how many."""
    found = 0
    for word in range(n - size + 1):
        enough = met[word] >= least
        for k in range(1, size - 1):
            enough &= met[word + k] >= least
        places[found] = word
        found += int(enough)
    return found


@kernel
def most_frequent(size, words, places, found, keys, counts, firsts):  # type: ignore[no-untyped-def]
    """The largest count of an n-gram of `size` words among those at the listed words, and the first word of the first such."""
    shift = shift_for(found + 1)
    table = cleared(keys, shift)
    best = first = 0
    for place in range(found):
        word = int(places[place])
        key = words[word]
        for k in range(1, size):
            key = joined(key, words[word + k])
        if key == 0:
            key = ONE
        slot = home(key, shift)
        while table[slot] != 0 and table[slot] != key:
            slot = (slot + 1) & (len(table) - 1)
        if table[slot] == 0:
            table[slot] = key
            counts[slot] = 0
            firsts[slot] = word
        counts[slot] += 1
        if counts[slot] > best:
            best, first = int(counts[slot]), int(firsts[slot])
        elif counts[slot] == best:
            first = min(first, int(firsts[slot]))
    return best, first


@kernel
def top_ngrams(ends, n, words, keys, counts, firsts, places, pairs, met, out):  # type: ignore[no-untyped-def]
    """Adds the character counts of the most frequent 2-, 3- and 4-grams.

    Args:
        ends: The end of each word in the stream.
        n: The number of words.
        words: The hash of each word.
        keys: Scratch, at least 2 (n + 1) rounded up to a power of two.
        counts: Scratch, as long as `keys`.
        firsts: Scratch, as long as `keys`.
        places: Scratch, as long as the number of words.
        pairs: Scratch, PAIRS long.
        met: Scratch, as long as the number of words.
        out: The row of signals to add to.
    """
    if n < 2:
        return
    bound = count_pairs(n, words, places, pairs, met)
    # A guess that is too high costs another look, one that is too low many full hashes. After one that was too high, half of it is tried,
    # but no less than was found: the true best occurs at least as often.
    guess = bound - bound // 4
    for size in range(2, min(n, 4) + 1):
        best, first = 1, 0
        least = max(guess, 2)
        while bound > 1:
            best, first = most_frequent(size, words, places, frequent(size, least, n, met, places), keys, counts, firsts)
            if best >= least or least == 2:
                break
            least = max(best, least // 2, 2)
        if best < 2:
            best, first = 1, 0
        begin = int(ends[first - 1]) if first > 0 else 0
        out[TOP_2_GRAM_CHARS + size - 2] = (ends[first + size - 1] - begin + size - 1) * best
        bound, guess = best, best // (4 if size == 2 else 2)


@small
def window(s, start, length):  # type: ignore[no-untyped-def]
    """A hash of characters among s[start:start + length], for a length of 8, 16 or 32: equal where all are equal."""
    key = load_word(s, start)
    if s.itemsize == 1:
        for at in range(SHORT, length, SHORT):
            key = joined(key, load_word(s, start + at))
        return key
    # Four loads of two code points each, spread over the length.
    for part_number in range(1, 4):
        key = joined(key, load_word(s, start + (length - 2) * part_number // 3))
    return key


@small
def mark_repeats(s, ends, chosen, found, length, n, sieve, places, marks, marked):  # type: ignore[no-untyped-def]
    """Marks the words from whose start the next `length` characters may repeat from the start of another such word.

    Hashes are only counted by place, so some words are marked in vain and none is missed.

    Args:
        s: The stream.
        ends: The end of each word in it.
        chosen: The words to look at, in their order.
        found: How many they are.
        length: SHORT, MIDDLE or LONG.
        n: The number of words.
        sieve: Scratch, at least 8 n rounded up to a power of two.
        places: Scratch, as long as `chosen`.
        marks: Receives the mark `length`.
        marked: Receives the words marked, in their order; may be `chosen`.

    Returns:
        How many words are marked.
    """
    shift = shift_for(4 * n)
    seen = cleared(sieve, shift)
    while found > 0 and chosen[found - 1] > 0 and ends[chosen[found - 1] - 1] + length > len(s):
        found -= 1
    for k in range(found):
        word = chosen[k]
        place = home(window(s, int(ends[word - 1]) if word > 0 else 0, length), shift)
        seen[place] = min(seen[place] + 1, 2)
        places[k] = place
    kept = 0
    for k in range(found):
        word = chosen[k]
        again = int(seen[places[k]] > 1)
        marks[word] |= length * again
        marked[kept] = word
        kept += again
    return kept


@small
def mark_for(length):  # type: ignore[no-untyped-def]
    """The mark that a word must have for an n-gram of this length at it to repeat; 0 for none."""
    return LONG if length >= LONG else MIDDLE if length >= MIDDLE else SHORT if length >= SHORT else 0


@kernel
def list_members(s, ends, n, sieve, places, listed, marks):  # type: ignore[no-untyped-def]
    """Lists in `places` the words at which an n-gram of five words or more may repeat, with their marks; returns how many."""
    if len(s) < SHORT:
        for word in range(n - 4):
            places[word], marks[word] = word, TINY
        return n - 4
    start = brief = 0
    for word in range(n - 4):
        length = int(ends[word + 4]) - start
        marks[word] = int(length < SHORT) * TINY
        listed[brief] = word
        brief += int(length < MIDDLE)
        start = int(ends[word])
    mark_repeats(s, ends, listed, brief, SHORT, n, sieve, places, marks, listed)
    if len(s) >= MIDDLE:
        for word in range(n - 4):
            listed[word] = word
        middle = mark_repeats(s, ends, listed, n - 4, MIDDLE, n, sieve, places, marks, listed)
        if len(s) >= LONG:
            mark_repeats(s, ends, listed, middle, LONG, n, sieve, places, marks, listed)
    members = 0
    for word in range(n - 4):
        places[members] = word
        members += int(marks[word] & (TINY | SHORT | MIDDLE) != 0)
    return members


@kernel
def duplicate_ngrams(s, ends, n, words, powers, prefix, keys, places, listed, sieve, marks, out):  # type: ignore[no-untyped-def]
    """Adds the characters of repeated 5- to 10-grams.

    Args:
        s: The stream.
        ends: The end of each word in it.
        n: The number of words.
        words: The hash of each word.
        powers: Powers of the hash base.
        prefix: Scratch, one longer than the number of words.
        keys: Scratch, at least 2 n rounded up to a power of two.
        places: Scratch, as long as the number of words.
        listed: Scratch, as long as the number of words.
        marks: Scratch, as long as the number of words.
        sieve: Scratch, at least 8 n rounded up to a power of two.
        out: The row of signals to add to.
    """
    if n < 6:
        return
    members = list_members(s, ends, n, sieve, places, listed, marks)
    if members < 2:
        return
    prefix[0] = 0
    start = 0
    for word in range(n):
        end = int(ends[word])
        prefix[word + 1] = prefix[word] * power(powers, end - start) + words[word]
        start = end
    for size in range(5, 11):
        shift = shift_for(members)
        table = cleared(keys, shift)
        chars, resume, left = 0, 0, 0
        for member in range(members):
            word = int(places[member])
            if word + size > n:
                break
            length = int(ends[word + size - 1]) - (int(ends[word - 1]) if word > 0 else 0)
            mark = mark_for(length)
            if marks[word] & mark != mark:
                # A longer one may repeat yet where a mark was only sought among words before shorter ones.
                places[left] = word
                left += int(mark == SHORT)
                continue
            places[left] = word
            left += 1
            if word < resume:
                continue
            if seen_before(table, shift, prefix[word + size] - prefix[word] * power(powers, length)):
                chars += length
                resume = word + size
        members = left
        out[DUP_5_GRAM_CHARS + size - 5] = chars
