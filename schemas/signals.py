"""The signals table: what is counted in each text, as integers from which SQL makes every ratio.

Lengths are Unicode code points unless a name says bytes. Words are tokens as `curate.signals.tokenizer` defines them, punctuation
tokens included. Ratios are never stored: a rule divides two columns as DOUBLE, so one stored table serves any threshold.
"""

from __future__ import annotations

import pyarrow as pa

SIGNALS_VERSION: int = 4
"""Raised whenever a stored value would change for some text; a lake recomputes the signals of another version."""

_SIZE = {
    "n_bytes": "length of the text in UTF-8 bytes",
    "n_chars": "length of the text in code points",
    "n_words": "words, punctuation tokens included",
    "n_newlines": "line feeds",
    "n_alpha_chars": "alphabetic code points",
    "n_digit_chars": "ASCII digits",
    "n_upper_chars": "ASCII capital letters",
    "n_space_chars": "white-space code points",
}

_GOPHER_QUALITY = {
    "n_content_words": "words that hold any code point outside the punctuation set",
    "content_word_chars": "summed length of those words",
    "n_alpha_words": "words that hold an alphabetic code point",
    "n_stop_words": "how many of the, be, to, of, and, that, have, with occur as words, in lower case (0 to 8)",
    "n_hashes": "number signs",
    "n_ellipses": "occurrences of three full stops, not overlapping, and of U+2026",
    "n_text_lines": "lines by Unicode's line boundaries (CR, LF, VT, FF, FS to RS, NEL, LS, PS)",
    "n_bullet_lines": "of those, lines whose first visible character is U+2022 or a hyphen",
    "n_ellipsis_lines": "of those, lines whose visible end is three full stops or U+2026",
}

_GOPHER_REPETITION = {
    "n_paragraphs": "paragraphs: parts of the stripped text between runs of two and more line feeds",
    "n_dup_paragraphs": "second and later occurrences of a paragraph",
    "dup_paragraph_chars": "summed length of those",
    "n_lines": "parts of the text between runs of line feeds, an empty first or last part included",
    "n_dup_lines": "second and later occurrences of such a line",
    "dup_line_chars": "summed length of those",
    **{
        f"top_{n}_gram_chars": f"occurrences of the top word {n}-gram (first met among ties) times its length joined by spaces"
        for n in (2, 3, 4)
    },
    **{
        f"dup_{n}_gram_chars": f"summed length of repeated word {n}-grams, scanned from the left, a repeat skipping {n} words"
        for n in range(5, 11)
    },
}

_FINEWEB = {
    "n_full_lines": "parts of the text between line feeds that hold a visible character",
    "n_terminal_lines": "of those, lines whose last code point ends a sentence in some script",
    "n_short_lines": "of those, lines of at most 30 code points",
    "dup_full_line_chars": "summed length of second and later occurrences of those lines",
}

_C4 = {
    "n_curly_brackets": "opening curly brackets",
    "n_lorem_ipsum": "occurrences of 'lorem ipsum' in any ASCII case",
    "n_javascript": "occurrences of 'javascript' in any ASCII case",
}

_READING = {
    "n_sentences": "full-width sentence marks, and . ! ? U+2026 with white space or the end after them and any closing quotes or brackets",
    "n_syllables": "vowel groups of ASCII words, a final silent e not counted, at least one for each alphabetic word",
    "difficulty_milli": "Flesch-Kincaid grade times 1,000, rounded down, over alphabetic words; 0 without them",
}

SIGNAL_FAMILIES: dict[str, tuple[str, ...]] = {
    "size": tuple(_SIZE),
    "gopher_quality": tuple(_GOPHER_QUALITY),
    "gopher_repetition": tuple(_GOPHER_REPETITION),
    "fineweb": tuple(_FINEWEB),
    "c4": tuple(_C4),
    "reading": tuple(_READING),
}
"""Column names by the family they serve."""

_DOCS = _SIZE | _GOPHER_QUALITY | _GOPHER_REPETITION | _FINEWEB | _C4 | _READING

SIGNALS: pa.Schema = pa.schema([pa.field(name, pa.int64(), nullable=False, metadata={b"doc": doc.encode()}) for name, doc in _DOCS.items()])
"""One row a text, in the order of the texts."""
