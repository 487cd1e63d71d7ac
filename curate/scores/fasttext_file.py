"""Reads supervised models of fastText's own format, .bin and quantised .ftz (versions 11 and 12); nothing in them is ever run.

A file from a stranger is hostile input: every length is checked against the bytes there are, every index that scoring will follow against
the matrix it leads into. Quantised matrices are brought back to numbers (Joulin et al. 2016, "FastText.zip", section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from schemas.errors import InputError

MAGIC, VERSIONS, SUPERVISED = 793712314, (11, 12), 3
HIERARCHICAL, NEGATIVE, SOFTMAX, ONE_VS_ALL = 1, 2, 3, 4
"""Losses by fastText's numbers."""
LABEL = b"__label__"
CENTROIDS = 256
MOST_NUMBERS = 1 << 32
"""Numbers of a matrix that a quantised file may come to."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class FastTextModel:
    """A model as scoring needs it.

    Attributes:
        loss: one of the four losses.
        ngrams: most words of a word n-gram.
        least: fewest characters of a character n-gram.
        most: most characters of one; 0 for none.
        buckets: hash buckets of n-grams.
        words: bytes of all words, one after another.
        ends: where each begins in them, and the end of the last, shape (words + 1,).
        labels: the labels, with their prefix.
        kept: sorted buckets that a pruned model keeps; empty where it is not pruned.
        rows: row of the input, after the words, of each of those.
        pruned: whether only kept buckets have a row.
        input: (words + buckets, dimension).
        output: (labels, dimension).
        paths: rows of the output on the way from each label to the root of the tree, for the hierarchical loss.
        codes: which way the tree goes there.
    """

    loss: int
    ngrams: int
    least: int
    most: int
    buckets: int
    words: NDArray[np.uint8]
    ends: Ints
    labels: list[str]
    kept: NDArray[np.int32]
    rows: NDArray[np.int32]
    pruned: bool
    input: Floats
    output: Floats
    paths: list[list[int]]
    codes: list[list[bool]]


class Damaged(ValueError):
    """What is wrong with a file."""


class _Reader:
    """Bytes with a place in them; whatever reaches beyond them is refused."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.data, self.at = data, 0

    def take(self, kind: str, count: int = 1) -> Any:
        """The next `count` values of a numpy type, a copy."""
        item = np.dtype(kind)
        if count < 0 or count > (len(self.data) - self.at) // item.itemsize:
            raise Damaged(f"it ends within {count:,} values at byte {self.at:,}")
        stop = self.at + count * item.itemsize
        values = np.frombuffer(self.data[self.at : stop].tobytes(), item)
        self.at = stop
        return values

    def one(self, kind: str) -> int:
        """The next value."""
        return int(self.take(kind)[0])


def read_model(path: Path) -> FastTextModel:
    """Read a supervised model.

    Raises:
        InputError: there is none, or it is damaged or of another kind.
    """
    try:
        data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), fix="check the path") from error
    try:
        return _model(_Reader(np.asarray(data)))
    except Damaged as error:
        raise InputError(
            f"no supervised fastText model: {error}", where=str(path), fix="give a .bin or .ftz file of `fasttext supervised`"
        ) from error


def _model(file: _Reader) -> FastTextModel:
    magic, version = file.one("<i4"), file.one("<i4")
    if magic != MAGIC or version not in VERSIONS:
        raise Damaged(f"it begins with {magic}, version {version}")
    dimension, _, _, _, _, ngrams, loss, kind, buckets, least, most, _ = (int(value) for value in file.take("<i4", 12))
    file.take("<f8")
    if kind != SUPERVISED or loss not in (HIERARCHICAL, NEGATIVE, SOFTMAX, ONE_VS_ALL):
        raise Damaged(f"its kind is {kind} and its loss {loss}")
    if version == VERSIONS[0]:
        most = 0  # supervised models knew no character n-grams then
    if not (1 <= dimension <= 1 << 16 and least >= 0 and 0 <= most <= 1 << 10 and 1 <= ngrams <= 1 << 10 and buckets >= 0):
        raise Damaged(f"its settings are impossible: {dimension=}, {ngrams=}, {buckets=}, {least=}, {most=}")
    words, ends, labels, counts, pairs = _dictionary(file)
    quantised = bool(file.one("u1"))
    numbers = _quantised(file) if quantised else _dense(file)
    output = _quantised(file) if bool(file.one("u1")) and quantised else _dense(file)
    known = len(ends) - 1
    if numbers.shape[1] != dimension or output.shape != (len(labels), dimension):
        raise Damaged(f"matrices of {numbers.shape} and {output.shape} for {len(labels)} labels of {dimension} dimensions")
    hashed = ngrams > 1 or most > 0
    order = np.argsort(pairs[:, 0], kind="stable") if pairs is not None else np.empty(0, np.int64)
    kept, rows = (np.ascontiguousarray(pairs[order, side]) if pairs is not None else np.empty(0, np.int32) for side in (0, 1))
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(numbers) - known):
        raise Damaged("it keeps n-grams beyond its matrix")
    if len(numbers) < known + (buckets if hashed and pairs is None else 0) or (hashed and pairs is None and buckets == 0):
        raise Damaged(f"{len(numbers):,} rows for {known:,} words and {buckets:,} buckets")
    if hashed and len(kept) and buckets == 0:
        raise Damaged("n-grams without buckets")
    paths, codes = _tree(counts) if loss == HIERARCHICAL else ([], [])
    return FastTextModel(
        loss, ngrams, least, most, buckets, words, ends, labels, kept, rows, pairs is not None, numbers, output, paths, codes
    )


@numba.njit(cache=True)
def _find_entries(data, at, starts, stops):  # type: ignore[no-untyped-def]
    """Writes where each entry's text starts and stops: bytes up to a zero, then 9 bytes of count and type; returns the end, or -1."""
    for entry in range(len(starts)):
        starts[entry] = at
        while at < len(data) and data[at] != 0:
            at += 1
        stops[entry] = at
        at += 10
        if at > len(data):
            return -1
    return at


def _dictionary(file: _Reader) -> tuple[NDArray[np.uint8], Ints, list[str], Ints, NDArray[np.int32] | None]:
    """Bytes and ends of words, labels and their counts, and the (bucket, row) pairs of a pruned model."""
    size, words, labels = (file.one("<i4") for _ in range(3))
    file.one("<i8")
    pruned = file.one("<i8")
    if words < 0 or labels < 1 or size != words + labels or size > (len(file.data) - file.at) // 10:
        raise Damaged(f"{size:,} entries for {words:,} words and {labels:,} labels")
    starts, stops = np.empty(size, np.int64), np.empty(size, np.int64)
    end = int(_find_entries(file.data, file.at, starts, stops))
    if end < 0:
        raise Damaged("it ends within its words")
    file.at = end
    if not ((file.data[stops[:words] + 9] == 0).all() and (file.data[stops[words:] + 9] == 1).all()):
        raise Damaged("its words do not come before its labels")
    lengths = stops[:words] - starts[:words]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    inside = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths) + np.repeat(starts[:words], lengths)
    names = [
        file.data[a:b].tobytes().decode("utf-8", "replace") for a, b in zip(starts[words:].tolist(), stops[words:].tolist(), strict=True)
    ]
    counts = np.array([np.frombuffer(file.data[b + 1 : b + 9].tobytes(), "<i8")[0] for b in stops[words:].tolist()], np.int64)
    pairs = None if pruned < 0 else file.take("<i4", 2 * pruned).reshape(-1, 2)
    return file.data[inside].copy(), ends, names, counts, pairs


def _shape(file: _Reader) -> tuple[int, int]:
    rows, columns = file.one("<i8"), file.one("<i8")
    if not (rows >= 0 and 1 <= columns <= 1 << 16 and rows * columns <= MOST_NUMBERS):
        raise Damaged(f"a matrix of {rows:,} by {columns:,}")
    return rows, columns


def _dense(file: _Reader) -> Floats:
    rows, columns = _shape(file)
    return _finite(file.take("<f4", rows * columns).reshape(rows, columns))


def _quantised(file: _Reader) -> Floats:
    """A product-quantised matrix: each row is codes into tables of centroids, times its norm, which may be quantised as well."""
    normed = bool(file.one("u1"))
    rows, columns = _shape(file)
    codes = file.take("u1", file.one("<i4"))
    tables = _centroids(file, columns)
    if len(codes) != rows * len(tables):
        raise Damaged(f"{len(codes):,} codes for {rows:,} rows in {len(tables)} parts")
    numbers = np.concatenate([table[codes[part :: len(tables)]] for part, table in enumerate(tables)], axis=1)
    if normed:
        norms = file.take("u1", rows)
        (table,) = _centroids(file, 1)
        numbers *= table[norms]
    return _finite(numbers)


def _centroids(file: _Reader, columns: int) -> list[Floats]:
    """The tables of centroids, (256, width) each; the last one may be narrower."""
    dimension, parts, width, last = (file.one("<i4") for _ in range(4))
    if not (dimension == columns and parts >= 1 and width >= 1 and 1 <= last <= width and (parts - 1) * width + last == dimension):
        raise Damaged(f"{parts} parts of {width} and {last} for {columns} dimensions")
    values = file.take("<f4", dimension * CENTROIDS)
    widths = [width] * (parts - 1) + [last]
    begins = np.concatenate([[0], np.cumsum(widths)]) * CENTROIDS
    return [values[a:b].reshape(CENTROIDS, -1) for a, b in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)]


def _finite(numbers: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        total = numbers.sum(dtype=np.float64)
    if not np.isfinite(total):
        raise Damaged("its numbers are not finite")
    return numbers


def _tree(counts: Ints) -> tuple[list[list[int]], list[list[bool]]]:
    """The Huffman tree over labels by count, built as fastText builds it: way to the root of each label, and turns on it."""
    size = len(counts)
    many = 10**15
    if counts.min() < 0 or counts.max() >= many or (np.diff(counts) > 0).any():
        raise Damaged("its labels are not ordered by count")
    total = [*counts.tolist(), *[many] * (size - 1)]
    parent, right = [-1] * (2 * size - 1), [False] * (2 * size - 1)
    leaf, node = size - 1, size
    for new in range(size, 2 * size - 1):
        pair = []
        for _ in range(2):
            if leaf >= 0 and total[leaf] < total[node]:
                pair.append(leaf)
                leaf -= 1
            else:
                pair.append(node)
                node += 1
        total[new] = total[pair[0]] + total[pair[1]]
        parent[pair[0]] = parent[pair[1]] = new
        right[pair[1]] = True
    paths: list[list[int]] = []
    codes: list[list[bool]] = []
    for label in range(size):
        path, code, at = [], [], label
        while parent[at] != -1:
            path.append(parent[at] - size)
            code.append(right[at])
            at = parent[at]
        paths.append(path)
        codes.append(code)
    return paths, codes
