"""Masking of personal data and keys: each is replaced by its kind in square brackets, as in [EMAIL]."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from curate.dedup.exact import text_buffers
from curate.edit.keys import block_at, key_at, secret_at
from curate.edit.personal import email_at, iban_at, ipv4_at, ipv6_at, is_digit, is_letter, is_word, phone_at
from curate.edit.record import Edited, Failed
from schemas.edits import MASK_KINDS

MASK_VERSION = 2
"""Raised whenever the outcome for any text changes."""

EMAIL, IP, PHONE, IBAN, KEY = range(len(MASK_KINDS))
_MASKS = [f"[{kind.upper()}]".encode() for kind in MASK_KINDS]
_MASK_BYTES = np.frombuffer(b"".join(_MASKS), np.uint8)
_MASK_ENDS = np.cumsum([0, *(len(mask) for mask in _MASKS)])


@njit(nogil=True)
def span_at(data, at, last, begin, end, on):  # type: ignore[no-untyped-def]
    """The span of what stands at `at` and its kind, nothing before `last` being looked at; kind -1 where there is nothing."""
    byte = data[at]
    if is_letter(byte):
        if at > begin and is_word(data[at - 1]):
            return 0, 0, -1
        stop = iban_at(data, at, begin, end) if on & (1 << IBAN) and byte <= 90 else 0
        if stop:
            return at, stop, IBAN
        stop = key_at(data, at, begin, end) if on & (1 << KEY) else 0
        return at, stop, KEY if stop else -1
    if byte == 64:
        start, stop = email_at(data, at, max(begin, last), end) if on & (1 << EMAIL) else (0, 0)
        return start, stop, EMAIL if stop else -1
    if is_digit(byte) or byte == 43 or byte == 40:
        if is_digit(byte):
            if at > begin and is_word(data[at - 1]):
                return 0, 0, -1
            if on & (1 << IP):
                stop = ipv4_at(data, at, begin, end)
                if stop == 0 and (byte == 50 or byte == 51):
                    stop = ipv6_at(data, at, begin, end)
                if stop:
                    return at, stop, IP
        stop = phone_at(data, at, begin, end) if on & (1 << PHONE) else 0
        return at, stop, PHONE if stop else -1
    if byte == 45 and on & (1 << KEY):
        stop = block_at(data, at, end)
        return at, stop, KEY if stop else -1
    if (byte == 61 or byte == 58) and on & (1 << KEY):
        start, stop = secret_at(data, at, max(begin, last), end)
        return start, stop, KEY if stop else -1
    return 0, 0, -1


def _entry(digest: int) -> Callable[..., Any]:
    """The compiled entry points; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def find(data, offsets, on, asked):  # type: ignore[no-untyped-def]
        spans = np.empty((1024, 4), np.int64)
        count = 0
        for row in range(len(offsets) - 1):
            begin, end = offsets[row], offsets[row + 1]
            at = last = begin
            while at < end:
                if not asked[data[at]] or digest < 0:
                    at += 1
                    continue
                start, stop, kind = span_at(data, at, last, begin, end, on)
                if kind < 0:
                    at += 1
                    continue
                if count == len(spans):
                    more = np.empty((2 * count, 4), np.int64)
                    more[:count] = spans
                    spans = more
                spans[count, 0], spans[count, 1], spans[count, 2], spans[count, 3] = row, start, stop, kind
                count += 1
                at = last = stop
        return spans[:count]

    return find


def _digest() -> int:
    """63 bits of a hash of the sources of the finders."""
    here = Path(__file__).parent
    content = b"".join((here / name).read_bytes() for name in ("personal.py", "keys.py"))
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


_find = _entry(_digest())


@njit(nogil=True, cache=True)
def _replace(data, offsets, row_of, start_of, stop_of, kind_of, out, new_offsets):  # type: ignore[no-untyped-def]
    span, to = 0, 0
    for row in range(len(offsets) - 1):
        at = offsets[row]
        while span < len(row_of) and row_of[span] == row:
            size = start_of[span] - at
            out[to : to + size] = data[at : start_of[span]]
            to += size
            for k in range(_MASK_ENDS[kind_of[span]], _MASK_ENDS[kind_of[span] + 1]):
                out[to] = _MASK_BYTES[k]
                to += 1
            at = stop_of[span]
            span += 1
        size = offsets[row + 1] - at
        out[to : to + size] = data[at : offsets[row + 1]]
        to += size
        new_offsets[row + 1] = to


def mask(texts: pa.LargeStringArray, kinds: Sequence[str] = MASK_KINDS) -> Edited:
    """Texts with personal data and keys masked.

    Args:
        texts: large strings without nulls.
        kinds: which of `schemas.edits.MASK_KINDS` are masked.
    """
    data, offsets = text_buffers(texts)
    on = sum(1 << position for position, kind in enumerate(MASK_KINDS) if kind in kinds)
    asked = np.zeros(256, np.bool_)
    asked[list(b"@+(-=:0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")] = True
    row, start, stop, kind = np.ascontiguousarray(_find(data, offsets, on, asked).T)
    widths = np.diff(_MASK_ENDS)[kind]
    removed = np.zeros((len(texts), len(MASK_KINDS)), np.int64)
    added, counts = np.zeros_like(removed), np.zeros_like(removed)
    np.add.at(counts, (row, kind), 1)
    np.add.at(removed, (row, kind), stop - start)
    np.add.at(added, (row, kind), widths)
    out = np.empty(int(offsets[-1] - offsets[0]) + int(widths.sum()), np.uint8)
    new_offsets = np.zeros(len(offsets), np.int64)
    _replace(data, offsets, row, start, stop, kind, out, new_offsets)
    new = pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(new_offsets), pa.py_buffer(out[: new_offsets[-1]]))
    return Edited(new, MASK_KINDS, counts, removed, added, Failed.none())
