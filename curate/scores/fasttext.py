"""Signals of fastText models (Joulin et al. 2017): the probability of a label, by a compiled loop over Arrow buffers.

A text's vector is the mean of the input rows of its words, of their character n-grams and of word n-grams, as fastText makes them of one
line: all white space separates words, and the end of the text is the word </s>. Sums are in float64, so results differ from fastText's
own in their last digits, and fastText adds 1e-5 to what it shows. Six decimals are kept.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.dedup.exact import text_buffers
from curate.scores.fasttext_file import HIERARCHICAL, LABEL, SOFTMAX, FastTextModel, read_model
from schemas.errors import RecipeError, nearest

FASTTEXT_VERSION = 1
"""Raised whenever the same model and text give another number."""

_OFFSET, _PRIME = np.uint32(2166136261), np.uint32(16777619)
_WORD_NGRAM = np.uint64(116049371)
_PREFIX = np.frombuffer(LABEL, np.uint8)
_DECIMALS = 6


@numba.njit(nogil=True, cache=True)
def _hash(data, start, end):  # type: ignore[no-untyped-def]
    """FNV-1a as fastText has it: bytes are signed."""
    value = _OFFSET
    for k in range(start, end):
        value = np.uint32(np.uint32(value ^ np.uint32(np.int8(data[k]))) * _PRIME)
    return value


@numba.njit(nogil=True, cache=True)
def _fill(words, ends, slots):  # type: ignore[no-untyped-def]
    """Fills an open-addressing table of word numbers, -1 where free; of equal words the first counts."""
    mask = len(slots) - 1
    for word in range(len(ends) - 1):
        slot = np.int64(_hash(words, ends[word], ends[word + 1])) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = word


@numba.njit(nogil=True, cache=True)
def _find(words, ends, slots, data, start, end, value):  # type: ignore[no-untyped-def]
    """Number of the word data[start:end], whose hash is known; -1 for none."""
    mask = len(slots) - 1
    slot = np.int64(value) & mask
    while slots[slot] >= 0:
        word = slots[slot]
        first = ends[word]
        if ends[word + 1] - first == end - start:
            k = 0
            while k < end - start and words[first + k] == data[start + k]:
                k += 1
            if k == end - start:
                return word
        slot = (slot + 1) & mask
    return np.int64(-1)


@numba.njit(nogil=True, cache=True)
def _row(bucket, known, pruned, kept, rows):  # type: ignore[no-untyped-def]
    """Row of the input of a bucket; -1 where a pruned model has none."""
    if not pruned:
        return known + bucket
    low, high = 0, len(kept)
    while low < high:
        middle = (low + high) // 2
        if kept[middle] < bucket:
            low = middle + 1
        else:
            high = middle
    return known + np.int64(rows[low]) if low < len(kept) and kept[low] == bucket else np.int64(-1)


@numba.njit(nogil=True, cache=True)
def _add(hidden, matrix, row):  # type: ignore[no-untyped-def]
    if row < 0:
        return 0
    for i in range(len(hidden)):
        hidden[i] += np.float64(matrix[row, i])
    return 1


@numba.njit(nogil=True, cache=True)
def _byte(data, start, end, k):  # type: ignore[no-untyped-def]
    """Byte k of the word between angle brackets."""
    return np.uint8(60) if k == 0 else (np.uint8(62) if k == end - start + 1 else data[start + k - 1])


@numba.njit(nogil=True, cache=True)
def _add_subwords(hidden, matrix, data, start, end, sizes, known, pruned, kept, rows):  # type: ignore[no-untyped-def]
    """Adds the rows of a word's character n-grams; `sizes` is least, most, word n-grams and buckets."""
    least, most, _, buckets = sizes
    count, size = 0, end - start + 2
    for i in range(size):
        if _byte(data, start, end, i) & 0xC0 == 0x80:
            continue
        value, j, n = _OFFSET, i, 1
        while j < size and n <= most:
            value = np.uint32(np.uint32(value ^ np.uint32(np.int8(_byte(data, start, end, j)))) * _PRIME)
            j += 1
            while j < size and _byte(data, start, end, j) & 0xC0 == 0x80:
                value = np.uint32(np.uint32(value ^ np.uint32(np.int8(_byte(data, start, end, j)))) * _PRIME)
                j += 1
            if n >= least and not (n == 1 and (i == 0 or j == size)):
                count += _add(hidden, matrix, _row(np.int64(value) % buckets, known, pruned, kept, rows))
            n += 1
    return count


@numba.njit(nogil=True, cache=True)
def _vectors(data, offsets, words, ends, slots, matrix, sizes, pruned, kept, rows, eos, out, counts):  # type: ignore[no-untyped-def]
    """Writes the sum of each text's input rows and how many they are."""
    _, most, ngrams, buckets = sizes
    known = len(ends) - 1
    longest = 0
    for text in range(len(counts)):
        longest = max(longest, offsets[text + 1] - offsets[text])
    hashes = np.empty(longest // 2 + 2, np.int32)
    for text in range(len(counts)):
        at, stop, n, count = offsets[text], offsets[text + 1], 0, 0
        hidden = out[text]
        ended = False
        while not ended:
            while at < stop and (data[at] == 32 or 9 <= data[at] <= 13 or data[at] == 0):
                at += 1
            start = at
            while at < stop and not (data[at] == 32 or 9 <= data[at] <= 13 or data[at] == 0):
                at += 1
            source, first, last = (data, start, at) if at > start else (eos, np.int64(0), np.int64(len(eos)))
            value = _hash(source, first, last)
            word = _find(words, ends, slots, source, first, last, value)
            ended = last - first == len(eos) and (source[first:last] == eos).all()
            label = last - first >= len(_PREFIX) and (source[first : first + len(_PREFIX)] == _PREFIX).all()
            if word < 0 and label:
                continue
            if word >= 0:
                count += _add(hidden, matrix, word)
            if most > 0 and not ended:
                count += _add_subwords(hidden, matrix, source, first, last, sizes, known, pruned, kept, rows)
            hashes[n] = np.int32(value)
            n += 1
        for i in range(n if ngrams > 1 else 0):
            value = np.uint64(np.int64(hashes[i]))
            for j in range(i + 1, min(n, i + ngrams)):
                value = value * _WORD_NGRAM + np.uint64(np.int64(hashes[j]))
                if pruned and len(kept) == 0:
                    continue
                count += _add(hidden, matrix, _row(np.int64(value % np.uint64(buckets)), known, pruned, kept, rows))
        counts[text] = count


@numba.njit(nogil=True, cache=True)
def _margins(hidden, output, wanted, out):  # type: ignore[no-untyped-def]
    """Writes the product of each vector and each wanted row of the output; one after another, so that no order of sums is a library's."""
    for text in range(len(hidden)):
        for k in range(len(wanted)):
            total = 0.0
            for i in range(hidden.shape[1]):
                total += hidden[text, i] * np.float64(output[wanted[k], i])
            out[text, k] = total


class FastText:
    """A model and what looks words up in it."""

    def __init__(self, model: FastTextModel) -> None:
        self.model = model
        self.slots = np.full(1 << max(4, (2 * len(model.ends)).bit_length()), -1, np.int64)
        _fill(model.words, model.ends, self.slots)

    def score(self, texts: pa.LargeStringArray, label: int) -> pa.DoubleArray:
        """Probability of a label in each text; null where the model knows nothing of a text.

        Args:
            texts: Arrow strings without nulls.
            label: its number.
        """
        model = self.model
        data, offsets = text_buffers(texts)
        data = data.view()
        data.flags.writeable = False  # one type for compiled code, whatever the buffer
        hidden, counts = np.zeros((len(texts), model.input.shape[1])), np.zeros(len(texts), np.int64)
        sizes = np.array(
            [model.least, model.most if model.buckets and (not model.pruned or len(model.kept)) else 0, model.ngrams, model.buckets]
        )
        eos = np.frombuffer(b"</s>", np.uint8)
        tables = (model.words, model.ends, self.slots, model.input, sizes, model.pruned, model.kept, model.rows, eos)
        _vectors(data, offsets, *tables, hidden, counts)
        hidden /= np.maximum(counts, 1)[:, None]
        return pa.array(np.round(self._probability(hidden, label), _DECIMALS), mask=counts == 0)

    def _probability(self, hidden: NDArray[np.float64], label: int) -> NDArray[np.float64]:
        model = self.model
        wanted = {HIERARCHICAL: model.paths[label] if model.paths else [], SOFTMAX: list(range(len(model.labels)))}.get(model.loss, [label])
        margins = np.empty((len(hidden), len(wanted)))
        _margins(hidden, model.output, np.array(wanted, np.int64), margins)
        if model.loss == SOFTMAX:
            shares = np.exp(margins - margins.max(axis=1, keepdims=True))
            return np.asarray(shares[:, label] / shares.sum(axis=1))
        right = 1 / (1 + np.exp(-np.clip(margins, -700, 700)))
        return np.prod(np.where(model.codes[label], right, 1 - right), axis=1) if model.loss == HIERARCHICAL else np.asarray(right[:, 0])


@lru_cache(maxsize=2)
def load_fasttext(path: str, content: str) -> FastText:
    """The model of a file of that content, read once in each process."""
    return FastText(read_model(Path(path)))


def label_number(model: FastTextModel, label: str, where: str) -> int:
    """Number of a label, its prefix left out or not.

    Raises:
        RecipeError: the model does not know it; says the nearest.
    """
    names = [name.removeprefix(LABEL.decode()) for name in model.labels]
    wanted = label.removeprefix(LABEL.decode())
    if wanted not in names:
        raise RecipeError(f"the model has no label {label!r}{nearest(wanted, names)}", where=where, fix="correct it")
    return names.index(wanted)
