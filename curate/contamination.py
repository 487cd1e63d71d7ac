"""Finds text of evaluation sets in documents by word n-grams, straight from Arrow's buffers.

Words are those of ``curate.dedup.shingles``: lower-cased runs of letters, digits and marks. An item of at least ``ngram`` words gives all
its n-grams; a shorter one matches as a whole. A hash of each lies in an open-addressing table, behind a bit map that stays in cache;
hashes have 64 bits, so that a false match in 10^12 words against 10^6 n-grams has a probability of about a twentieth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.dedup.exact import longest, text_buffers
from curate.dedup.shingles import document_shingles, shingle_room, word_table

CONTAMINATION_VERSION = 2
"""Changes whenever equal texts and files of items give other matches."""

_ROLL = np.uint64(0xA0761D6478BD642F)
_LENGTH = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_ONE = np.uint64(1)
_S6 = np.uint64(6)
_S20 = np.uint64(20)
_S33 = np.uint64(33)
_LOW6 = np.uint64(63)


@numba.njit(nogil=True, cache=True)
def _prefixes(words, count, prefix):  # type: ignore[no-untyped-def]
    """Writes the hash of each prefix of a list of word hashes: count + 1 of them."""
    prefix[0] = np.uint64(0)
    for i in range(count):
        prefix[i + 1] = prefix[i] * _ROLL + words[i]


@numba.njit(nogil=True, cache=True, inline="always")
def _gram(prefix, at, size, power):  # type: ignore[no-untyped-def]
    """Hash of `size` words from word `at`; `power` is the base to that power."""
    h = prefix[at + size] - prefix[at] * power + np.uint64(size) * _LENGTH
    h = (h ^ (h >> _S33)) * _MIX_1
    h = (h ^ (h >> _S33)) * _MIX_2
    return h ^ (h >> _S33)


@numba.njit(nogil=True, cache=True)
def _power(size):  # type: ignore[no-untyped-def]
    power = _ONE
    for _ in range(size):
        power *= _ROLL
    return power


@numba.njit(nogil=True, cache=True)
def _item_grams(data, offsets, table, ngram, shortest, hashes, items, sizes):  # type: ignore[no-untyped-def]
    """Writes hash, item and size of every n-gram to look for; returns their number."""
    room = np.empty(shingle_room(longest(offsets, 0, len(offsets) - 1)), np.uint64)
    prefix = np.empty(len(room) + 1, np.uint64)
    filled = 0
    for item in range(len(offsets) - 1):
        words = document_shingles(data, offsets[item], offsets[item + 1], table, 1, room)
        if words < shortest:
            continue
        size = min(ngram, words)
        power = _power(size)
        _prefixes(room, words, prefix)
        for at in range(words - size + 1):
            hashes[filled], items[filled], sizes[filled] = _gram(prefix, at, size, power), item, size
            filled += 1
    return filled


@numba.njit(nogil=True, cache=True)
def _fill(hashes, slots, bitmap):  # type: ignore[no-untyped-def]
    """Fills the table with the numbers of distinct hashes (-1 where free), and the bit map."""
    mask, bits = np.int64(len(slots) - 1), np.uint64(len(bitmap) * 64 - 1)
    for i in range(len(hashes)):
        slot = np.int64(hashes[i]) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = i
        bit = (hashes[i] >> _S20) & bits
        bitmap[np.int64(bit >> _S6)] |= _ONE << (bit & _LOW6)


@numba.njit(nogil=True, cache=True)
def _overlaps(data, offsets, table, lengths, hashes, owners, slots, bitmap, item, matches):  # type: ignore[no-untyped-def]
    """Writes the first item that each text shares an n-gram with (-1 for none), and the places of the text that match."""
    room = np.empty(shingle_room(longest(offsets, 0, len(item))), np.uint64)
    prefix = np.empty(len(room) + 1, np.uint64)
    mask, bits = np.int64(len(slots) - 1), np.uint64(len(bitmap) * 64 - 1)
    for text in range(len(item)):
        words = document_shingles(data, offsets[text], offsets[text + 1], table, 1, room)
        _prefixes(room, words, prefix)
        first, found = np.int64(-1), 0
        for size in lengths:
            power = _power(size)
            for at in range(words - size + 1):
                h = _gram(prefix, at, size, power)
                bit = (h >> _S20) & bits
                if not (bitmap[np.int64(bit >> _S6)] >> (bit & _LOW6)) & _ONE:
                    continue
                slot = np.int64(h) & mask
                while slots[slot] >= 0:
                    if hashes[slots[slot]] == h:
                        found += 1
                        owner = owners[slots[slot]]
                        first = owner if first < 0 else min(first, owner)
                        break
                    slot = (slot + 1) & mask
        item[text], matches[text] = first, found


class ItemIndex:
    """The n-grams of evaluation items, to be looked for in documents."""

    def __init__(self, items: Sequence[str], ngram: int = 13, shortest: int = 1) -> None:
        """Builds the index.

        Args:
            items: texts of evaluation items, in order of preference for being named.
            ngram: words of an n-gram.
            shortest: items of fewer words are not looked for.
        """
        data, offsets = text_buffers(pa.array(items, pa.large_string()))
        room = int(sum(len(item) // 2 + 2 for item in map(str.encode, items)))
        hashes, owners, sizes = np.empty(room, np.uint64), np.empty(room, np.int64), np.empty(room, np.int64)
        filled = _item_grams(data, offsets, word_table(), ngram, shortest, hashes, owners, sizes)
        distinct, first = np.unique(hashes[:filled], return_index=True)
        self.looked_for = len(np.unique(owners[:filled]))
        slots = np.full(1 << max(4, (2 * len(distinct)).bit_length()), -1, np.int64)
        bitmap = np.zeros(1 << max(4, len(distinct).bit_length() - 2), np.uint64)
        _fill(distinct, slots, bitmap)
        self._index: tuple[Any, ...] = (np.unique(sizes[:filled]), distinct, owners[first], slots, bitmap)

    def overlaps(self, texts: pa.LargeStringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Which texts share an n-gram with an item.

        Args:
            texts: Arrow strings without nulls.

        Returns:
            (item, matches), one a text: number of the first item that it shares an n-gram with, -1 for none; and at how many places.
        """
        data, offsets = text_buffers(texts)
        item, matches = np.empty(len(texts), np.int64), np.empty(len(texts), np.int64)
        lengths, hashes, owners, slots, bitmap = self._index
        _overlaps(data, offsets, word_table(), lengths, hashes, owners, slots, bitmap, item, matches)
        return item, matches
