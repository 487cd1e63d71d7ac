"""The language of texts: py3langid's naive Bayes model over byte n-grams, walked by a compiled kernel over Arrow buffers.

The model is the one that the package ships (Lui and Baldwin 2012, langid.py; retrained by py3langid): an automaton finds its features in
the first 2 KiB of a text in NFC, a text all in capitals lowered; log(1 + count) weighs each feature's log-likelihoods by language; a
softmax at temperature sqrt(bytes) makes a probability that means the same at every length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from curate.signals.batch import buffers
from curate.signals.kernels import inlined, kernel, sources_digest
from schemas.errors import RecipeError

LANGUAGE_VERSION = 1
LOOKED_AT = 2048
"""Bytes of a text that are looked at."""
_DIGITS = 6
"""Decimals of a score that are kept, so that the last bits of a processor's exponential do not show."""


class Model(NamedTuple):
    """Tables of the model; a tuple of arrays, so that compiled code takes it as an argument."""

    moves: npt.NDArray[np.uint16]  # by row << 8 | byte, the next state
    rows: npt.NDArray[np.uint16]  # by state, its row of moves
    features: npt.NDArray[np.int32]  # by state, the feature that ends here; -1 for none
    weights: npt.NDArray[np.float32]  # (feature, class): log-likelihood
    priors: npt.NDArray[np.float32]  # by class
    folded: npt.NDArray[np.int64]  # by class, the first class of the same language
    logs: npt.NDArray[np.float32]  # log(1 + count)


@lru_cache(maxsize=1)
def language_model() -> tuple[Model, tuple[str, ...]]:
    """The model, and the language of each class (ISO 639-1 where there is one, else 639-3); half a second the first time.

    Raises:
        RecipeError: py3langid is not installed.
    """
    try:
        from py3langid.langid import MODEL_DIR, MODEL_FILE
        from py3langid.modelio import load_model
    except ImportError as error:
        raise RecipeError(
            "identifying languages needs py3langid, which is not installed", where="language", fix="pip install 'gristmill[text]'"
        ) from error
    weights, priors, names, moves, rows, features = load_model(MODEL_DIR / MODEL_FILE)
    model = Model(
        np.frombuffer(moves, moves.typecode),
        np.frombuffer(rows, rows.typecode),
        np.array(features, np.int32),
        np.asarray(weights, np.float32),
        np.asarray(priors, np.float32),
        np.array([names.index(name) for name in names], np.int64),
        np.log1p(np.arange(LOOKED_AT + 1, dtype=np.float32)),
    )
    return model, tuple(names)


@inlined
def clipped(data, start, end):  # type: ignore[no-untyped-def]
    """The end of what is looked at of data[start:end]: at most LOOKED_AT bytes, whole characters."""
    if end - start > LOOKED_AT:
        end = start + LOOKED_AT
        while end > start and data[end] & 0xC0 == 0x80:
            end -= 1
    return end


@kernel
def identify_rows(model, data, offsets, counts, met, scores, classes, probabilities):  # type: ignore[no-untyped-def]
    """Writes the class and probability of each text data[offsets[i]:offsets[i + 1]]; class -1 where no feature was met.

    `counts` holds a zero for each feature, and again afterwards; `met` has room for LOOKED_AT features, `scores` for the classes.
    """
    for row in range(len(offsets) - 1):
        start = offsets[row]
        end = clipped(data, start, offsets[row + 1])
        state = np.int64(0)
        n = 0
        for k in range(start, end):
            state = np.int64(model.moves[(np.int64(model.rows[state]) << 8) + data[k]])
            feature = model.features[state]
            if feature >= 0:
                if counts[feature] == 0:
                    met[n] = feature
                    n += 1
                counts[feature] += 1
        classes[row] = -1
        probabilities[row] = 0.0
        if n == 0:
            continue
        for c in range(len(scores)):
            scores[c] = model.priors[c]
        for k in range(n):
            weight = model.logs[counts[met[k]]]
            counts[met[k]] = 0
            likelihoods = model.weights[met[k]]
            for c in range(len(scores)):
                scores[c] += weight * likelihoods[c]
        settle(model, scores, end - start, row, classes, probabilities)


@kernel
def settle(model, scores, size, row, classes, probabilities):  # type: ignore[no-untyped-def]
    """Writes the likeliest class and its probability; classes of one language count together."""
    top = scores[0]
    for c in range(len(scores)):
        top = max(top, scores[c])
    total = 0.0
    scale = 1.0 / np.sqrt(np.float64(size))
    for c in range(len(scores)):
        value = np.exp((np.float64(scores[c]) - np.float64(top)) * scale)
        total += value
        scores[c] = 0.0 if model.folded[c] != c else value
        if model.folded[c] != c:
            scores[model.folded[c]] += value
    best = 0
    for c in range(len(scores)):
        if scores[c] > scores[best]:
            best = c
    classes[row] = best
    probabilities[row] = np.float64(scores[best]) / total


def _entry(digest: int) -> Callable[..., None]:
    """The compiled entry point; see `curate.signals.kernels` for the digest."""

    @njit(nogil=True, cache=True)
    def identify(model, data, offsets, counts, met, scores, classes, probabilities):  # type: ignore[no-untyped-def]
        if digest >= 0:
            identify_rows(model, data, offsets, counts, met, scores, classes, probabilities)

    return identify  # type: ignore[no-any-return]


_identify = _entry(sources_digest(__file__))


def languages_of(texts: pa.LargeStringArray) -> tuple[pa.Array, pa.Array]:
    """The likeliest language of each text and its probability among the model's languages.

    Args:
        texts: Any Unicode texts, empty ones too; no nulls.

    Returns:
        Languages (string, null where nothing in the text says any) and scores (float64 with 6 decimals, 0 there).

    Raises:
        RecipeError: py3langid is not installed.
    """
    model, names = language_model()
    data, offsets = buffers(_prepared(texts))
    classes, probabilities = np.empty(len(texts), np.int64), np.empty(len(texts), np.float64)
    scratch = (np.zeros(len(model.weights), np.int32), np.empty(LOOKED_AT, np.int32), np.empty(len(names), np.float32))
    _identify(model, data, offsets, *scratch, classes, probabilities)
    found = pa.array(names, pa.string()).take(pa.array(classes, mask=classes < 0))
    return found, pa.array(np.round(probabilities, _DIGITS))


def _prepared(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    """The beginnings of texts as the model wants them."""
    plain = pc.all(pc.string_is_ascii(texts)).as_py()
    starts = pc.utf8_slice_codeunits(texts, 0, LOOKED_AT)
    if plain is False:
        starts = pc.utf8_normalize(starts, "NFC")
    shouted = pc.utf8_is_upper(starts)
    return pc.if_else(shouted, pc.utf8_lower(starts), starts) if pc.any(shouted).as_py() else starts
