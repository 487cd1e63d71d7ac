"""Lines and paragraphs of a text, by the three definitions that the rule sets use, in one pass over its chunks."""

from __future__ import annotations

import numpy as np

from curate.signals.code_points import BREAK, CLOSER, DETAIL, JAY, SENTENCE_END, TERMINAL, class_of, point_of
from curate.signals.hashing import BASE, ONE, SPREAD, following, home, power, shift_for
from curate.signals.kernels import at, inlined, kernel, small
from schemas.signals import SIGNALS

SHORT_LINE = 30
PARAGRAPH_SALT = np.uint64(0x5851F42D4C957F2D)

N_NEWLINES = SIGNALS.get_field_index("n_newlines")
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


LINE_FEED = np.uint64(11)  # the code point and one, as every hash takes it
LOREM, IPSUM, SCRIPT = (np.frombuffer(word, np.uint8) for word in (b"lorem", b"ipsum", b"javascript"))


@inlined
def seen_before(table, shift, key):  # type: ignore[no-untyped-def]
    """Adds a key to a set; whether it was there. Zero marks a free slot, so the key 0 is stored as 1."""
    if key == 0:
        key = ONE
    slot = home(key, shift)
    while table[slot] != 0:
        if table[slot] == key:
            return True
        slot = following(table, slot)
    table[slot] = key
    return False


@small
def close_text_line(points, c, first, last, out):  # type: ignore[no-untyped-def]
    """Counts a line of str.splitlines whose first and last visible characters are given; first < 0 if it has none."""
    out[N_TEXT_LINES] += 1
    if first < 0:
        return
    if at(c, first) == 45 or point_of(points, c, first) == 0x2022:
        out[N_BULLET_LINES] += 1
    if point_of(points, c, last) == 0x2026 or (at(c, last) == 46 and last - first >= 2 and at(c, last - 1) == 46 and at(c, last - 2) == 46):
        out[N_ELLIPSIS_LINES] += 1


@small
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
    if class_of(classes, at(c, end - 1)) & TERMINAL:
        out[N_TERMINAL_LINES] += 1
    if length <= SHORT_LINE:
        out[N_SHORT_LINES] += 1
    if repeated:
        out[DUP_FULL_LINE_CHARS] += length


@small
def close_paragraph(start, end, value, table, shift, out):  # type: ignore[no-untyped-def]
    """Counts the paragraph text[start:end]."""
    out[N_PARAGRAPHS] += 1
    if seen_before(table, shift, (value ^ np.uint64(end - start)) * SPREAD ^ PARAGRAPH_SALT):
        out[N_DUP_PARAGRAPHS] += 1
        out[DUP_PARAGRAPH_CHARS] += end - start


@small
def same_letters(c, start, word):  # type: ignore[no-untyped-def]
    """Whether c[start:] goes on with a word of small letters, in any case."""
    for k in range(len(word)):  # noqa: SIM110
        if (at(c, start + k) | 32) != word[k]:
            return False
    return True


@small
def count_phrases(c, start, stop, before, out):  # type: ignore[no-untyped-def]
    """Counts the phrases that end in the chunk c[start:stop], the chunk before it ending at `before`."""
    if (at(c, start) | 32) == IPSUM[0] and stop - start >= 5 and start - before == 1 and at(c, before) == 32 and before >= 5:
        out[N_LOREM_IPSUM] += int(same_letters(c, start, IPSUM) and same_letters(c, before - 5, LOREM))
    for i in range(start, stop - len(SCRIPT) + 1):
        if (at(c, i) | 32) == SCRIPT[0]:
            out[N_JAVASCRIPT] += int(same_letters(c, i, SCRIPT))


@small
def chunk_details(classes, points, c, start, stop, out):  # type: ignore[no-untyped-def]
    """Adds the marks in the part c[start:stop] of a chunk; returns whether a sentence ends where it does.

    What stands before the part must neither be a full stop nor end a sentence.
    """
    sentence = False
    dots = 0
    for i in range(start, stop):
        code = at(c, i)
        mask = class_of(classes, code)
        dots = dots + 1 if code == 46 else 0
        if not mask & DETAIL:
            sentence = sentence and mask & CLOSER != 0
            continue
        if dots == 3:
            out[N_ELLIPSES] += 1
            dots = 0
        point = point_of(points, c, i)
        out[N_HASHES] += int(code == 35)
        out[N_ELLIPSES] += int(point == 0x2026)
        out[N_CURLY_BRACKETS] += int(code == 123)
        if mask & SENTENCE_END:
            # Full-width marks end a sentence without a space after them.
            out[N_SENTENCES] += int(point >= 0x3000)
            sentence = point < 0x3000
        else:
            sentence = False
    return sentence


@kernel
def line_signals(classes, points, powers, c, newlines, chunks, starts, stops, hashes, inners, table, out):  # type: ignore[no-untyped-def]
    """Adds the line, paragraph and sentence counts of a text.

    Args:
        classes: The class of each code.
        points: The code point of each byte, where `c` is bytes.
        powers: Powers of the hash base.
        c: Codes of the text, at least one.
        newlines: How many of them are line feeds.
        chunks: The number of chunks; what `find_chunks` wrote of them follows.
        starts: Where each chunk starts in `c`, and room for one more.
        stops: Where each ends.
        hashes: The hash of each.
        inners: The classes inside each.
        table: Scratch for hashes, a power of two long, at least 4 * (newlines + 2) rounded up.
        out: The row of signals to add to.
    """
    shift = shift_for(2 * newlines + 4)
    table = table[: np.int64(1) << (np.uint64(64) - shift)]
    table[:] = 0
    size = len(c)
    line_start, para_start = 0, 0
    line_value, para_value = np.uint64(0), np.uint64(0)
    visible, in_para, sentence = False, False, False
    first, last, piece_open = -1, -1, False
    starts[chunks] = size
    i = 0
    for chunk in range(chunks + 1):
        start = int(starts[chunk])
        inside = 0 < chunk < chunks
        while i < start:
            code = at(c, i)
            if sentence:
                out[N_SENTENCES] += 1
                sentence = False
            piece_open = True
            if code != 32:
                if class_of(classes, code) & BREAK and not (code == 13 and i + 1 < size and at(c, i + 1) == 10):
                    close_text_line(points, c, first, last, out)
                    first, piece_open = -1, False
                if code == 10:
                    if i > line_start:
                        close_line(classes, c, line_start, i, visible, line_value, table, shift, out)
                    line_start, line_value, visible = i + 1, np.uint64(0), False
                    if in_para and inside and at(c, i + 1) == 10:
                        close_paragraph(para_start, i, para_value, table, shift, out)
                        in_para = False
                    para_value = para_value * BASE + LINE_FEED
                    i += 1
                    continue
            if not in_para:
                in_para, para_start, para_value = True, i, np.uint64(0)
            term = np.uint64(point_of(points, c, i)) + ONE
            line_value = line_value * BASE + term
            para_value = para_value * BASE + term
            i += 1
        if chunk == chunks:
            break
        stop = int(stops[chunk])
        if chunk == 0 or not in_para:
            in_para, para_start, para_value = True, start, np.uint64(0)
        step = power(powers, stop - start)
        line_value = line_value * step + hashes[chunk]
        para_value = para_value * step + hashes[chunk]
        if first < 0:
            first = start
        last = stop - 1
        visible = piece_open = True
        rest = class_of(classes, at(c, start)) | inners[chunk] if stop - start > 1 else np.uint32(0)
        if rest & DETAIL:
            sentence = chunk_details(classes, points, c, start, stop, out)
        elif class_of(classes, at(c, last)) & DETAIL:
            sentence = chunk_details(classes, points, c, last, stop, out)
        else:
            sentence = False
        if (rest & JAY != 0) | (((at(c, start) | 32) == IPSUM[0]) & (stop - start >= len(IPSUM))):
            count_phrases(c, start, stop, int(stops[chunk - 1]) if chunk > 0 else np.int64(0), out)
        if chunk == chunks - 1:
            close_paragraph(para_start, stop, para_value, table, shift, out)
        i = stop
    if piece_open:
        close_text_line(points, c, first, last, out)
    if size > line_start:
        close_line(classes, c, line_start, size, visible, line_value, table, shift, out)
    edges = int(c[0] == 10) + int(c[size - 1] == 10)
    out[N_LINES] += edges
    out[N_DUP_LINES] += edges // 2
    if chunks == 0:
        out[N_PARAGRAPHS] += 1
    out[N_SENTENCES] += int(sentence)
    out[N_NEWLINES] = newlines
