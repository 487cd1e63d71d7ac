"""Signals of source code that need no parser: indentation, line length, spacing around operators, brackets, names.

They let a recipe order well-formatted source first and drop generated or damaged files. Everything is a count, so any language works.
"""

from __future__ import annotations

from curate.signals.code_points import CAPITAL, DIGIT, SPACE, class_of
from curate.signals.kernels import inlined, kernel
from schemas.signals import SIGNALS

LONG_LINE = 100

MAX_LINE_CHARS = SIGNALS.get_field_index("max_line_chars")
N_LONG_LINES = SIGNALS.get_field_index("n_long_lines")
N_TRAILING_SPACE_LINES = SIGNALS.get_field_index("n_trailing_space_lines")
N_TAB_INDENTS = SIGNALS.get_field_index("n_tab_indents")
N_SPACE_INDENTS = SIGNALS.get_field_index("n_space_indents")
N_MIXED_INDENTS = SIGNALS.get_field_index("n_mixed_indents")
N_UNEVEN_INDENTS = SIGNALS.get_field_index("n_uneven_indents")
N_INDENT_JUMPS = SIGNALS.get_field_index("n_indent_jumps")
N_UNBALANCED_BRACKETS = SIGNALS.get_field_index("n_unbalanced_brackets")
N_OPERATORS_SPACED = SIGNALS.get_field_index("n_operators_spaced")
N_OPERATORS_TIGHT = SIGNALS.get_field_index("n_operators_tight")
N_COMMAS_SPACED = SIGNALS.get_field_index("n_commas_spaced")
N_COMMAS_TIGHT = SIGNALS.get_field_index("n_commas_tight")
N_SNAKE_NAMES = SIGNALS.get_field_index("n_snake_names")
N_CAMEL_NAMES = SIGNALS.get_field_index("n_camel_names")
N_SHORT_NAMES = SIGNALS.get_field_index("n_short_names")
N_NAMES = SIGNALS.get_field_index("n_names")
NAME_CHARS = SIGNALS.get_field_index("name_chars")


@kernel
def code_signals(classes, c, out):  # type: ignore[no-untyped-def]
    """Adds the code signals of a text: line by line, then its names."""
    size = len(c)
    start, depth = 0, 0
    while start <= size:
        end = start
        while end < size and c[end] != 10:
            end += 1
        depth = code_line(classes, c, start, end, depth, out)
        start = end + 1
    symbol_signals(c, out)
    name_signals(classes, c, out)


@kernel
def code_line(classes, c, start, end, depth, out):  # type: ignore[no-untyped-def]
    """Adds the layout of the line c[start:end]; `depth` is the indentation of the line before, the line's own is returned."""
    length = end - start
    out[MAX_LINE_CHARS] = max(out[MAX_LINE_CHARS], length)
    out[N_LONG_LINES] += int(length > LONG_LINE)
    tabs = spaces = 0
    k = start
    while k < end and (c[k] == 32 or c[k] == 9):
        tabs += int(c[k] == 9)
        spaces += int(c[k] == 32)
        k += 1
    if k < end and c[end - 1] == 13:
        end -= 1
    if k >= end or class_of(classes, c[k]) & SPACE:
        return depth
    out[N_TRAILING_SPACE_LINES] += int((class_of(classes, c[end - 1]) & SPACE) != 0)
    if tabs and spaces:
        out[N_MIXED_INDENTS] += 1
    elif tabs:
        out[N_TAB_INDENTS] += 1
    elif spaces:
        out[N_SPACE_INDENTS] += 1
        out[N_UNEVEN_INDENTS] += spaces & 1
        step = spaces - depth
        out[N_INDENT_JUMPS] += int(step > 0 and step != 2 and step != 4 and step != 8)
    return spaces


@kernel
def symbol_signals(c, out):  # type: ignore[no-untyped-def]
    """Adds bracket balance and the spacing of commas and operators."""
    size = len(c)
    rounds = squares = curlies = 0
    for k in range(size):
        code = c[k]
        if code > 125 or 63 < code < 91 or 96 < code < 123 or code < 37:
            continue
        if code == 40 or code == 41:
            rounds += 1 if code == 40 else -1
        elif code == 91 or code == 93:
            squares += 1 if code == 91 else -1
        elif code == 123 or code == 125:
            curlies += 1 if code == 123 else -1
        elif code == 44 and k + 1 < size:
            if c[k + 1] == 32 or c[k + 1] == 10:
                out[N_COMMAS_SPACED] += 1
            else:
                out[N_COMMAS_TIGHT] += 1
        elif k > 0 and k + 1 < size and (code == 61 or code == 43 or code == 60 or code == 62):
            before = c[k - 1] == 32
            after = c[k + 1] == 32
            out[N_OPERATORS_SPACED] += int(before and after)
            out[N_OPERATORS_TIGHT] += int(before != after)
    out[N_UNBALANCED_BRACKETS] += abs(rounds) + abs(squares) + abs(curlies)


@inlined
def in_name(code):  # type: ignore[no-untyped-def]
    """Whether a code point may stand in an identifier."""
    return 97 <= code <= 122 or 65 <= code <= 90 or code == 95 or 48 <= code <= 57


@kernel
def name_signals(classes, c, out):  # type: ignore[no-untyped-def]
    """Adds how many identifiers there are, their lengths and their styles."""
    size = len(c)
    k = 0
    names = chars = snakes = camels = shorts = 0
    while k < size:
        if not in_name(c[k]):
            k += 1
            continue
        start = k
        underscore = joined = capital = humped = False
        while k < size and in_name(c[k]):
            is_capital = (class_of(classes, c[k]) & CAPITAL) != 0
            capital |= is_capital
            if k > start:
                humped |= is_capital and 97 <= c[k - 1] <= 122
                underscore |= c[k] == 95 and c[k - 1] != 95
                joined |= underscore and c[k] != 95
            k += 1
        if class_of(classes, c[start]) & DIGIT:
            continue
        length = k - start
        names += 1
        chars += length
        snakes += int(joined and not capital)
        camels += int(humped and not underscore)
        shorts += int(length == 1)
    out[N_NAMES] += names
    out[NAME_CHARS] += chars
    out[N_SNAKE_NAMES] += snakes
    out[N_CAMEL_NAMES] += camels
    out[N_SHORT_NAMES] += shorts
