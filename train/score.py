"""Scores: the loss that a trained model has on each document of a lake, over all its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from schemas.settings import Lot
from train.data import RowReader
from train.model import Decoder
from train.passes import forward, piece_losses
from train.precision import precision_context


@dataclass(frozen=True)
class Scores:
    """Of each document, ordered by id: ``doc_ids`` (N, 16) uint8, predicted ``tokens`` (N,), and ``nats`` (N,) summed over them."""

    doc_ids: NDArray[np.uint8]
    tokens: NDArray[np.int64]
    nats: NDArray[np.float64]


@torch.no_grad()
def score(
    root: Path, lots: Sequence[Lot], model: Decoder, *, height: int, precision: str, device: torch.device, tell: Callable[[int, int], None]
) -> Scores:
    """Score every document that has rows.

    Args:
        root: the lake.
        lots: lots to go through; rows may have several lengths, none above what the model was trained with.
        model: the model, on the device.
        height: rows of a forward pass.
        precision: bf16 or fp32.
        device: where it runs.
        tell: called with rows done and rows in all.
    """
    model.eval()
    ids, tokens, nats = [], [], []
    done, total = 0, sum(lot.rows for lot in lots)
    for reader in _readers(root, lots):
        for lot, rows in _passes(reader, height):
            batch = reader.read(np.full(len(rows), lot), rows, height)
            with precision_context(precision, device):
                losses = forward(model, batch, device)
            ids.append(batch.doc_ids)
            tokens.append(batch.predicted)
            nats.append(piece_losses(losses, batch).cpu().numpy())
            done += len(rows)
            tell(done, total)
    every = np.concatenate(ids) if ids else np.zeros((0, 16), dtype=np.uint8)
    unique, inverse = np.unique(every, axis=0, return_inverse=True)
    counts, sums = (np.bincount(inverse.ravel(), weights=np.concatenate(v) if v else None, minlength=len(unique)) for v in (tokens, nats))
    return Scores(unique, counts.astype(np.int64), sums.astype(np.float64))


def _readers(root: Path, lots: Sequence[Lot]) -> Iterator[RowReader]:
    for length in sorted({lot.row_length for lot in lots}):
        yield RowReader(root, [lot for lot in lots if lot.row_length == length])


def _passes(reader: RowReader, height: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    for number, lot in enumerate(reader.lots):
        for first in range(0, lot.rows, height):
            yield number, np.arange(first, min(first + height, lot.rows))
