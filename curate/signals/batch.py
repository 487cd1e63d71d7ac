"""The pass over a batch: from Arrow's UTF-8 bytes and offsets to one row of integers a text, without a Python object a text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from curate.signals.chunks import find_chunks
from curate.signals.code_points import ALPHA, SPACE, class_of
from curate.signals.hashing import HIGH_BITS, load_word, shift_for
from curate.signals.kernels import at, kernel, small, sources_digest
from curate.signals.lines import line_signals
from curate.signals.ngrams import duplicate_ngrams, gram_room, top_ngrams
from curate.signals.tokenizer import english_rules, tokenize
from curate.signals.words import WORD, reading_signals, word_signals
from schemas.signals import SIGNALS

N_BYTES = SIGNALS.get_field_index("n_bytes")
N_CHARS = SIGNALS.get_field_index("n_chars")
N_NEWLINES = SIGNALS.get_field_index("n_newlines")
N_ALPHA_CHARS = SIGNALS.get_field_index("n_alpha_chars")
N_DIGIT_CHARS = SIGNALS.get_field_index("n_digit_chars")
N_UPPER_CHARS = SIGNALS.get_field_index("n_upper_chars")
N_SPACE_CHARS = SIGNALS.get_field_index("n_space_chars")
BLOCK = 248
"""Bytes whose counts a byte holds, a whole number of machine words."""
ASCII = 128
SLOTS = 1 << 12
"""Slots in which a text's own alphabet is looked up, by the last bits of a code point; at most ASCII of them are taken."""
MAX_TEXT_BYTES = (1 << 31) - 1
"""Positions within a text are 32 bits wide."""


@kernel
def count_ascii(data, out):  # type: ignore[no-untyped-def]
    """Adds the characters of each class among the ASCII ones of UTF-8 bytes; returns the number of code points.

    Counts are kept in bytes over blocks, so that one instruction adds 64 of them; each sum is cut to a byte, or all would be 64 bits wide.
    """
    alphas = digits = capitals = spaces = newlines = others = np.int64(0)
    for first in range(0, len(data), BLOCK):
        letter = digit = capital = space = newline = other = np.uint8(0)
        for byte in data[first : min(first + BLOCK, len(data))]:
            letter = np.uint8(letter + np.uint8(np.uint8((byte | np.uint8(32)) - np.uint8(97)) < np.uint8(26)))
            digit = np.uint8(digit + np.uint8(np.uint8(byte - np.uint8(48)) < np.uint8(10)))
            capital = np.uint8(capital + np.uint8(np.uint8(byte - np.uint8(65)) < np.uint8(26)))
            white = (np.uint8(byte - np.uint8(9)) < np.uint8(5)) | (np.uint8(byte - np.uint8(28)) < np.uint8(5))
            space = np.uint8(space + np.uint8(white))
            newline = np.uint8(newline + np.uint8(byte == np.uint8(10)))
            other = np.uint8(other + np.uint8(np.uint8(byte - np.uint8(128)) < np.uint8(64)))
        alphas, digits, capitals = alphas + np.int64(letter), digits + np.int64(digit), capitals + np.int64(capital)
        spaces, newlines, others = spaces + np.int64(space), newlines + np.int64(newline), others + np.int64(other)
    out[N_ALPHA_CHARS], out[N_DIGIT_CHARS], out[N_UPPER_CHARS] = alphas, digits, capitals
    out[N_SPACE_CHARS], out[N_NEWLINES] = spaces, newlines
    return len(data) - others


@small
def code_at(data, k):  # type: ignore[no-untyped-def]
    """The code point at data[k], and where the next one starts; bytes that are not UTF-8, which Arrow rules out, give some code point."""
    lead = np.uint32(data[k])
    k += 1
    extra = 0
    if lead >= 0xF0:
        lead, extra = lead & np.uint32(7), 3
    elif lead >= 0xE0:
        lead, extra = lead & np.uint32(15), 2
    elif lead >= 0xC0:
        lead, extra = lead & np.uint32(31), 1
    while extra > 0 and k < len(data):
        lead = (lead << np.uint32(6)) | (np.uint32(data[k]) & np.uint32(63))
        k += 1
        extra -= 1
    return lead, k


@kernel
def decode(classes, data, codes):  # type: ignore[no-untyped-def]
    """Writes the code points of UTF-8 bytes; returns how many there are, and how many letters and spaces among those beyond ASCII."""
    n = k = alphas = spaces = 0
    size = len(data)
    while k < size:
        if k + 8 <= size and load_word(data, k) & HIGH_BITS == 0:
            for j in range(8):
                codes[np.uint64(n + j)] = at(data, k + j)
            n += 8
            k += 8
            continue
        if at(data, k) < ASCII:
            codes[np.uint64(n)] = at(data, k)
            n += 1
            k += 1
            continue
        code, k = code_at(data, k)
        codes[n] = code
        n += 1
        mask = class_of(classes, code)
        alphas += int(mask & ALPHA != 0)
        spaces += int(mask & SPACE != 0)
    return n, alphas, spaces


@kernel
def code_in_bytes(classes, data, own, points, slots, places, codes):  # type: ignore[no-untyped-def]
    """Like `decode`, a byte for each code point, by an alphabet of the text's own: ASCII, then what else the text holds in its order.

    Most texts beyond ASCII hold few other characters (quotes, dashes, accents), and kernels are half as fast on codes four bytes wide.

    Args:
        classes: The class of each code point.
        data: UTF-8 bytes.
        own: Receives the class of each byte from ASCII on.
        points: Receives the code point of each.
        slots: Scratch: SLOTS bytes, all 0, and again so afterwards.
        places: Scratch: as long as `points`.
        codes: Receives the bytes.

    Returns:
        How many bytes there are, letters and spaces among those beyond ASCII; -1 for the first where the alphabet has no room.
    """
    n = k = alphas = spaces = 0
    used = ASCII
    size = len(data)
    while k < size:
        if k + 8 <= size and load_word(data, k) & HIGH_BITS == 0:
            for j in range(8):
                codes[np.uint64(n + j)] = at(data, k + j)
            n += 8
            k += 8
            continue
        if at(data, k) < ASCII:
            codes[np.uint64(n)] = at(data, k)
            n += 1
            k += 1
            continue
        code, k = code_at(data, k)
        place = np.int64(code) & (SLOTS - 1)
        while slots[place] != 0 and points[slots[place]] != code:
            place = (place + 1) & (SLOTS - 1)
        if slots[place] == 0:
            if used == len(points):
                n = -1
                break
            slots[place], points[used], places[used], own[used] = used, code, place, class_of(classes, code)
            used += 1
        codes[n] = slots[place]
        n += 1
        mask = own[slots[place]]
        alphas += int(mask & ALPHA != 0)
        spaces += int(mask & SPACE != 0)
    for byte in range(ASCII, used):
        slots[places[byte]] = 0
    return n, alphas, spaces


@njit(nogil=True)
def grown(array, size):  # type: ignore[no-untyped-def]
    """The array, or a new one of at least twice its length where it is shorter than `size`."""
    return array if len(array) >= size else np.empty(max(size, 2 * len(array)), array.dtype)


@njit(nogil=True)
def chunk_room(size):  # type: ignore[no-untyped-def]
    """Buffers for `size` chunks: starts, stops, hashes, classes inside."""
    return np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.uint64), np.empty(size, np.uint32)


@njit(nogil=True)
def filter_signals(rules, c, s, words, lines, chunks, prefix, pieces, grams, out):  # type: ignore[no-untyped-def]
    """Adds the signals of words and lines of a text; returns its scratch (all arguments between `words` and `out`), grown to the text.

    A page of `s` and `words`, which are as long as the longest text, takes memory only once a text has touched it.
    """
    borders, hashes, kinds, vowels = words
    ends = borders[1:]
    if len(chunks[0]) < out[N_SPACE_CHARS] + 2:
        chunks = chunk_room(2 * out[N_SPACE_CHARS] + 2)
    starts, stops, keys, inners = chunks
    count, length = find_chunks(rules.classes, rules.points, c, s, starts, stops, keys, inners)
    lines = grown(lines, np.int64(1) << (np.uint64(64) - shift_for(2 * out[N_NEWLINES] + 4)))
    line_signals(rules.classes, rules.points, rules.powers, c, out[N_NEWLINES], count, starts, stops, keys, inners, lines, out)
    longest = 0
    for chunk in range(count):
        longest = max(longest, stops[chunk] - starts[chunk])
    prefix, pieces = grown(prefix, longest + 1), grown(pieces, 2 * longest)
    n = tokenize(rules, s, count, starts, stops, keys, inners, prefix, ends, hashes, kinds, pieces)
    word_signals(ends, hashes, kinds, n, out)
    reading_signals(s[:length], ends, kinds, n, vowels, out)
    if len(grams.places) < n:
        grams = gram_room(n)
    top_ngrams(borders, n, hashes, grams, out)
    duplicate_ngrams(s[:length], borders, n, hashes, rules.powers, grams, out)
    return lines, chunks, prefix, pieces, grams


@njit(nogil=True)
def fill_rows(rules, own, data, offsets, out):  # type: ignore[no-untyped-def]
    """Fills one row of `out` for each text data[offsets[i]:offsets[i + 1]]; `own` are rules whose classes and points are scratch."""
    longest = 1
    for row in range(len(offsets) - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    narrow, coded = np.empty(longest, np.uint8), np.empty(longest, np.uint8)
    wide, codes = np.empty(1, np.uint32), np.empty(1, np.uint32)
    slots, places = np.zeros(SLOTS, np.uint8), np.empty(len(own.points), np.int32)
    borders = np.empty(longest + 1, np.int32)
    borders[0] = 0
    words = borders, np.empty(longest, np.uint64), np.empty(longest, np.uint8), np.empty(longest + WORD, np.uint8)
    lines, chunks = np.empty(1, np.uint64), chunk_room(1)
    prefix, pieces, grams = np.empty(1, np.uint64), np.empty(1, np.int64), gram_room(1)
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        text = data[start:end]
        mine = out[row]
        mine[N_BYTES] = end - start
        if start == end:
            continue
        size = count_ascii(text, mine)
        mine[N_CHARS] = size
        in_bytes = True
        if size == end - start:
            coded[:size] = text
        else:
            size, alphas, spaces = code_in_bytes(rules.classes, text, own.classes, own.points, slots, places, coded)
            if size < 0:
                in_bytes = False
                codes, wide = grown(codes, end - start), grown(wide, end - start)
                size, alphas, spaces = decode(rules.classes, text, codes)
            mine[N_ALPHA_CHARS] += alphas
            mine[N_SPACE_CHARS] += spaces
        if in_bytes:
            lines, chunks, prefix, pieces, grams = filter_signals(
                own, coded[:size], narrow, words, lines, chunks, prefix, pieces, grams, mine
            )
        else:
            lines, chunks, prefix, pieces, grams = filter_signals(
                rules, codes[:size], wide, words, lines, chunks, prefix, pieces, grams, mine
            )


def _entry(digest: int) -> Callable[..., None]:
    """The compiled entry point; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def batch_signals(rules, own, data, offsets, out):  # type: ignore[no-untyped-def]
        if digest >= 0:
            fill_rows(rules, own, data, offsets, out)

    return batch_signals  # type: ignore[no-any-return]


batch_signals = _entry(sources_digest())


def buffers(texts: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The UTF-8 bytes of an array and the offsets of its texts, without a copy.

    Raises:
        TypeError: The array is not of large strings.
        ValueError: The array holds a null, or a text of more than MAX_TEXT_BYTES.
    """
    if not pa.types.is_large_string(texts.type):
        raise TypeError(f"texts must be large_string, not {texts.type}: cast the column with pc.cast(texts, pa.large_string())")
    if texts.null_count:
        raise ValueError(f"{texts.null_count} of {len(texts)} texts are null: quarantine them or fill them before signals are computed")
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or data is None:
        return np.zeros(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    places = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    if (longest := int(np.diff(places).max())) > MAX_TEXT_BYTES:
        raise ValueError(f"a text of {longest:,} bytes: signals take up to {MAX_TEXT_BYTES:,}; quarantine or split it")
    return np.frombuffer(data, np.uint8), places


def signals_of(texts: pa.LargeStringArray) -> pa.RecordBatch:
    """See `curate.signals.compute_signals`."""
    data, offsets = buffers(texts)
    out = np.zeros((len(texts), len(SIGNALS)), np.int64)
    rules = english_rules()
    own = rules._replace(classes=rules.classes[: len(rules.points)].copy(), points=rules.points.copy())
    batch_signals(rules, own, data, offsets, out)
    columns = np.ascontiguousarray(out.T)
    return pa.record_batch([pa.array(column) for column in columns], schema=SIGNALS)
