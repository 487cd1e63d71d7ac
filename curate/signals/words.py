"""Signals of the words of a text: what they hold, the stop words met, syllables and the reading grade made of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from curate.signals.hashing import EACH_BYTE, hash_text, load_word
from curate.signals.kernels import at, kernel, small
from curate.signals.tokenizer import IS_CONTENT
from schemas.signals import SIGNALS

N_WORDS = SIGNALS.get_field_index("n_words")
N_CONTENT_WORDS = SIGNALS.get_field_index("n_content_words")
CONTENT_WORD_CHARS = SIGNALS.get_field_index("content_word_chars")
N_ALPHA_WORDS = SIGNALS.get_field_index("n_alpha_words")
N_STOP_WORDS = SIGNALS.get_field_index("n_stop_words")
N_SENTENCES = SIGNALS.get_field_index("n_sentences")
N_SYLLABLES = SIGNALS.get_field_index("n_syllables")
DIFFICULTY_MILLI = SIGNALS.get_field_index("difficulty_milli")

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
STOP_SHIFT = np.uint64(9)
STOP_SLOTS = 16


def _stop_table() -> npt.NDArray[np.uint64]:
    """The stop words' hashes, each in a slot of its own: four of its bits, so chosen that no two words share one."""
    table = np.zeros(STOP_SLOTS, np.uint64)
    for word in STOP_WORDS:
        table[(hash_text(word) >> int(STOP_SHIFT)) % STOP_SLOTS] = hash_text(word)
    return table


STOPS = _stop_table()

WORD = 8
"""Bytes that are loaded at once."""
FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(WORD + 1)], np.uint64)
BYTE, LAST_BYTE = np.uint64(8), np.uint64(56)


@kernel
def word_signals(ends, hashes, kinds, n, out):  # type: ignore[no-untyped-def]
    """Adds the counts of a text's words, given by their ends in the stream, their hashes and kinds."""
    content = chars = alphas = stops = np.int64(0)
    start = 0
    for word in range(n):
        end = int(ends[word])
        has_content = np.int64(kinds[word]) & IS_CONTENT
        content += has_content
        chars += (end - start) * has_content
        alphas += np.int64(kinds[word]) >> 1
        slot = np.int64(hashes[word] >> STOP_SHIFT) & (STOP_SLOTS - 1)
        stops |= np.int64(at(STOPS, slot) == hashes[word]) << slot
        start = end
    found = np.int64(0)
    while stops:
        found += stops & 1
        stops >>= 1
    out[N_WORDS], out[N_CONTENT_WORDS], out[CONTENT_WORD_CHARS] = n, content, chars
    out[N_ALPHA_WORDS], out[N_STOP_WORDS] = alphas, found


@kernel
def mark_vowels(s, vowels):  # type: ignore[no-untyped-def]
    """Sets vowels[k] to whether s[k] is one of aeiouyAEIOUY, 64 at a time where `s` is bytes; the WORD entries behind the stream's to 0."""
    for k in range(len(s)):
        low = s[k] | 32
        vowels[k] = (low == 97) | (low == 101) | (low == 105) | (low == 111) | (low == 117) | (low == 121)
    vowels[len(s) : len(s) + WORD] = 0


@small
def count_runs(vowels, start, end):  # type: ignore[no-untyped-def]
    """The runs of ones in vowels[start:end]; WORD bytes more can be read."""
    flags = load_word(vowels, start) & at(FIRST_BYTES, min(end - start, WORD))
    runs = ((flags & ~(flags << BYTE)) * EACH_BYTE) >> LAST_BYTE
    while end - start > WORD:
        start += WORD
        flags = load_word(vowels, start) & at(FIRST_BYTES, min(end - start, WORD))
        runs += ((flags & ~load_word(vowels, start - 1)) * EACH_BYTE) >> LAST_BYTE
    return np.int64(runs)


@kernel
def reading_signals(s, ends, kinds, n, vowels, out):  # type: ignore[no-untyped-def]
    """Adds syllables and the Flesch-Kincaid grade (Kincaid et al. 1975) in thousandths; needs the sentences and alphabetic words.

    A word's syllables are its runs of vowels, a final e without an l or a vowel before it not counted, at least 1. `vowels` is scratch,
    WORD longer than the stream `s`.
    """
    mark_vowels(s, vowels)
    total = np.int64(0)
    start = 0
    for word in range(n):
        end = int(ends[word])
        last, before = at(s, end - 1) | 32, max(end - 2, 0)
        count = count_runs(vowels, start, end)
        silent = (last == 101) & ((at(s, before) | 32) != 108) & (at(vowels, before) == 0) & (count > 1)
        total += max(count - int(silent), 1) * np.int64(kinds[word] >> 1)
        start = end
    out[N_SYLLABLES] = total
    words = out[N_ALPHA_WORDS]
    if words > 0:
        # One division of whole numbers, so that no rounding depends on the machine.
        ends_met = max(out[N_SENTENCES], 1)
        out[DIFFICULTY_MILLI] = (390 * words * words + 11800 * total * ends_met) // (words * ends_met) - 15590
