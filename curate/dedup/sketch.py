"""Sketches of shingle sets and their LSH band keys, in one pass over Arrow's buffers.

`fast_similarity` is the FastSimilaritySketch of Dahlgaard, Knudsen and Thorup (2017, arXiv:1704.04370, algorithm 1): round i
throws each element into one of K bins with a fresh value; a bin keeps the least (round, value); rounds end when no bin is
empty. Two sketches agree in a bin with probability J, as MinHash's do, but with less variance on small sets, and a long text
costs one hash for each shingle instead of K. `minhash` is classic MinHash with datasketch's `affine32` permutations.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.dedup.exact import longest, text_buffers
from curate.dedup.shingles import document_shingles, in_chunks, shingle_room, shingle_sets, word_table

__all__ = ["SIGNATURE_VERSION", "Signatures", "SketchSettings", "shingle_sets", "sign", "sketch_values", "to_datasketch"]

SIGNATURE_VERSION = 1
"""Changes whenever any text's signature does under equal settings."""

_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_BAND_PRIME = np.uint64(0x9FB21C651E98DF25)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_ZERO = np.uint64(0)
_LOW = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)
_S33 = np.uint64(33)
_BYTE = np.uint64(0xFF)


@dataclass(frozen=True)
class SketchSettings:
    """What a signature depends on besides the text. Signatures of unequal settings are never compared."""

    kind: Literal["fast_similarity", "minhash"] = "fast_similarity"
    """Sketch: FastSimilaritySketch or classic MinHash."""
    k: int = 112
    """Length of the sketch."""
    bands: int = 18
    """LSH bands: documents that agree in all rows of one band are candidates."""
    rows: int = 6
    """Sketch entries in a band; bands * rows is at most k."""
    shingle: int = 5
    """Words in a shingle."""
    seed: int = 1
    """Seed of the hash functions; for minhash, datasketch's own."""
    key_bits: Literal[32, 64] = 32
    """Bits of a stored band key; a join of many documents takes further ones from the sketch (`Signatures.wide_keys`)."""

    def __post_init__(self) -> None:
        if self.kind not in ("fast_similarity", "minhash"):
            raise ValueError(f"kind = {self.kind!r}: it is fast_similarity or minhash")
        if not 1 <= self.k <= 65536 or self.bands < 1 or self.rows < 1 or self.bands * self.rows > self.k:
            raise ValueError(f"bands * rows = {self.bands} * {self.rows} must be from 1 to k = {self.k} (k at most 65536)")
        if not 1 <= self.shingle <= 1000:
            raise ValueError(f"shingle = {self.shingle}: it is from 1 to 1000 words")
        if self.key_bits not in (32, 64):
            raise ValueError(f"key_bits = {self.key_bits}: it is 32 or 64")
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed = {self.seed}: it is from 0 to 2^32 - 1")

    @property
    def fingerprint(self) -> str:
        """One string for all that signatures depend on, the algorithm's version included."""
        return f"{self.kind}:v{SIGNATURE_VERSION}:k{self.k}:b{self.bands}x{self.rows}:w{self.shingle}:s{self.seed}:key{self.key_bits}"


@dataclass(frozen=True)
class Signatures:
    """Signatures of documents in the order of their texts."""

    settings: SketchSettings
    """What they were made with."""
    bands: list[npt.NDArray[Any]]
    """A column of keys for each band, shape (documents,), uint32 or uint64 (`key_bits`)."""
    sketch: npt.NDArray[np.uint8]
    """The low byte of each sketch entry, shape (documents, k)."""
    shingles: npt.NDArray[np.int64]
    """Shingles of each document, repeats included, shape (documents,)."""

    def __len__(self) -> int:
        return len(self.shingles)

    def wide_keys(self, band: int, span: slice) -> npt.NDArray[np.uint64]:
        """Keys of 64 bits of a band, of some documents: stored ones of 32 are followed by a hash of the sketch entries they are made of."""
        keys = self.bands[band][span]
        if keys.dtype == np.uint64:
            return np.asarray(keys)
        out, rows = np.empty(len(keys), np.uint64), self.settings.rows
        _widen(keys, self.sketch[span, band * rows : (band + 1) * rows], out)
        return out

    @staticmethod
    def concatenate(parts: Sequence[Signatures]) -> Signatures:
        """Signatures of all parts in order.

        Raises:
            ValueError: When the parts were made with different settings, or there are none.
        """
        prints = {part.settings.fingerprint for part in parts}
        if len(prints) != 1:
            raise ValueError(f"signatures of different settings cannot be joined: {sorted(prints)}")
        return Signatures(
            parts[0].settings,
            [np.concatenate(columns) for columns in zip(*(part.bands for part in parts), strict=True)],
            np.concatenate([part.sketch for part in parts]),
            np.concatenate([part.shingles for part in parts]),
        )


@cache
def _multipliers(k: int, seed: int) -> npt.NDArray[np.uint64]:
    """Odd multipliers of the 2 k rounds, by splitmix64 from the seed."""
    mask = (1 << 64) - 1
    state, out = seed, []
    for _ in range(2 * k):
        state = (state + 0x9E3779B97F4A7C15) & mask
        x = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        out.append((x ^ (x >> 31)) | 1)
    return np.array(out, np.uint64)


@cache
def _permutations(k: int, seed: int) -> npt.NDArray[np.uint32]:
    """The odd factors and the offsets of datasketch's `affine32` scheme, shape (2, k)."""
    draw = np.random.RandomState(seed)
    factors = draw.randint(0, 1 << 31, k, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    return np.array([factors, draw.randint(0, 1 << 32, k, dtype=np.uint32)])


@numba.njit(nogil=True, cache=True)
def _fast_similarity(hashes, count, multipliers, sketch):  # type: ignore[no-untyped-def]
    """Fills `sketch` (uint64, K) with round << 32 | value."""
    k = len(sketch)
    bins = np.uint64(k)
    sketch[:] = _EMPTY
    empty = np.int64(k)
    for r in range(k):
        base = np.uint64(r) << _S32
        multiplier = multipliers[r]
        for i in range(count):
            x = hashes[i] * multiplier
            high = x >> _S32
            place = np.int64((high * bins) >> _S32)
            # Loads and stores without a branch: which bins improve cannot be predicted.
            old = sketch[place]
            sketch[place] = min(old, base | ((x ^ high) & _LOW))
            empty -= np.int64(old == _EMPTY)
        if empty == 0:
            return
    for b in range(k):
        if sketch[b] == _EMPTY:
            for i in range(count):
                x = hashes[i] * multipliers[k + b]
                sketch[b] = min(sketch[b], np.uint64(k + b) << _S32 | ((x ^ (x >> _S32)) & _LOW))


@numba.njit(nogil=True, cache=True)
def _minhash(hashes, count, factors, offsets, low, sketch):  # type: ignore[no-untyped-def]
    """Fills `sketch` (uint64, K) with MinHash values below 2^32; `low` is scratch (uint32, K).

    Each operation is wrapped to uint32, or numba widens all of them to 64 bits.
    """
    low[:] = np.uint32(0xFFFFFFFF)
    for first in range(0, count, 8):
        last = min(first + 8, count)
        h = (
            np.uint32(hashes[first]), np.uint32(hashes[min(first + 1, last - 1)]), np.uint32(hashes[min(first + 2, last - 1)]),
            np.uint32(hashes[min(first + 3, last - 1)]), np.uint32(hashes[min(first + 4, last - 1)]),
            np.uint32(hashes[min(first + 5, last - 1)]), np.uint32(hashes[min(first + 6, last - 1)]), np.uint32(hashes[last - 1]),
        )  # fmt: skip
        for j in range(len(low)):
            a, b, m = factors[j], offsets[j], low[j]
            m = min(m, np.uint32(np.uint32(a * h[0]) + b))
            m = min(m, np.uint32(np.uint32(a * h[1]) + b))
            m = min(m, np.uint32(np.uint32(a * h[2]) + b))
            m = min(m, np.uint32(np.uint32(a * h[3]) + b))
            m = min(m, np.uint32(np.uint32(a * h[4]) + b))
            m = min(m, np.uint32(np.uint32(a * h[5]) + b))
            m = min(m, np.uint32(np.uint32(a * h[6]) + b))
            m = min(m, np.uint32(np.uint32(a * h[7]) + b))
            low[j] = m
    for j in range(len(low)):
        sketch[j] = np.uint64(low[j])


@numba.njit(nogil=True, cache=True)
def _premix(hashes, count):  # type: ignore[no-untyped-def]
    """Datasketch's 32-bit finaliser over the low halves, in place."""
    for i in range(count):
        x = np.uint32(hashes[i])
        x = np.uint32(x ^ np.uint32(x >> np.uint32(16)))
        x = np.uint32(x * np.uint32(0x85EBCA6B))
        x = np.uint32(x ^ np.uint32(x >> np.uint32(13)))
        x = np.uint32(x * np.uint32(0xC2B2AE35))
        x = np.uint32(x ^ np.uint32(x >> np.uint32(16)))
        hashes[i] = np.uint64(x)


@numba.njit(nogil=True, cache=True)
def _emit(sketch, rows, keys, small, i):  # type: ignore[no-untyped-def]
    """Band keys (leading bits of a 64-bit hash of the band's entries) and small sketch of document i."""
    for band in range(keys.shape[0]):
        key = _ZERO
        for entry in range(band * rows, (band + 1) * rows):
            key = (key ^ sketch[entry]) * _BAND_PRIME
            key ^= key >> _S32
        key = (key ^ (key >> _S33)) * _MIX_1
        keys[band, i] = key
    for j in range(len(sketch)):
        x = sketch[j] * _MIX_2
        small[i, j] = np.uint8((x >> np.uint64(56)) & _BYTE)


@numba.njit(nogil=True, cache=True)
def _widen(keys, entries, out):  # type: ignore[no-untyped-def]
    """Keys of 32 bits, each followed by as many of a hash of `entries` (uint8, (documents, rows)) of the small sketch."""
    for i in range(len(keys)):
        more = _ZERO
        for j in range(entries.shape[1]):
            more = (more ^ np.uint64(entries[i, j])) * _BAND_PRIME
            more ^= more >> _S32
        out[i] = np.uint64(keys[i]) << _S32 | (more * _MIX_1) >> _S32


@numba.njit(nogil=True, cache=True)
def _sign(data, offsets, first, last, table, shingle, fast, multipliers, permutations, rows, keys, small, counts):  # type: ignore[no-untyped-def]
    """Signs documents first to last - 1."""
    k = small.shape[1]
    room = np.empty(shingle_room(longest(offsets, first, last)), np.uint64)
    sketch = np.empty(k, np.uint64)
    low = np.empty(k, np.uint32)
    for i in range(first, last):
        count = document_shingles(data, offsets[i], offsets[i + 1], table, shingle, room)
        counts[i] = count
        if fast:
            _fast_similarity(room, count, multipliers, sketch)
        else:
            _premix(room, count)
            _minhash(room, count, permutations[0], permutations[1], low, sketch)
        _emit(sketch, rows, keys, small, i)


@numba.njit(nogil=True, cache=True)
def _values(data, offsets, table, shingle, fast, multipliers, permutations, out):  # type: ignore[no-untyped-def]
    room = np.empty(shingle_room(longest(offsets, 0, len(offsets) - 1)), np.uint64)
    low = np.empty(out.shape[1], np.uint32)
    for i in range(len(offsets) - 1):
        count = document_shingles(data, offsets[i], offsets[i + 1], table, shingle, room)
        if fast:
            _fast_similarity(room, count, multipliers, out[i])
        else:
            _premix(room, count)
            _minhash(room, count, permutations[0], permutations[1], low, out[i])


def sign(texts: pa.LargeStringArray, settings: SketchSettings, threads: int = 1) -> Signatures:
    """Band keys and small sketches of texts.

    Args:
        texts: Arrow strings without nulls.
        settings: Sketch and bands.
        threads: Threads to work with; the result does not depend on it.

    Returns:
        One signature for each text. A text's signature depends on nothing but the text and the settings.
    """
    data, offsets = text_buffers(texts)
    rows = len(offsets) - 1
    keys = np.empty((settings.bands, rows), np.uint32 if settings.key_bits == 32 else np.uint64)
    small = np.empty((rows, settings.k), np.uint8)
    counts = np.empty(rows, np.int64)

    def part(first: int, last: int) -> None:
        _sign(
            data, offsets, first, last, word_table(), settings.shingle, settings.kind == "fast_similarity",
            _multipliers(settings.k, settings.seed), _permutations(settings.k, settings.seed), settings.rows, keys, small, counts,
        )  # fmt: skip

    chunks = in_chunks(rows, threads)
    if len(chunks) == 1:
        part(*chunks[0])
    else:
        with ThreadPoolExecutor(len(chunks)) as pool:
            list(pool.map(lambda chunk: part(*chunk), chunks))
    return Signatures(settings, list(keys), small, counts)


def sketch_values(texts: pa.LargeStringArray, settings: SketchSettings) -> npt.NDArray[np.uint64]:
    """Whole sketches: the share of equal entries of two rows estimates their Jaccard similarity.

    Args:
        texts: Arrow strings without nulls.
        settings: Sketch; its bands do not matter.

    Returns:
        Shape (texts, k), uint64; entries of minhash are below 2^32.
    """
    data, offsets = text_buffers(texts)
    out = np.empty((len(offsets) - 1, settings.k), np.uint64)
    _values(
        data, offsets, word_table(), settings.shingle, settings.kind == "fast_similarity", _multipliers(settings.k, settings.seed),
        _permutations(settings.k, settings.seed), out,
    )  # fmt: skip
    return out


def to_datasketch(values: npt.NDArray[np.uint64], settings: SketchSettings) -> list[Any]:
    """`datasketch.MinHash` objects of whole sketches.

    Args:
        values: From `sketch_values`, shape (texts, k).
        settings: What they were made with.

    Returns:
        For minhash, objects equal to those that datasketch makes itself from the low 32 bits of the shingle hashes
        (scheme `affine32`); for fast_similarity, `affine64` objects whose `jaccard` is the sketch's estimate and whose `merge`
        is the union's sketch, but which must not be updated.
    """
    from datasketch import MinHash

    if settings.kind == "fast_similarity":
        return [MinHash(num_perm=settings.k, hashvalues=row, scheme="affine64") for row in values]
    low = values.astype(np.uint32)
    return [MinHash(num_perm=settings.k, seed=settings.seed, hashvalues=row, scheme="affine32") for row in low]
