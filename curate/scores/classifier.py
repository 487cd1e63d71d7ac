"""A quality classifier that users train: logistic regression over hashed words and pairs of words (Joulin et al. 2016 in spirit).

A text's features are its distinct words and pairs of neighbours (words of ``curate.dedup.shingles``), hashed into buckets, each of value
one over the square root of their number, so that length alone moves nothing. Trained by AdaGrad (Duchi et al. 2011, equation 1, diagonal)
in one thread, classes weighed alike, in an order drawn from a fixed seed: the same texts give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.dedup.exact import content_hash, longest, text_buffers
from curate.dedup.shingles import document_shingles, shingle_room, sort_unique, word_table
from curate.scores.tensors import read_tensors, write_tensors
from schemas.errors import InputError

KIND = "hashed words and pairs, version 1"
BITS = 20
EPOCHS = 5
RATE = 0.1
TOLD_EVERY = 20_000
"""Texts between two words on how far a training is."""
HELD_OUT = 5
"""One text in so many is held out, by hash of its content, so that copies are on one side."""

CUTS = 257
"""Quantiles of length that are tried as thresholds of the baseline."""

_PAIR = np.uint64(0xA0761D6478BD642F)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_S33 = np.uint64(33)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@numba.njit(nogil=True, cache=True)
def _features(data, start, end, table, words, grams, distinct, heads):  # type: ignore[no-untyped-def]
    """Writes the sorted distinct hashes of a text's words and pairs to `distinct`; returns their number, at least 1."""
    count = document_shingles(data, start, end, table, 1, words)
    for i in range(count):
        grams[i] = words[i]
    for i in range(count - 1):
        h = (words[i] * _PAIR + words[i + 1]) * _MIX
        grams[count + i] = (h ^ (h >> _S33)) * _PAIR
    return sort_unique(grams, 2 * count - 1, distinct, heads)


@numba.njit(nogil=True, cache=True)
def _margin(distinct, count, shift, weights, bias):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(count):
        total += weights[np.int64(distinct[i] >> shift)]
    return bias + total / np.sqrt(count)


@numba.njit(nogil=True, cache=True)
def _score(data, offsets, table, shift, weights, bias, out):  # type: ignore[no-untyped-def]
    """Probability of being good of each text."""
    room = shingle_room(longest(offsets, 0, len(out)))
    words, grams, distinct = np.empty(room, np.uint64), np.empty(2 * room, np.uint64), np.empty(2 * room, np.uint64)
    heads = np.empty(4 * room + 2, np.int64)
    for text in range(len(out)):
        count = _features(data, offsets[text], offsets[text + 1], table, words, grams, distinct, heads)
        out[text] = 1.0 / (1.0 + np.exp(-_margin(distinct, count, shift, weights, bias)))


@numba.njit(nogil=True, cache=True)
def _train(data, offsets, table, shift, order, labels, importance, rate, weights, squares):  # type: ignore[no-untyped-def]
    """One pass of AdaGrad over the texts of `order`; the last entries of `weights` and `squares` are the bias's."""
    room = shingle_room(longest(offsets, 0, len(offsets) - 1))
    words, grams, distinct = np.empty(room, np.uint64), np.empty(2 * room, np.uint64), np.empty(2 * room, np.uint64)
    heads = np.empty(4 * room + 2, np.int64)
    last = len(weights) - 1
    for text in order:
        count = _features(data, offsets[text], offsets[text + 1], table, words, grams, distinct, heads)
        margin = _margin(distinct, count, shift, weights, weights[last])
        gradient = (1.0 / (1.0 + np.exp(-margin)) - labels[text]) * importance[text]
        each = gradient / np.sqrt(count)
        for i in range(count):
            bucket = np.int64(distinct[i] >> shift)
            squares[bucket] += each * each
            if squares[bucket] > 0:
                weights[bucket] -= rate * each / np.sqrt(squares[bucket])
        squares[last] += gradient * gradient
        if squares[last] > 0:
            weights[last] -= rate * gradient / np.sqrt(squares[last])


@dataclass(frozen=True)
class Classifier:
    """A trained classifier: a float32 weight for each of 2**bits buckets, and a bias."""

    weights: NDArray[np.float32]
    bias: float

    def score(self, texts: pa.LargeStringArray) -> Floats:
        """Probability of being good of each text, (texts,) float64, classes taken as equally frequent."""
        data, offsets = text_buffers(texts)
        out = np.empty(len(texts))
        _score(data, offsets, word_table(), _shift(len(self.weights)), self.weights, self.bias, out)
        return out

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        write_tensors(path, {"weights": self.weights, "bias": np.array([self.bias], np.float32)}, {"kind": KIND})


def load_classifier(path: Path) -> Classifier:
    """Read a file of ``Classifier.save``.

    Raises:
        InputError: there is none, or it is damaged or of another kind.
    """
    arrays, note = read_tensors(path)
    weights = arrays.get("weights", np.empty(0, np.float32))
    if note.get("kind") != KIND or "bias" not in arrays or weights.ndim != 1 or len(weights).bit_count() != 1 or len(weights) < 2:
        raise InputError(f"a classifier of another kind: {note.get('kind')}", where=str(path), fix="train it anew with this version")
    return Classifier(weights, float(arrays["bias"].reshape(-1)[0]))


def _shift(buckets: int) -> np.uint64:
    return np.uint64(65 - buckets.bit_length())


def train(texts: pa.LargeStringArray, good: NDArray[np.bool_], tell: Callable[[int, int], None] = lambda done, total: None) -> Classifier:
    """Train on labelled texts of both kinds; ``tell`` takes how many are done over all passes, and how many will be."""
    data, offsets = text_buffers(texts)
    weights, squares = np.zeros((1 << BITS) + 1), np.zeros((1 << BITS) + 1)
    importance = np.where(good, 0.5 / good.mean(), 0.5 / (1 - good.mean()))
    draw = np.random.Generator(np.random.PCG64(0))
    labels = good.astype(np.float64)
    for epoch in range(EPOCHS):
        order = draw.permutation(len(good))
        for start in range(0, len(order), TOLD_EVERY):
            part = order[start : start + TOLD_EVERY]
            _train(data, offsets, word_table(), _shift(1 << BITS), part, labels, importance, RATE, weights, squares)
            tell(epoch * len(order) + start + len(part), EPOCHS * len(order))
    return Classifier(weights[:-1].astype(np.float32), float(np.float32(weights[-1])))


@dataclass(frozen=True)
class Judged:
    """How well texts are told apart: area under the ROC curve, and accuracy as the mean of both kinds' shares told rightly."""

    auc: float
    accuracy: float


@dataclass(frozen=True)
class Trained:
    """A classifier with what it was trained and held out on, judged on held-out texts beside their length in bytes alone."""

    classifier: Classifier
    good: int
    bad: int
    held_out: int
    judged: Judged
    length_only: Judged


def train_and_judge(
    good: pa.LargeStringArray, bad: pa.LargeStringArray, tell: Callable[[int, int], None] = lambda done, total: None
) -> Trained:
    """Train on four fifths of the texts and judge on the rest; ``tell`` as in ``train``.

    Raises:
        InputError: a kind has too few texts on either side.
    """
    texts = pa.concat_arrays([good, bad])
    labels = np.arange(len(texts)) < len(good)
    held = content_hash(texts)[:, 0] % np.uint64(HELD_OUT) == 0
    for name, mine in (("good", labels), ("bad", ~labels)):
        if not (mine & held).any() or not (mine & ~held).any():
            raise InputError(f"{int(mine.sum())} {name} texts are too few", where="classify", fix="give some tens of each kind at least")
    made = train(texts.filter(pa.array(~held)), labels[~held], tell)
    scores = made.score(texts.filter(pa.array(held)))
    lengths = np.diff(text_buffers(texts)[1]).astype(np.float64)
    judged = Judged(auc(scores, labels[held]), _accuracy(scores > 0.5, labels[held]))
    return Trained(made, len(good), len(bad), int(held.sum()), judged, _by_length(lengths, labels, held))


def _by_length(lengths: Floats, labels: NDArray[np.bool_], held: NDArray[np.bool_]) -> Judged:
    """The best that a threshold on length does; direction and threshold are chosen on the texts trained on."""
    sign = 1.0 if auc(lengths[~held], labels[~held]) >= 0.5 else -1.0
    values = sign * lengths
    cuts = np.quantile(values[~held], np.linspace(0, 1, CUTS), method="lower")
    best = max(cuts.tolist(), key=lambda cut: _accuracy(values[~held] >= cut, labels[~held]))
    return Judged(auc(values[held], labels[held]), _accuracy(values[held] >= best, labels[held]))


def _accuracy(said: NDArray[np.bool_], labels: NDArray[np.bool_]) -> float:
    return float(((said[labels]).mean() + (~said[~labels]).mean()) / 2)


def auc(scores: Floats, labels: NDArray[np.bool_]) -> float:
    """Probability that a good text scores above a bad one, ties counted half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positive = int(labels.sum())
    return float((rank[labels].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive)))
