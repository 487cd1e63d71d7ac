"""Signals of the words of a text: what they hold, the stop words met, syllables and the reading grade made of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from curate.signals.code_points import VOWEL, class_of
from curate.signals.hashing import hash_text
from curate.signals.kernels import kernel
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
        stops |= np.int64(STOPS[slot] == hashes[word]) << slot
        start = end
    found = np.int64(0)
    while stops:
        found += stops & 1
        stops >>= 1
    out[N_WORDS], out[N_CONTENT_WORDS], out[CONTENT_WORD_CHARS] = n, content, chars
    out[N_ALPHA_WORDS], out[N_STOP_WORDS] = alphas, found


@kernel
def count_groups(classes, s, groups):  # type: ignore[no-untyped-def]
    """Writes how many runs of vowels begin before each place of a stream; `groups` is one longer. `find_chunks` does the same."""
    total = before = 0
    groups[0] = 0
    for k in range(len(s)):
        vowel = int(class_of(classes, s[k]) & VOWEL != 0)
        total += vowel & (before ^ 1)
        before = vowel
        groups[k + 1] = total


@kernel
def reading_signals(classes, s, ends, kinds, n, groups, out):  # type: ignore[no-untyped-def]
    """Adds syllables and the Flesch-Kincaid grade (Kincaid et al. 1975) in thousandths; needs the sentences and alphabetic words.

    A word's syllables are its runs of vowels, a final e without an l or a vowel before it not counted, at least 1. `groups` holds how many
    such runs begin before each place of the stream `s`.
    """
    total = np.int64(0)
    start = 0
    for word in range(n):
        end = int(ends[word])
        last, before = s[end - 1] | 32, s[max(end - 2, 0)]
        count = np.int64(groups[end]) - groups[start + 1] + int(class_of(classes, s[start]) & VOWEL != 0)
        silent = (last == 101) & ((before | 32) != 108) & (class_of(classes, before) & VOWEL == 0) & (count > 1)
        total += max(count - int(silent), 1) * np.int64(kinds[word] >> 1)
        start = end
    out[N_SYLLABLES] = total
    words = out[N_ALPHA_WORDS]
    if words > 0:
        # One division of whole numbers, so that no rounding depends on the machine.
        ends_met = max(out[N_SENTENCES], 1)
        out[DIFFICULTY_MILLI] = (390 * words * words + 11800 * total * ends_met) // (words * ends_met) - 15590
