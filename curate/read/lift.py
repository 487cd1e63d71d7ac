"""Takes the texts out of JSON lines without Python's lock, and leaves the little around them to the JSON parser.

A text is most of a line. It is decoded straight into UTF-8 here, and stands as ``""`` in what is left of its line, so that the parser
judges and reads everything else. A line of which this pass is not sure (no such field, or twice; a value that is no string; an escape that
is none; bytes that are not UTF-8) is not lifted: the parser gets it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from llvmlite import ir
from numba import njit, types
from numba.core.extending import intrinsic

from curate.signals import hashing
from curate.signals.hashing import EACH_BYTE, HIGH_BITS, load_word, store_word
from curate.signals.kernels import kernel, small, sources_digest

QUOTE, BACKSLASH, COMMA, NEWLINE, LETTER_U = b'"\\,\nu'
OBJECT, OBJECT_END, LIST, LIST_END = b"{}[]"
CONTROL = 0x20
"""Characters below it may not stand in a JSON string."""
QUOTES, BACKSLASHES, CONTROLS = (EACH_BYTE * np.uint64(byte) for byte in (QUOTE, BACKSLASH, CONTROL))
ESCAPES = np.zeros(256, np.uint8)
ESCAPES[list(b'"\\/bfnrt')] = list(b'"\\/\b\f\n\r\t')
DIGITS = np.full(256, 16, np.uint8)
DIGITS[list(b"0123456789abcdef")] = DIGITS[list(b"0123456789ABCDEF")] = range(16)
LINE, LINE_STOP, TEXT, TEXT_STOP, REST, REST_STOP, CHARACTERS, WHOLE = range(8)
"""Columns of what is known of a line: where it starts and stops, its text, the rest of it, the text's code points, whether it is lifted."""
LINES = 1 << 12
"""Lines lifted at once."""


class Line(NamedTuple):
    """A line of a run.

    Attributes:
        start: Where it starts.
        stop: Where it ends, without its line feed.
        rest: The line with an empty text; no bytes where it is not lifted.
        texts: Texts of the lines around it.
        row: Which of them is its own.
        characters: Code points of it.
        size: Bytes of it.
    """

    start: int
    stop: int
    rest: bytes
    texts: pa.LargeStringArray
    row: int
    characters: int
    size: int


def _first_set(typingctx, bits):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


first_set: Any = intrinsic(_first_set)
"""Place of the lowest bit set of a uint64 that is not 0."""


@small
def copy_plain(data, k, out, n):  # type: ignore[no-untyped-def]
    """Copies data[k:] to out[n:] up to a quote, a backslash or a control character; returns where that is, and the end of the copy.

    Up to eight bytes after it may be copied too.
    """
    while k + 8 <= len(data):
        word = load_word(data, k)
        store_word(out, n, word)
        quote, slash = word ^ QUOTES, word ^ BACKSLASHES
        found = (((quote - EACH_BYTE) & ~quote) | ((slash - EACH_BYTE) & ~slash) | ((word - CONTROLS) & ~word)) & HIGH_BITS
        if found != 0:
            plain = first_set(found) >> 3
            return k + plain, n + plain
        k += 8
        n += 8
    while k < len(data) and data[k] != QUOTE and data[k] != BACKSLASH and data[k] >= CONTROL:
        out[n] = data[k]
        k += 1
        n += 1
    return k, n


@small
def escaped_unit(digits, data, k):  # type: ignore[no-untyped-def]
    r"""The UTF-16 unit that \uXXXX at data[k:] stands for, -1 where there is none."""
    if k + 6 > len(data) or data[k] != BACKSLASH or data[k + 1] != LETTER_U:
        return -1
    unit = 0
    for j in range(k + 2, k + 6):
        digit = int(digits[data[j]])
        if digit == 16:
            return -1
        unit = unit * 16 + digit
    return unit


@small
def encode(code, out, n):  # type: ignore[no-untyped-def]
    """Writes a code point as UTF-8 to out[n:]; returns the end of it."""
    if code < 0x80:
        out[n] = code
        return n + 1
    more = 1 + int(code >= 0x800) + int(code >= 0x10000)
    out[n] = (0xFF00 >> (more + 1)) & 0xFF | code >> (6 * more)
    for j in range(1, more + 1):
        out[n + j] = 0x80 | code >> (6 * (more - j)) & 0x3F
    return n + 1 + more


@kernel
def string_value(escapes, digits, data, k, out, n):  # type: ignore[no-untyped-def]
    """Decodes the JSON string whose first character is data[k] to out[n:].

    Returns:
        The place after its closing quote, the end of the decoded text, and whether it is a string; the first is where it fails, if not.
    """
    while True:
        k, n = copy_plain(data, k, out, n)
        if k == len(data) or data[k] < CONTROL:
            return k, n, False
        if data[k] == QUOTE:
            return k + 1, n, True
        if k + 1 < len(data) and escapes[data[k + 1]] != 0:
            out[n] = escapes[data[k + 1]]
            k += 2
            n += 1
            continue
        code = escaped_unit(digits, data, k)
        if code < 0:
            return k, n, False
        k += 6
        if 0xD800 <= code < 0xE000:
            low = escaped_unit(digits, data, k)
            if code >= 0xDC00 or not 0xDC00 <= low < 0xE000:
                return k, n, False
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            k += 6
        n = encode(code, out, n)


@kernel
def code_points(data):  # type: ignore[no-untyped-def]
    """How many code points UTF-8 bytes hold."""
    count = 0
    for byte in data:
        count += int(byte & np.uint8(0xC0) != np.uint8(0x80))
    return count


@small
def is_name(name, data, first, stop):  # type: ignore[no-untyped-def]
    """Whether data[first:stop] is the name."""
    same = 0
    while same < len(name) and first + same < stop and data[first + same] == name[same]:
        same += 1
    return first + same == stop and same == len(name)


@small
def append(out, n, data, first, stop):  # type: ignore[no-untyped-def]
    """Copies data[first:stop] to out[n:]; returns the end of the copy."""
    for k in range(first, stop):
        out[n] = data[k]
        n += 1
    return n


@small
def skip_string(data, k):  # type: ignore[no-untyped-def]
    """Where the JSON string from data[k] on ends, at its closing quote or at what may not stand in it; and whether it has escapes."""
    escaped = False
    while k < len(data) and data[k] != QUOTE and data[k] >= CONTROL:
        if data[k] == BACKSLASH and k + 1 < len(data) and data[k + 1] >= CONTROL:
            escaped = True
            k += 1
        k += 1
    return k, escaped


@kernel
def lift_line(escapes, digits, name, data, k, texts, rests, places):  # type: ignore[no-untyped-def]
    """Lifts the text of the line that starts at data[k]; writes from the line's TEXT and REST on, and where they end.

    Returns:
        The end of the line, or some place in it where its text is not lifted; and whether it is.
    """
    n, rest = places[TEXT], places[REST]
    copied, depth, found = k, 0, False
    key, text = False, False  # whether a string is now a key of the outermost object, and whether a value is the text
    while k < len(data) and data[k] != NEWLINE:
        byte = data[k]
        if byte == QUOTE and text:
            rest = append(rests, rest, data, copied, k)
            rests[rest] = rests[rest + 1] = QUOTE
            rest += 2
            k, n, whole = string_value(escapes, digits, data, k + 1, texts, n)
            if not whole:
                return k, False
            copied, text = k, False
            continue
        if byte == QUOTE:
            first = k + 1
            k, escaped = skip_string(data, first)
            if k == len(data) or data[k] != QUOTE or (key and escaped):
                return k, False
            if key and is_name(name, data, first, k):
                if found:
                    return k, False
                found = text = True
            key = False
        elif byte in (OBJECT, LIST, OBJECT_END, LIST_END, COMMA):
            if text or (depth == 0 and byte == LIST):
                return k, False
            depth += int(byte in (OBJECT, LIST)) - int(byte in (OBJECT_END, LIST_END))
            key = depth == 1 and byte in (OBJECT, COMMA)
        k += 1
    places[TEXT_STOP], places[REST_STOP] = n, append(rests, rest, data, copied, k)
    places[CHARACTERS] = code_points(texts[places[TEXT] : n])
    return k, found and not text


def _entry(digest: int) -> Callable[..., int]:
    """The compiled entry point; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def lift_lines(escapes, digits, name, data, texts, rests, places):  # type: ignore[no-untyped-def]
        line = k = 0
        n = rest = np.int64(0)
        while digest >= 0 and k < len(data) and line < len(places):
            mine = places[line]
            mine[LINE], mine[TEXT], mine[REST] = k, n, rest
            k, whole = lift_line(escapes, digits, name, data, k, texts, rests, mine)
            mine[WHOLE] = whole
            if whole:
                n, rest = mine[TEXT_STOP], mine[REST_STOP]
            while k < len(data) and data[k] != NEWLINE:
                k += 1
            mine[LINE_STOP] = k
            k += 1
            line += 1
        return line

    return lift_lines  # type: ignore[no-any-return]


lift_lines = _entry(sources_digest(__file__, hashing.__file__))


class Lifter:
    """Lifts the texts of runs of lines.

    Args:
        field: the text's field, a key of the outermost object.
    """

    def __init__(self, field: str) -> None:
        self._name = np.frombuffer(field.encode(), np.uint8)
        self._rests = np.empty(0, np.uint8)
        self._places = np.empty((LINES, WHOLE + 1), np.int64)

    def lift(self, run: bytes) -> Iterator[Line]:
        """The lines of a run of whole lines; the last may lack its line feed."""
        data, first = np.frombuffer(run, np.uint8), 0
        if len(self._rests) <= len(data):  # a text that begins with the last byte, and so never ends, leaves one byte more
            self._rests = np.empty(2 * len(data) + 1, np.uint8)
        while first < len(data):
            texts = np.empty(len(data) - first + 8, np.uint8)
            places = self._places[: lift_lines(ESCAPES, DIGITS, self._name, data[first:], texts, self._rests, self._places)]
            yield from self._lines(places, texts, first)
            first += int(places[-1, LINE_STOP]) + 1

    def _lines(self, places: npt.NDArray[np.int64], texts: npt.NDArray[np.uint8], first: int) -> Iterator[Line]:
        array = _strings(texts, places[places[:, WHOLE] == 1])
        row, rests = 0, self._rests.data
        for start, stop, text, text_stop, rest, rest_stop, characters, whole in places.tolist():
            if whole and array is not None:
                yield Line(first + start, first + stop, bytes(rests[rest:rest_stop]), array, row, characters, text_stop - text)
                row += 1
            else:
                yield Line(first + start, first + stop, b"", array, 0, 0, 0)


def _strings(texts: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> pa.LargeStringArray | None:
    """The texts at these places, one after another; None where they are not all UTF-8, or there are none."""
    if len(places) == 0:
        return None
    offsets = np.append(places[:, TEXT], places[-1, TEXT_STOP])
    if 2 * offsets[-1] < len(texts):  # they are held until their row group is full, and most of the room is empty
        texts = texts[: offsets[-1]].copy()
    array = pa.Array.from_buffers(pa.large_string(), len(places), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return array
