"""Signals that are computed only where a recipe names them: families of integer columns, each a table of its own.

They are columns of rules and difficulties like those of the signals table; where a family is not asked for, they are null.
"""

from __future__ import annotations

import pyarrow as pa

from schemas.signals import SIGNALS

_COMPRESSION = {
    "lz_bytes": "estimate of the size after LZ77 compression with a 64 KiB window, in bytes",
}

_CODE = {
    "max_line_chars": "length of the longest line between line feeds",
    "n_long_lines": "lines of more than 100 code points",
    "n_trailing_space_lines": "lines with visible text that end in white space",
    "n_tab_indents": "lines indented by tabs alone",
    "n_space_indents": "lines indented by spaces alone",
    "n_mixed_indents": "lines whose indentation mixes tabs and spaces",
    "n_uneven_indents": "lines indented by an odd number of spaces",
    "n_indent_jumps": "lines indented by spaces deeper than the line with text before by neither 2, 4 nor 8",
    "n_unbalanced_brackets": "round, square and curly brackets without a partner of their kind (unordered)",
    "n_operators_spaced": "assignment, comparison and arithmetic signs with a space on both sides",
    "n_operators_tight": "such signs with a space on exactly one side",
    "n_commas_spaced": "commas followed by white space",
    "n_commas_tight": "commas followed by a visible character",
    "n_snake_names": "identifiers with an inner underscore and no capital letter",
    "n_camel_names": "identifiers with a capital letter after a small one and no underscore",
    "n_short_names": "identifiers of one letter",
    "n_names": "identifiers: ASCII letters, digits and underscores, not starting with a digit",
    "name_chars": "summed length of those",
}

_SCRIPTS = {
    f"n_{script}_chars": f"code points of the {what}"
    for script, what in {
        "latin": "Latin blocks that are letters",
        "cyrillic": "Cyrillic blocks",
        "greek": "Greek blocks",
        "arabic": "Arabic blocks",
        "hebrew": "Hebrew blocks",
        "devanagari": "Devanagari blocks",
        "thai": "Thai block",
        "han": "Han blocks",
        "kana": "Hiragana and Katakana blocks",
        "hangul": "Hangul blocks",
    }.items()
} | {"n_other_script_chars": "alphabetic code points outside those blocks"}

_REDPAJAMA = {
    "rps_words": "words after lower case, ASCII punctuation deleted, NFD: runs without white space",
    "rps_word_chars": "summed length of those",
    "rps_unique_words": "different ones among those",
    "rps_entropy_micro": "entropy of their distribution in millionths of a nat",
    "rps_raw_words": "runs of letters, digits and underscores, and runs of other visible characters, in the text as it is",
    "rps_alpha_words": "of those, words with an ASCII letter",
    "rps_caps_words": "of those, words with a capital and no small letter",
    "rps_symbols": "number signs, three full stops (not overlapping) and U+2026",
    "rps_sentences": "sentences: from a word character to a run of . ! ? or the end",
    "rps_curly_brackets": "curly brackets, opening and closing",
    "rps_lorem_ipsum": "occurrences of 'lorem ipsum' in the normalised text",
    "rps_javascript": "normalised words that are 'javascript'",
    "rps_lines": "lines, ended by a line feed or the end",
    "rps_terminal_lines": "of those, lines whose visible end is . ! ? or U+201D",
    "rps_ellipsis_lines": "of those, lines whose visible end is three full stops or U+2026",
    "rps_bullet_lines": "of those, lines whose visible start is a bullet point, a triangle, a square or an en dash",
    "rps_upper_chars": "capital letters",
    "rps_numeric_chars": "numeric code points of the normalised words",
    **{f"rps_top_{n}_gram_chars": f"occurrences of the top word {n}-gram times its letters; 0 if it occurs once" for n in (2, 3, 4)},
    **{f"rps_dup_{n}_gram_chars": f"letters of words inside a word {n}-gram that occurs more than once" for n in range(5, 11)},
}

_STRUCTURE = {
    "n_code_lines": "lines with visible text",
    "n_unopened_lines": "of those, lines indented deeper than the one before, whose end opens nothing",
    "n_unfilled_blocks": "of those, lines no deeper than the one before, which ends in a colon or an opening curly bracket",
    "n_ascii_names": "runs of ASCII letters, digits and underscores that start with a letter",
    "n_rough_names": "of those, names with five consonants in a row or a digit between letters",
    "n_unfinished": "1 if the text does not end in a line feed",
}


def _schema(docs: dict[str, str]) -> pa.Schema:
    return pa.schema([pa.field(name, pa.int64(), nullable=False, metadata={b"doc": doc.encode()}) for name, doc in docs.items()])


FAMILIES: dict[str, pa.Schema] = {
    "code": _schema(_CODE),
    "compression": _schema(_COMPRESSION),
    "scripts": _schema(_SCRIPTS),
    "redpajama": _schema(_REDPAJAMA),
    "structure": _schema(_STRUCTURE),
}
"""Columns by family: one row a text, in the order of the texts."""

FAMILY_VERSIONS: dict[str, int] = dict.fromkeys(FAMILIES, 1)
"""Raised whenever a stored value would change for some text."""

assert not {name for family in FAMILIES.values() for name in family.names} & set(SIGNALS.names)
