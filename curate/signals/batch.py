"""The pass over a batch: from Arrow's UTF-8 bytes and offsets to one row of integers a text, without a Python object a text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from curate.signals.code import code_signals
from curate.signals.compression import lz_bytes, new_table
from curate.signals.families import ALL, CODE, COMPRESSION, FILTERS, READING
from curate.signals.hashing import shift_for
from curate.signals.kernels import sources_digest
from curate.signals.lines import line_signals
from curate.signals.ngrams import duplicate_ngrams, top_ngrams, word_hashes
from curate.signals.tokenizer import english_rules, tokenize
from curate.signals.words import reading_signals, word_signals
from schemas.signals import SIGNALS

N_BYTES = SIGNALS.get_field_index("n_bytes")
N_CHARS = SIGNALS.get_field_index("n_chars")
LZ_BYTES = SIGNALS.get_field_index("lz_bytes")


@njit(nogil=True)
def is_ascii(data):  # type: ignore[no-untyped-def]
    """Whether no byte has its high bit set."""
    seen = np.uint8(0)
    for byte in data:
        seen |= byte
    return seen < 128


@njit(nogil=True)
def decode(data, codes):  # type: ignore[no-untyped-def]
    """Writes the code points of UTF-8 bytes; returns how many. Arrow guarantees valid text; bytes that are not give some code point."""
    n = 0
    k = 0
    size = len(data)
    while k < size:
        lead = np.uint32(data[k])
        extra = 0
        if lead >= 0xF0:
            lead, extra = lead & np.uint32(7), 3
        elif lead >= 0xE0:
            lead, extra = lead & np.uint32(15), 2
        elif lead >= 0xC0:
            lead, extra = lead & np.uint32(31), 1
        k += 1
        while extra > 0 and k < size:
            lead = (lead << np.uint32(6)) | (np.uint32(data[k]) & np.uint32(63))
            k += 1
            extra -= 1
        codes[n] = lead
        n += 1
    return n


@njit(nogil=True)
def count_newlines(c):  # type: ignore[no-untyped-def]
    """Line feeds of a text."""
    found = 0
    for code in c:
        found += code == 10
    return found


@njit(nogil=True)
def grown(array, size):  # type: ignore[no-untyped-def]
    """The array, or a new one of at least twice its length where it is shorter than `size`."""
    return array if len(array) >= size else np.empty(max(size, 2 * len(array)), array.dtype)


@njit(nogil=True)
def text_signals(rules, c, s, scratch, out, families):  # type: ignore[no-untyped-def]
    """Adds the signals of a text of at least one code point; `scratch` is what `new_scratch` gives, grown to the text."""
    prefix, ends, places, slots, keys, counts, words, grams, sieve, levels = scratch
    if families & CODE:
        code_signals(rules.classes, c, out)
    if families & FILTERS:
        line_signals(rules.classes, c, count_newlines(c), keys, out)
        n, _ = tokenize(rules, c, s, prefix, ends, places)
        word_signals(rules.classes, s, ends, n, out)
        if families & READING:
            reading_signals(rules.classes, s, ends, n, out)
        word_hashes(ends, n, prefix, rules.powers, words)
        top_ngrams(ends, n, words, keys, counts, grams, slots, sieve, out)
        duplicate_ngrams(ends, n, prefix, rules.powers, keys, grams, slots, sieve, levels, out)


@njit(nogil=True)
def new_scratch(size):  # type: ignore[no-untyped-def]
    """Buffers for texts of up to `size` code points: up to 100 bytes a code point."""
    slots = np.int64(1) << (np.uint64(64) - shift_for(2 * size + 4))
    return (
        np.empty(size + 1, np.uint64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int32),
        np.empty(slots, np.uint64),
        np.empty(slots, np.int32),
        np.empty(size, np.uint64),
        np.empty(size, np.uint64),
        np.empty(4 * slots, np.uint8),
        np.empty(size, np.uint8),
    )


@njit(nogil=True)
def fill_rows(rules, data, offsets, table, out, families):  # type: ignore[no-untyped-def]
    """Fills one row of `out` for each text data[offsets[i]:offsets[i + 1]]."""
    longest = 1
    for row in range(len(offsets) - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    scratch = new_scratch(longest)
    narrow = np.empty(longest, np.uint8)
    wide = np.empty(1, np.uint32)
    codes = np.empty(1, np.uint32)
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        text = data[start:end]
        out[row, N_BYTES] = end - start
        if start == end:
            continue
        if is_ascii(text):
            out[row, N_CHARS] = end - start
            text_signals(rules, text, narrow, scratch, out[row], families)
        else:
            codes, wide = grown(codes, end - start), grown(wide, end - start)
            size = decode(text, codes)
            out[row, N_CHARS] = size
            text_signals(rules, codes[:size], wide, scratch, out[row], families)
        if families & COMPRESSION:
            out[row, LZ_BYTES] = lz_bytes(data, start, end, table)


def _entry(digest: int) -> Callable[..., None]:
    """The compiled entry point; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def batch_signals(rules, data, offsets, table, out, families):  # type: ignore[no-untyped-def]
        if digest >= 0:
            fill_rows(rules, data, offsets, table, out, families)

    return batch_signals  # type: ignore[no-any-return]


batch_signals = _entry(sources_digest())


def buffers(texts: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The UTF-8 bytes of an array and the offsets of its texts, without a copy.

    Raises:
        TypeError: The array is not of large strings.
        ValueError: The array holds a null.
    """
    if not pa.types.is_large_string(texts.type):
        raise TypeError(f"texts must be large_string, not {texts.type}: cast the column with pc.cast(texts, pa.large_string())")
    if texts.null_count:
        raise ValueError(f"{texts.null_count} of {len(texts)} texts are null: quarantine them or fill them before signals are computed")
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or data is None:
        return np.zeros(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    places = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data, np.uint8), places


def signals_of(texts: pa.LargeStringArray) -> pa.RecordBatch:
    """See `curate.signals.compute_signals`."""
    data, offsets = buffers(texts)
    out = np.zeros((len(texts), len(SIGNALS)), np.int64)
    batch_signals(english_rules(), data, offsets, new_table(), out, ALL)
    columns = np.ascontiguousarray(out.T)
    return pa.record_batch([pa.array(column) for column in columns], schema=SIGNALS)
