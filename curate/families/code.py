"""Signals of source code that need no parser: indentation, line length, spacing around operators, brackets, names.

They let a recipe order well-formatted source first and drop generated or damaged files. Everything is a count over UTF-8 bytes, so any
language works.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from curate.families.counts import counted
from curate.signals import code_points
from curate.signals.code_points import SPACE, class_table
from curate.signals.kernels import kernel, sources_digest

LONG_LINE = 100

(MAX_LINE_CHARS, N_LONG_LINES, N_TRAILING_SPACE_LINES, N_TAB_INDENTS, N_SPACE_INDENTS, N_MIXED_INDENTS, N_UNEVEN_INDENTS) = range(7)
(N_INDENT_JUMPS, N_UNBALANCED_BRACKETS, N_OPERATORS_SPACED, N_OPERATORS_TIGHT, N_COMMAS_SPACED, N_COMMAS_TIGHT) = range(7, 13)
(N_SNAKE_NAMES, N_CAMEL_NAMES, N_SHORT_NAMES, N_NAMES, NAME_CHARS) = range(13, 18)

SMALL, CAPITAL, UNDERSCORE, DIGIT, NAME = np.uint8(1), np.uint8(2), np.uint8(4), np.uint8(8), np.uint8(16)
"""What a byte is in a name; a capital's bit follows a small letter's, so that a shift compares neighbours."""
BLOCK = 120
"""Bytes whose brackets, opening less closing, fit a signed byte."""


@lru_cache(maxsize=1)
def _tables() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """What each byte is in a name, and whether each code point of the Basic Multilingual Plane is white space (none lies beyond)."""
    kinds = np.zeros(256, np.uint8)
    for characters, kind in ((ascii_lowercase, SMALL), (ascii_uppercase, CAPITAL), ("_", UNDERSCORE), (digits, DIGIT)):
        kinds[list(characters.encode())] = kind | NAME
    return kinds, (class_table()[: 1 << 16] & SPACE != 0).astype(np.uint8)


@kernel
def code_line(spaces_of, c, start, end, depth, out):  # type: ignore[no-untyped-def]
    """Adds the layout of the line c[start:end]; `depth` is the indentation of the line before, the line's own is returned."""
    inner = np.int64(0)
    for byte in c[start:end]:
        inner += np.int64(byte & 192 == 128)
    length = end - start - inner
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
    if k >= end or spaces_of[code_at(c, k, end)]:
        return depth
    last = end - 1
    while last > k and c[last] & 192 == 128:
        last -= 1
    out[N_TRAILING_SPACE_LINES] += int(spaces_of[code_at(c, last, end)])
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
def code_at(c, k, end):  # type: ignore[no-untyped-def]
    """The code point whose UTF-8 begins at c[k]; 0 for one of four bytes, none of which is white space."""
    code = np.int64(c[k])
    if code < 0xC0 or code >= 0xF0:
        return code if code < 0x80 else np.int64(0)
    if code < 0xE0:
        return (code & 31) << 6 | (np.int64(c[k + 1]) & 63) if k + 1 < end else np.int64(0)
    return (code & 15) << 12 | (np.int64(c[k + 1]) & 63) << 6 | (np.int64(c[k + 2]) & 63) if k + 2 < end else np.int64(0)


@kernel
def symbol_signals(c, out):  # type: ignore[no-untyped-def]
    """Adds bracket balance and the spacing of commas and operators, in blocks whose counts a byte holds (see `count_ascii`)."""
    size = len(c)
    rounds = squares = curlies = commas = spaced_commas = spaced = tight = np.int64(0)
    for first in range(1, size - 1, BLOCK):
        stop = min(first + BLOCK, size - 1)
        before, here, after = c[first - 1 : stop - 1], c[first:stop], c[first + 1 : stop + 1]
        r = s = u = m = n = p = t = np.uint8(0)
        for k in range(len(here)):
            code, following = here[k], after[k]
            r = np.uint8(r + np.uint8(code == 40) - np.uint8(code == 41))
            s = np.uint8(s + np.uint8(code == 91) - np.uint8(code == 93))
            u = np.uint8(u + np.uint8(code == 123) - np.uint8(code == 125))
            comma = np.uint8(code == 44)
            m = np.uint8(m + comma)
            n = np.uint8(n + (comma & (np.uint8(following == 32) | np.uint8(following == 10))))
            operator = np.uint8(code == 61) | np.uint8(code == 43) | np.uint8(code == 60) | np.uint8(code == 62)
            left, right = np.uint8(before[k] == 32), np.uint8(following == 32)
            p = np.uint8(p + (operator & left & right))
            t = np.uint8(t + (operator & (left ^ right)))
        rounds, squares, curlies = rounds + np.int8(r), squares + np.int8(s), curlies + np.int8(u)
        commas, spaced_commas = commas + np.int64(m), spaced_commas + np.int64(n)
        spaced, tight = spaced + np.int64(p), tight + np.int64(t)
    for k in range(0, size, max(size - 1, 1)):  # the first and the last, which have a neighbour on one side alone
        code = c[k]
        rounds += int(code == 40) - int(code == 41)
        squares += int(code == 91) - int(code == 93)
        curlies += int(code == 123) - int(code == 125)
    if size > 1 and c[0] == 44:
        commas += 1
        spaced_commas += int(c[1] == 32 or c[1] == 10)
    out[N_UNBALANCED_BRACKETS] += abs(rounds) + abs(squares) + abs(curlies)
    out[N_COMMAS_SPACED], out[N_COMMAS_TIGHT] = spaced_commas, commas - spaced_commas
    out[N_OPERATORS_SPACED], out[N_OPERATORS_TIGHT] = spaced, tight


@kernel
def name_signals(kinds, c, out):  # type: ignore[no-untyped-def]
    """Adds how many identifiers there are, their lengths and their styles."""
    size = len(c)
    names = chars = snakes = camels = shorts = 0
    k = 0
    while k < size:
        kind = kinds[c[k]]
        if not kind & NAME:
            k += 1
            continue
        start, digit = k, kind & DIGIT
        # The first character begins no hump, and an underscore before it none inside.
        before, seen, humped, under, joined = UNDERSCORE, np.uint8(0), np.uint8(0), np.uint8(0), np.uint8(0)
        while kind & NAME:
            seen |= kind
            humped |= np.uint8(before << 1) & kind & CAPITAL
            under |= kind & ~before & UNDERSCORE
            joined |= under & ~kind
            before = kind
            k += 1
            if k == size:
                break
            kind = kinds[c[k]]
        if not digit:
            names += 1
            chars += k - start
            snakes += int(joined != 0 and seen & CAPITAL == 0)
            camels += int(humped != 0 and under == 0)
            shorts += int(k - start == 1)
    out[N_NAMES], out[NAME_CHARS] = names, chars
    out[N_SNAKE_NAMES], out[N_CAMEL_NAMES], out[N_SHORT_NAMES] = snakes, camels, shorts


def _entry(digest: int) -> Callable[..., None]:
    """The compiled entry point; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def count(kinds, spaces_of, data, offsets, out):  # type: ignore[no-untyped-def]
        if digest < 0:
            return
        for row in range(len(out)):
            text, mine = data[offsets[row] : offsets[row + 1]], out[row]
            if len(text) == 0:
                continue
            start, depth = 0, 0
            while start < len(text):
                end = start
                while end < len(text) and text[end] != 10:
                    end += 1
                depth = code_line(spaces_of, text, start, end, depth, mine)
                start = end + 1
            symbol_signals(text, mine)
            name_signals(kinds, text, mine)

    return count  # type: ignore[no-any-return]


_count = _entry(sources_digest(__file__, code_points.__file__))


def code_signals(texts: pa.LargeStringArray) -> pa.RecordBatch:
    """The layout and names of each text.

    Args:
        texts: Any Unicode texts, empty ones too; no nulls.

    Returns:
        One row a text in the order of the texts, columns of `schemas.families`.
    """
    return counted("code", texts, partial(_count, *_tables()))
