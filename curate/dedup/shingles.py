"""Word shingles of text as 64-bit hashes, straight from Arrow's buffers.

A word is a run of alphanumeric characters, marks and underscores, lower-cased by single code points. In scripts written
without spaces (Han, kana, Thai, Lao, Khmer, Burmese) each character is a word. A shingle is `shingle` words in a row.
A text of fewer words has one shingle: the hash of its white-space-folded bytes, so short texts are equal only when they
compare exactly. Hash constants are fixed for ever: they are part of every stored signature.
"""

from __future__ import annotations

import unicodedata
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.dedup.exact import fold_hash, longest, text_buffers

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]

TABLE_SIZE = 0x20000
"""Code points below are looked up; 0x20000 to 0x3FFFF are Han characters, and what lies above is no part of a word."""

ALONE = 1 << 31
"""Flag of code points that are words by themselves."""

# Scripts written without spaces between words.
_UNSPACED = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F),
)  # fmt: skip

# Letters, digits and marks of Unicode 15 and 15.1: no Python may see a word where an older one sees none.
_AFTER_UNICODE_14 = (
    (0x0CF3, 0x0CF3), (0x0ECE, 0x0ECE), (0x10EFD, 0x10EFF), (0x1123F, 0x11241), (0x11F00, 0x11F59), (0x1342F, 0x1342F),
    (0x13439, 0x13455), (0x1B132, 0x1B132), (0x1B155, 0x1B155), (0x1D2C0, 0x1D2D3), (0x1DF25, 0x1DF2A), (0x1E030, 0x1E08F),
    (0x1E4D0, 0x1E4F9),
)  # fmt: skip

_LETTER_PRIME = np.uint64(0x9E3779B97F4A7C15)
_WORD_PRIME = np.uint64(0xD6E8FEB86659FD93)
_ROLL_PRIME = np.uint64(0xA0761D6478BD642F)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_ZERO = np.uint64(0)
_ALONE = np.uint64(ALONE)
_S32 = np.uint64(32)
_S33 = np.uint64(33)


@cache
def word_table() -> UInt64:
    """Folded code point of each word character, `ALONE` added where it is a word by itself; 0 elsewhere. Shape (0x20000,).

    Marks that compose a letter are word characters, emoji selectors and enclosing marks are not.
    """
    table = np.zeros(TABLE_SIZE, np.uint64)
    for code in range(TABLE_SIZE):
        char = chr(code)
        if char == "_" or char.isalnum() or (unicodedata.category(char) in ("Mn", "Mc") and not 0xFE00 <= code <= 0xFE0F):
            lower = char.lower()
            table[code] = ord(lower) if len(lower) == 1 else code
    for first, last in _UNSPACED:
        span = table[first : last + 1]
        span[span > 0] += np.uint64(ALONE)
    for first, last in _AFTER_UNICODE_14:
        table[first : last + 1] = 0
    return table


@numba.njit(nogil=True, cache=True, inline="always")
def _sequence(data, at, end):  # type: ignore[no-untyped-def]
    """Code point at `at` and its length in bytes; a malformed sequence is (0, 1)."""
    lead = np.int64(data[at])
    size = 2 if lead < 0xE0 else (3 if lead < 0xF0 else 4)
    if lead < 0xC0 or at + size > end:
        return np.int64(0), 1
    code = lead & (0x7F >> size)
    for step in range(1, size):
        code = (code << 6) | (np.int64(data[at + step]) & 0x3F)
    return code, size


@numba.njit(nogil=True, cache=True)
def _words(data, start, end, table, out):  # type: ignore[no-untyped-def]
    """Writes the hash of each word of data[start:end] to `out`; returns their number. `h` is 0 while no word is open."""
    count = np.int64(0)
    h = _ZERO
    at = start
    while at < end:
        byte = data[at]
        if byte < 128:
            # No branch on the character: the store is repeated until a word's end moves the place on.
            f = table[byte]
            at += 1
            out[count] = h
            count += np.int64((f == _ZERO) & (h != _ZERO))
            h = (h ^ f) * (_LETTER_PRIME if f != _ZERO else _ZERO)
            continue
        code, size = _sequence(data, at, end)
        at += size
        if code < TABLE_SIZE:
            f = table[code]
        else:
            f = np.uint64(code) | _ALONE if code < 0x40000 else _ZERO
        if f == _ZERO or f >= _ALONE:
            out[count] = h
            count += np.int64(h != _ZERO)
            h = _ZERO
            if f != _ZERO:
                out[count] = f * _LETTER_PRIME
                count += 1
        else:
            h = (h ^ f) * _LETTER_PRIME
    if h != _ZERO:
        out[count] = h
        count += 1
    return count


@numba.njit(nogil=True, cache=True)
def document_shingles(data, start, end, table, shingle, out):  # type: ignore[no-untyped-def]
    """Shingle hashes of data[start:end] in text order, repeats included, into `out`; returns their number, at least 1.

    `out` needs `shingle_room(end - start)` entries: it holds the words first.
    """
    words = _words(data, start, end, table, out)
    if words < shingle:
        out[0] = fold_hash(data, start, end, out)[0]
        return 1
    for i in range(words):
        w = out[i]
        w = (w ^ (w >> _S32)) * _WORD_PRIME
        out[i] = w ^ (w >> _S32)
    top = np.uint64(1)
    for _ in range(shingle):
        top *= _ROLL_PRIME
    s = _ZERO
    for i in range(shingle - 1):
        s = (s + out[i]) * _ROLL_PRIME
    leaving = _ZERO
    count = words - shingle + 1
    for i in range(count):
        s = (s + out[i + shingle - 1]) * _ROLL_PRIME - leaving * top
        leaving = out[i] * _ROLL_PRIME
        x = s ^ (s >> _S33)
        x = x * _MIX_1
        x = x ^ (x >> _S33)
        x = x * _MIX_2
        out[i] = x ^ (x >> _S33)
    return count


@numba.njit(nogil=True, cache=True, inline="always")
def shingle_room(size):  # type: ignore[no-untyped-def]
    """Most words in `size` bytes, and two over: a word and its end take two bytes."""
    return size // 2 + 2


@numba.njit(nogil=True, cache=True)
def sort_unique(values, count, out, heads):  # type: ignore[no-untyped-def]
    """Writes the sorted distinct hashes of values[:count] to `out`; returns their number.

    Hashes are uniform: one scatter by their leading bits leaves them within a few places of where they belong.

    Args:
        values: Hashes.
        count: How many.
        out: At least `count` entries, not `values`.
        heads: Scratch, at least 2 * count + 2 entries of int64.
    """
    bits = 1
    while (1 << bits) < count:
        bits += 1
    shift = np.uint64(64 - bits)
    heads[: (1 << bits) + 1] = 0
    for i in range(count):
        heads[np.int64(values[i] >> shift) + 1] += 1
    for b in range(1 << bits):
        heads[b + 1] += heads[b]
    for i in range(count):
        group = np.int64(values[i] >> shift)
        out[heads[group]] = values[i]
        heads[group] += 1
    for i in range(1, count):
        value = out[i]
        j = i
        while j > 0 and out[j - 1] > value:
            out[j] = out[j - 1]
            j -= 1
        out[j] = value
    kept = 0
    for i in range(count):
        if i == 0 or out[i] != out[kept - 1]:
            out[kept] = out[i]
            kept += 1
    return kept


@numba.njit(nogil=True, cache=True)
def _sets(data, offsets, first, last, table, shingle, sets, counts):  # type: ignore[no-untyped-def]
    """Appends the sorted sets of documents first to last - 1 to `sets`; returns its length."""
    room = np.empty(shingle_room(longest(offsets, first, last)), np.uint64)
    heads = np.empty(2 * len(room) + 2, np.int64)
    filled = 0
    for i in range(first, last):
        count = document_shingles(data, offsets[i], offsets[i + 1], table, shingle, room)
        count = sort_unique(room, count, sets[filled:], heads)
        counts[i] = count
        filled += count
    return filled


def in_chunks(rows: int, threads: int) -> list[tuple[int, int]]:
    """Contiguous ranges that cover range(rows), at most `threads` of them."""
    cuts = np.linspace(0, rows, max(1, min(threads, rows)) + 1).astype(int)
    return list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))


def shingle_sets(texts: pa.LargeStringArray, shingle: int = 5, threads: int = 1) -> tuple[UInt64, Int64]:
    """The set of shingle hashes of each text.

    Args:
        texts: Arrow strings without nulls.
        shingle: Words per shingle.
        threads: Threads to work with; the result does not depend on it.

    Returns:
        (hashes, offsets): the set of text i is hashes[offsets[i]:offsets[i + 1]], sorted, without repeats, never empty.
    """
    data, offsets = text_buffers(texts)
    rows = len(offsets) - 1
    counts = np.zeros(rows + 1, np.int64)

    def part(first: int, last: int) -> UInt64:
        sets = np.empty(int(offsets[last] - offsets[first]) // 2 + 2 * (last - first), np.uint64)
        filled = _sets(data, offsets, first, last, word_table(), shingle, sets, counts[1:])
        return sets[:filled].copy()

    chunks = in_chunks(rows, threads)
    if len(chunks) == 1:
        parts = [part(*chunks[0])]
    else:
        with ThreadPoolExecutor(len(chunks)) as pool:
            parts = list(pool.map(lambda chunk: part(*chunk), chunks))
    return np.concatenate(parts), np.cumsum(counts)
