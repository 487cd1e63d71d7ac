"""Hashes for exact deduplication: equal for texts that differ in nothing but the amount and kind of white space.

Normalisation: each run of white space (by `str.isspace`) counts as one space, at the ends as none; every other byte counts
as it is, without Unicode normalisation or case folding. The hash is not cryptographic: two of 10^12 honest texts collide
with probability below 10^-14, but someone who sets out to make two texts collide can.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.signals.hashing import EACH_BYTE, HIGH_BITS, load_word, store_word

EXACT_VERSION = 1
"""Changes whenever `content_hash` of any text does."""

_A = np.uint64(0x9E3779B97F4A7C15)
_B = np.uint64(0xC2B2AE3D27D4EB4F)
_C = np.uint64(0x165667B19E3779F9)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_S29 = np.uint64(29)
_S32 = np.uint64(32)
_S33 = np.uint64(33)
_S8, _S63 = np.uint64(8), np.uint64(63)
_SPACES, _AFTER_SPACES, _SEVEN_BITS = (EACH_BYTE * np.uint64(byte) for byte in (0x20, 0x21, 0x7F))
_FIRST_BYTE, _NONE = np.uint64(0x80), np.uint64(0)


@numba.njit(nogil=True, cache=True, inline="always")
def _space_at(data, at, end):  # type: ignore[no-untyped-def]
    """Bytes of the white-space character beyond ASCII at `at`; 0 where there is none."""
    byte = data[at]
    if byte == 0xC2 and at + 1 < end:  # U+0085, U+00A0
        return 2 * np.int64(data[at + 1] == 0x85 or data[at + 1] == 0xA0)
    if byte < 0xE1 or byte > 0xE3 or at + 2 >= end:
        return np.int64(0)
    second, third = data[at + 1], data[at + 2]
    if byte == 0xE2 and second == 0x80:  # U+2000 to U+200A, U+2028, U+2029, U+202F
        return 3 * np.int64(third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF)
    # U+1680, U+205F, U+3000
    single = (
        (byte == 0xE1 and second == 0x9A and third == 0x80)
        or (byte == 0xE2 and second == 0x81 and third == 0x9F)
        or (byte == 0xE3 and second == 0x80 and third == 0x80)
    )
    return 3 * np.int64(single)


@numba.njit(nogil=True, cache=True, inline="always")
def _mix(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> _S33)) * _MIX_1
    x = (x ^ (x >> _S33)) * _MIX_2
    return x ^ (x >> _S33)


@numba.njit(nogil=True, cache=True, inline="always")
def _is_folded(word, after_space):  # type: ignore[no-untyped-def]
    """Whether eight bytes are ASCII whose only white space is single spaces; and whether the last of them is one."""
    low = (word - _AFTER_SPACES) & ~word & HIGH_BITS
    spaces = ~((word ^ _SPACES) + _SEVEN_BITS) & HIGH_BITS
    double = spaces & ((spaces << _S8) | (_FIRST_BYTE if after_space else _NONE))
    return ((word & HIGH_BITS) | (low ^ spaces) | double) == 0, spaces >> _S63 != 0


@numba.njit(nogil=True, cache=True)
def _fold(data, start, end, out):  # type: ignore[no-untyped-def]
    """Writes the normalised bytes to `out`; returns their number."""
    count, after_space, at = np.int64(0), True, start
    while at < end:
        if at + 8 <= end:
            word = load_word(data, at)
            folded, last = _is_folded(word, after_space)
            if folded:
                store_word(out, count, word)
                at, count, after_space = at + 8, count + 8, last
                continue
        stop = min(at + 8, end)
        while at < stop:
            byte = data[at]
            size = np.int64(1)
            space = (byte == 32) | ((byte >= 9) & (byte <= 13)) | ((byte >= 28) & (byte <= 31))
            if byte == 0xC2 or 0xE1 <= byte <= 0xE3:
                wide = _space_at(data, at, end)
                space, size = wide > 0, max(wide, np.int64(1))
            at += size
            # No branch on white space: the store is repeated until the place moves on.
            out[count] = np.uint8(32) if space else byte
            count += np.int64(not (space & after_space))
            after_space = space
    return count - np.int64(after_space and count > 0)


@numba.njit(nogil=True, cache=True)
def fold_hash(data, start, end, room):  # type: ignore[no-untyped-def]
    """The two 64-bit lanes of the normalised bytes of data[start:end].

    `room` is scratch: at least `fold_room(end - start)` entries of uint64.
    """
    folded = room.view(np.uint8)
    length = _fold(data, start, end, folded)
    folded[length : length + 8] = 0
    low, high = _B, _C
    for i in range(length // 8 + 1):
        block = room[i]
        low = (low ^ block) * _A
        low ^= low >> _S32
        high = (high ^ (block * _C)) * _B
        high ^= high >> _S29
    return _mix(low + np.uint64(length)), _mix(high + np.uint64(length))


@numba.njit(nogil=True, cache=True, inline="always")
def fold_room(size):  # type: ignore[no-untyped-def]
    """Entries of scratch that `size` bytes need: the bytes, and a block of zeros."""
    return size // 8 + 2


@numba.njit(nogil=True, cache=True)
def longest(offsets, first, last):  # type: ignore[no-untyped-def]
    """Bytes of the longest of documents first to last - 1."""
    most = np.int64(0)
    for i in range(first, last):
        most = max(most, np.int64(offsets[i + 1] - offsets[i]))
    return most


@numba.njit(nogil=True, cache=True)
def _hashes(data, offsets, out):  # type: ignore[no-untyped-def]
    room = np.empty(fold_room(longest(offsets, 0, len(out))), np.uint64)
    for i in range(len(out)):
        out[i, 0], out[i, 1] = fold_hash(data, offsets[i], offsets[i + 1], room)


def text_buffers(texts: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Bytes and offsets of Arrow strings, without a copy.

    Args:
        texts: `large_string` (or `string`) array without nulls; slices are followed.

    Returns:
        (data, offsets): text i is data[offsets[i]:offsets[i + 1]], UTF-8.

    Raises:
        ValueError: For nulls.
        TypeError: For another type.
    """
    if texts.null_count:
        raise ValueError(f"{texts.null_count} of {len(texts)} texts are null: drop them, or fill them with empty strings")
    if not (pa.types.is_large_string(texts.type) or pa.types.is_string(texts.type)):
        raise TypeError(f"texts are {texts.type}: a large_string array is needed")
    offset_type = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, offset_buffer, data_buffer = texts.buffers()
    if offset_buffer is None or not len(texts):
        return np.zeros(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    offsets = np.frombuffer(offset_buffer, offset_type, len(texts) + 1, texts.offset * np.dtype(offset_type).itemsize)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return data, offsets.astype(np.int64, copy=False)


def content_hash(texts: pa.LargeStringArray) -> npt.NDArray[np.uint64]:
    """128-bit hashes of normalised texts (see the module's docstring).

    Args:
        texts: Arrow strings without nulls.

    Returns:
        Shape (texts, 2), uint64; equal rows are exact duplicates.
    """
    data, offsets = text_buffers(texts)
    out = np.empty((len(offsets) - 1, 2), np.uint64)
    _hashes(data, offsets, out)
    return out
