"""Lines and paragraphs of a text, by the three definitions that the rule sets use, in one pass over the code points."""

from __future__ import annotations

import numpy as np

from curate.signals.code_points import (
    ALPHA,
    BREAK,
    CAPITAL,
    CLOSER,
    DIGIT,
    SENTENCE_END,
    SPACE,
    TERMINAL,
)
from curate.signals.hashing import BASE, ONE, SPREAD, home, shift_for
from curate.signals.kernels import inlined, kernel
from curate.signals.tokenizer import class_of
from schemas.signals import SIGNALS

SHORT_LINE = 30
PARAGRAPH_SALT = np.uint64(0x5851F42D4C957F2D)

N_NEWLINES = SIGNALS.get_field_index("n_newlines")
N_ALPHA_CHARS = SIGNALS.get_field_index("n_alpha_chars")
N_DIGIT_CHARS = SIGNALS.get_field_index("n_digit_chars")
N_UPPER_CHARS = SIGNALS.get_field_index("n_upper_chars")
N_SPACE_CHARS = SIGNALS.get_field_index("n_space_chars")
N_HASHES = SIGNALS.get_field_index("n_hashes")
N_ELLIPSES = SIGNALS.get_field_index("n_ellipses")
N_TEXT_LINES = SIGNALS.get_field_index("n_text_lines")
N_BULLET_LINES = SIGNALS.get_field_index("n_bullet_lines")
N_ELLIPSIS_LINES = SIGNALS.get_field_index("n_ellipsis_lines")
N_PARAGRAPHS = SIGNALS.get_field_index("n_paragraphs")
N_DUP_PARAGRAPHS = SIGNALS.get_field_index("n_dup_paragraphs")
DUP_PARAGRAPH_CHARS = SIGNALS.get_field_index("dup_paragraph_chars")
N_LINES = SIGNALS.get_field_index("n_lines")
N_DUP_LINES = SIGNALS.get_field_index("n_dup_lines")
DUP_LINE_CHARS = SIGNALS.get_field_index("dup_line_chars")
N_FULL_LINES = SIGNALS.get_field_index("n_full_lines")
N_TERMINAL_LINES = SIGNALS.get_field_index("n_terminal_lines")
N_SHORT_LINES = SIGNALS.get_field_index("n_short_lines")
DUP_FULL_LINE_CHARS = SIGNALS.get_field_index("dup_full_line_chars")
N_CURLY_BRACKETS = SIGNALS.get_field_index("n_curly_brackets")
N_LOREM_IPSUM = SIGNALS.get_field_index("n_lorem_ipsum")
N_JAVASCRIPT = SIGNALS.get_field_index("n_javascript")
N_SENTENCES = SIGNALS.get_field_index("n_sentences")


def _packed(text: str) -> np.uint64:
    """Eight small ASCII letters as the kernel's window of the last eight code points holds them."""
    return np.uint64(int.from_bytes(text.encode(), "big"))


IPSUM_TAIL = _packed("em ipsum")
SCRIPT_TAIL = _packed("vascript")


@inlined
def seen_before(table, shift, key):  # type: ignore[no-untyped-def]
    """Adds a key to a set; whether it was there. Zero marks a free slot, so the key 0 is stored as 1."""
    if key == 0:
        key = ONE
    slot = home(key, shift)
    while table[slot] != 0:
        if table[slot] == key:
            return True
        slot = (slot + 1) & (len(table) - 1)
    table[slot] = key
    return False


@kernel
def stripped(classes, c):  # type: ignore[no-untyped-def]
    """The span of the text without white space at its ends."""
    a, b = 0, len(c)
    while a < b and class_of(classes, c[a]) & SPACE:
        a += 1
    while b > a and class_of(classes, c[b - 1]) & SPACE:
        b -= 1
    return a, b


@kernel
def close_text_line(c, first, last, out):  # type: ignore[no-untyped-def]
    """Counts a line of str.splitlines whose first and last visible characters are given; first < 0 if it has none."""
    out[N_TEXT_LINES] += 1
    if first < 0:
        return
    if c[first] == 45 or c[first] == 0x2022:
        out[N_BULLET_LINES] += 1
    if c[last] == 0x2026 or (c[last] == 46 and last - first >= 2 and c[last - 1] == 46 and c[last - 2] == 46):
        out[N_ELLIPSIS_LINES] += 1


@kernel
def close_line(classes, c, start, end, visible, value, table, shift, out):  # type: ignore[no-untyped-def]
    """Counts c[start:end], a part between line feeds that is not empty."""
    length = end - start
    out[N_LINES] += 1
    repeated = seen_before(table, shift, (value ^ np.uint64(length)) * SPREAD)
    if repeated:
        out[N_DUP_LINES] += 1
        out[DUP_LINE_CHARS] += length
    if not visible:
        return
    out[N_FULL_LINES] += 1
    if class_of(classes, c[end - 1]) & TERMINAL:
        out[N_TERMINAL_LINES] += 1
    if length <= SHORT_LINE:
        out[N_SHORT_LINES] += 1
    if repeated:
        out[DUP_FULL_LINE_CHARS] += length


@kernel
def close_paragraph(start, end, value, table, shift, out):  # type: ignore[no-untyped-def]
    """Counts the paragraph text[start:end]."""
    out[N_PARAGRAPHS] += 1
    if seen_before(table, shift, (value ^ np.uint64(end - start)) * SPREAD ^ PARAGRAPH_SALT):
        out[N_DUP_PARAGRAPHS] += 1
        out[DUP_PARAGRAPH_CHARS] += end - start


@kernel
def count_phrases(window, c, i, out):  # type: ignore[no-untyped-def]
    """Counts the two phrases that may end at c[i], given the last eight code points in lower case."""
    if window == IPSUM_TAIL and i >= 10 and c[i - 5] == 32:
        if (c[i - 10] | 32) == 108 and (c[i - 9] | 32) == 111 and (c[i - 8] | 32) == 114:
            out[N_LOREM_IPSUM] += 1
    elif window == SCRIPT_TAIL and i >= 9 and (c[i - 9] | 32) == 106 and (c[i - 8] | 32) == 97:
        out[N_JAVASCRIPT] += 1


@kernel
def line_signals(classes, c, newlines, table, out):  # type: ignore[no-untyped-def]
    """Adds the line, paragraph and character counts of a text.

    Args:
        classes: The class of each code point.
        c: Code points of the text, at least one.
        newlines: How many of them are line feeds.
        table: Scratch for hashes, a power of two long, at least 4 * (newlines + 2) rounded up.
        out: The row of signals to add to.
    """
    shift = shift_for(2 * newlines + 4)
    table = table[: np.int64(1) << (np.uint64(64) - shift)]
    table[:] = 0
    size = len(c)
    body, body_end = stripped(classes, c)
    body_last = body_end - 1 if body < body_end else -1
    line_start, para_start = 0, body
    line_value, para_value = np.uint64(0), np.uint64(0)
    visible, in_para, sentence = False, True, False
    first, last, piece_open = -1, -1, False
    dots, digits, alphas, capitals, spaces = 0, 0, 0, 0, 0
    window = np.uint64(0)
    for i in range(size):
        code = c[i]
        mask = class_of(classes, code)
        window = (window << np.uint64(8)) | (np.uint64(min(code, 255)) | np.uint64(32))
        if mask & SPACE:
            spaces += 1
            dots = 0
            if sentence:
                out[N_SENTENCES] += 1
                sentence = False
            if mask & BREAK and not (code == 13 and i + 1 < size and c[i + 1] == 10):
                close_text_line(c, first, last, out)
                first, piece_open = -1, False
            else:
                piece_open = True
            if code == 10:
                if i > line_start:
                    close_line(classes, c, line_start, i, visible, line_value, table, shift, out)
                line_start, line_value, visible = i + 1, np.uint64(0), False
                if in_para and body <= i < body_end and c[i + 1] == 10:
                    close_paragraph(para_start, i, para_value, table, shift, out)
                    in_para = False
                if in_para:
                    para_value = para_value * BASE + np.uint64(11)
                continue
        else:
            visible, piece_open = True, True
            last = i
            if first < 0:
                first = i
            if mask & (ALPHA | DIGIT | CAPITAL):
                alphas += int((mask & ALPHA) != 0)
                digits += int((mask & DIGIT) != 0)
                capitals += int((mask & CAPITAL) != 0)
                dots = 0
                sentence = False
                if (window == IPSUM_TAIL) | (window == SCRIPT_TAIL):
                    count_phrases(window, c, i, out)
            else:
                if code == 46:
                    dots += 1
                    if dots == 3:
                        out[N_ELLIPSES] += 1
                        dots = 0
                else:
                    dots = 0
                    out[N_HASHES] += int(code == 35)
                    out[N_ELLIPSES] += int(code == 0x2026)
                    out[N_CURLY_BRACKETS] += int(code == 123)
                if mask & SENTENCE_END:
                    # Full-width marks end a sentence without a space after them.
                    out[N_SENTENCES] += int(code >= 0x3000)
                    sentence = code < 0x3000
                elif not mask & CLOSER:
                    sentence = False
        if not in_para:
            in_para, para_start, para_value = True, i, np.uint64(0)
        term = np.uint64(code) + ONE
        line_value = line_value * BASE + term
        if i == body:
            para_value = np.uint64(0)
        para_value = para_value * BASE + term
        if i == body_last:
            close_paragraph(para_start, body_end, para_value, table, shift, out)
    if piece_open:
        close_text_line(c, first, last, out)
    if size > line_start:
        close_line(classes, c, line_start, size, visible, line_value, table, shift, out)
    edges = int(c[0] == 10) + int(c[size - 1] == 10)
    out[N_LINES] += edges
    out[N_DUP_LINES] += edges // 2
    if body == body_end:
        out[N_PARAGRAPHS] += 1
    out[N_SENTENCES] += int(sentence)
    out[N_NEWLINES], out[N_SPACE_CHARS] = newlines, spaces
    out[N_ALPHA_CHARS], out[N_DIGIT_CHARS], out[N_UPPER_CHARS] = alphas, digits, capitals
