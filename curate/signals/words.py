"""Signals of the words of a text: what they hold, the stop words met, syllables and the reading grade made of them."""

from __future__ import annotations

import numpy as np

from curate.signals.code_points import ALPHA, PUNCT, VOWEL
from curate.signals.kernels import kernel
from curate.signals.tokenizer import class_of
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
_STOP_KEYS = np.array([int.from_bytes(b"\1" + word.encode(), "big") for word in STOP_WORDS], np.int64)


@kernel
def stop_word_bit(s, a, b):  # type: ignore[no-untyped-def]
    """The bit of the stop word that s[a:b] (2 to 4 long) is; 0 for none."""
    key = np.int64(1)  # a leading one, so that leading NULs count
    for k in range(a, b):
        if s[k] > 127:
            return 0
        key = (key << 8) | np.int64(s[k])
    for k in range(len(_STOP_KEYS)):
        if key == _STOP_KEYS[k]:
            return 1 << k
    return 0


@kernel
def word_signals(classes, s, ends, n, out):  # type: ignore[no-untyped-def]
    """Adds the counts of a text's words, given by their ends in the stream `s`."""
    content = chars = alphas = stops = 0
    start = 0
    for word in range(n):
        end = ends[word]
        has_content = has_alpha = False
        for k in range(start, end):
            mask = class_of(classes, s[k])
            has_alpha |= (mask & ALPHA) != 0
            has_content |= not mask & PUNCT
            if has_alpha and has_content:
                break
        if has_content:
            content += 1
            chars += end - start
        if has_alpha:
            alphas += 1
            if 2 <= end - start <= 4:
                stops |= stop_word_bit(s, start, end)
        start = end
    found = 0
    while stops:
        found += stops & 1
        stops >>= 1
    out[N_WORDS], out[N_CONTENT_WORDS], out[CONTENT_WORD_CHARS] = n, content, chars
    out[N_ALPHA_WORDS], out[N_STOP_WORDS] = alphas, found


@kernel
def syllables(classes, s, a, b):  # type: ignore[no-untyped-def]
    """Vowel groups of the word s[a:b], a final e without an l before it not counted; at least 1."""
    groups = 0
    inside = False
    for k in range(a, b):
        vowel = (class_of(classes, s[k]) & VOWEL) != 0
        if vowel and not inside:
            groups += 1
        inside = vowel
    if groups > 1 and (s[b - 1] | 32) == 101 and not class_of(classes, s[b - 2]) & VOWEL and (s[b - 2] | 32) != 108:
        groups -= 1
    return max(groups, 1)


@kernel
def reading_signals(classes, s, ends, n, out):  # type: ignore[no-untyped-def]
    """Adds syllables and the Flesch-Kincaid grade (Kincaid et al. 1975) in thousandths; needs the sentences and alphabetic words."""
    total = 0
    start = 0
    for word in range(n):
        end = ends[word]
        alphabetic = False
        for k in range(start, end):
            if class_of(classes, s[k]) & ALPHA:
                alphabetic = True
                break
        if alphabetic:
            total += syllables(classes, s, start, end)
        start = end
    out[N_SYLLABLES] = total
    words = out[N_ALPHA_WORDS]
    if words > 0:
        # One division of whole numbers, so that no rounding depends on the machine.
        ends_met = max(out[N_SENTENCES], 1)
        out[DIFFICULTY_MILLI] = (390 * words * words + 11800 * total * ends_met) // (words * ends_met) - 15590
