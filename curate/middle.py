"""Fill in the middle: documents rearranged as prefix, suffix, middle, so that a model learns to write what stands between two texts.

Bavarian et al. 2022, "Efficient training of language models to fill in the middle": two cuts between characters, drawn here by a hash of
doc_id and seed, and the three pieces tokenised apart, each after a token of its own (prefix, suffix, middle: their PSM). The text is
recovered by putting the pieces in order again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.corpus import id_hashes, mix64

if TYPE_CHECKING:
    from curate.tokenizer import Tokenizer

DRAW, CUTS = 0x46494D44, 0x46494D43
"""Added to the seed: for the draw of documents, and of their cuts."""

TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
NAMES = (
    (TOKENS[0], "<fim_prefix>", "<fim-prefix>", "<PRE>"),
    (TOKENS[1], "<fim_suffix>", "<fim-suffix>", "<SUF>"),
    (TOKENS[2], "<fim_middle>", "<fim-middle>", "<MID>"),
)
"""What tokenizers call the three tokens."""


def drawn(doc_ids: pa.Array, share: float, seed: int) -> NDArray[np.bool_]:
    """Which documents are rearranged."""
    chosen: NDArray[np.bool_] = id_hashes(doc_ids, seed + DRAW) / 2.0**64 < share
    return chosen


def pieces(text: str, draw: int) -> tuple[str, str, str]:
    """Prefix, middle and suffix of a text under a 64-bit draw; any of them may be empty."""
    low, high = sorted(int(value) % (len(text) + 1) for value in (draw, int(mix64(np.array([draw], dtype=np.uint64))[0])))
    return text[:low], text[low:high], text[high:]


def encode(
    tokenizer: Tokenizer, texts: Sequence[str], doc_ids: pa.Array, settings: Mapping[str, Any], trained: NDArray[np.bool_]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Ids and offsets of texts, those that are drawn rearranged.

    Args:
        tokenizer: one that has the three tokens.
        texts: the texts.
        doc_ids: their ids.
        settings: ``share`` of the documents, and ``seed``.
        trained: which of them are trained on; held-out ones stay as they are.
    """
    chosen = drawn(doc_ids, settings["share"], settings["seed"]) & trained
    cuts = id_hashes(doc_ids, settings["seed"] + CUTS)
    assert tokenizer.middle is not None
    prefix, suffix, middle = tokenizer.middle
    parts: list[str] = []
    marks: list[int] = []  # the token before each part, -1 for none
    for text, draw, rearranged in zip(texts, cuts, chosen, strict=True):
        if rearranged:
            first, between, last = pieces(text, int(draw))
            parts += [first, last, between]
            marks += [prefix, suffix, middle]
        else:
            parts.append(text)
            marks.append(-1)
    ids, offsets = tokenizer.encode_batch(parts)
    mark = np.array(marks)
    marked = np.insert(ids, offsets[:-1][mark >= 0], mark[mark >= 0].astype(np.uint32))
    lengths = np.diff(offsets) + (mark >= 0)
    first_part = np.concatenate([[0], np.cumsum(np.where(chosen, 3, 1))])[:-1]
    whole = np.add.reduceat(lengths, first_part) if len(texts) else np.zeros(0, dtype=np.int64)
    return marked, np.concatenate([[0], np.cumsum(whole)]).astype(np.int64)


def recovered(tokenizer: Tokenizer, ids: Sequence[int] | NDArray[Any]) -> str:
    """The text of a document's ids, in the order in which it was written."""
    values = np.asarray(ids)
    if tokenizer.middle is None or not len(values) or values[0] != tokenizer.middle[0]:
        return tokenizer.decode(values)
    _, suffix, middle = tokenizer.middle
    second, third = (int(np.flatnonzero(values == token)[0]) for token in (suffix, middle))
    return "".join(tokenizer.decode(part) for part in (values[1:second], values[third + 1 :], values[second + 1 : third]))
