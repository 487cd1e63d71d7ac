"""Held-out loss and bits per byte, by source and over all."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain

import numpy as np
import torch

from train.data import RowReader
from train.model import Decoder
from train.order import Ints
from train.parallel import Ranks
from train.passes import forward, piece_losses
from train.precision import precision_context


def held_out_rows(reader: RowReader, rows_per_source: int) -> tuple[Ints, Ints]:
    """Lot and number of the rows to evaluate: of each source as many as asked for, spread evenly over its held-out lots."""
    lots: list[Ints] = []
    rows: list[Ints] = []
    for source in dict.fromkeys(lot.source for lot in reader.lots):
        mine = [(number, lot.rows) for number, lot in enumerate(reader.lots) if lot.source == source]
        lot = np.repeat([number for number, _ in mine], [have for _, have in mine]).astype(np.int64)
        row = np.concatenate([np.arange(have) for _, have in mine])
        count = min(rows_per_source, len(row))
        picked = np.arange(count) * len(row) // max(1, count)
        lots.append(lot[picked])
        rows.append(row[picked])
    return (np.concatenate(lots), np.concatenate(rows)) if lots else (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


@torch.no_grad()
def evaluate(
    model: Decoder, reader: RowReader, *, rows_per_source: int, height: int, precision: str, ranks: Ranks, pause: Callable[[], None]
) -> dict[str, float]:
    """Measure the model on held-out rows.

    Args:
        model: the model; it comes back in training mode.
        reader: held-out lots.
        rows_per_source: rows of each source.
        height: rows of a forward pass on one rank.
        precision: see ``train.precision``.
        ranks: rows are shared among all.
        pause: called before each forward pass, on every rank equally often; may raise to abandon.

    Returns:
        ``heldout`` and ``heldout/<source>`` in nats per token, ``perplexity`` alike (e to the loss), and where lots know their bytes
        ``bits_per_byte`` and ``bits_per_byte/<source>``; empty without held-out rows.
    """
    lots, rows = held_out_rows(reader, rows_per_source)
    if not len(rows):
        return {}
    totals = np.zeros((3, len(reader.lots)))  # nats, tokens, bytes by lot
    rate = np.array([lot.bytes_per_token for lot in reader.lots])
    model.eval()
    try:
        for first in range(0, len(rows), height * ranks.data_ranks):
            pause()
            mine = slice(first + ranks.data_rank, first + height * ranks.data_ranks, ranks.data_ranks)
            batch = reader.read(lots[mine], rows[mine], height)
            with precision_context(precision, ranks.device):
                losses = forward(model, batch, ranks.device)
            lot = lots[mine][batch.row_of_piece]
            totals[0] += np.bincount(lot, weights=piece_losses(losses, batch).cpu().numpy(), minlength=len(rate))
            totals[1] += np.bincount(lot, weights=batch.predicted, minlength=len(rate))
    finally:
        model.train()
    if ranks.world > 1:
        totals = ranks.sum(torch.from_numpy(totals).to(ranks.device)).cpu().numpy()
    totals[2] = totals[1] * rate
    return dict(chain.from_iterable(_named(reader, totals, source) for source in [None, *dict.fromkeys(lot.source for lot in reader.lots)]))


def _named(reader: RowReader, totals: np.ndarray, source: str | None) -> list[tuple[str, float]]:
    mine = [source in (None, lot.source) for lot in reader.lots]
    nats, tokens, size = totals[:, mine].sum(axis=1)
    suffix = "" if source is None else f"/{source}"
    loss = float(nats / tokens) if tokens else math.nan
    named = [(f"heldout{suffix}", loss), (f"perplexity{suffix}", math.exp(min(loss, 700.0)))]
    return [*named, (f"bits_per_byte{suffix}", float(nats / math.log(2) / size))] if size else named
