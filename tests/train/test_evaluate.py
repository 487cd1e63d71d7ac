"""Held-out loss against document-by-document sums, whatever the batch height; and the losses of pieces."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.train.run_tables import Alone
from tests.train.test_model import reference_losses
from tests.train.tiny_lake import MODEL, WORDS, build
from train.data import RowReader
from train.evaluate import evaluate, held_out_rows
from train.model import Decoder
from train.passes import piece_losses


def test_held_out_loss_and_bits_per_byte_by_source(tmp_path):
    _, _, held = build(tmp_path)
    held = [held[0], dataclasses.replace(held[1], bytes_per_token=2.5)]
    reader, model = RowReader(tmp_path, held), Decoder(MODEL, WORDS, 32, seed=1)
    results = [evaluate(model, reader, rows_per_source=4, height=h, precision="fp32", ranks=Alone(), pause=lambda: None) for h in (1, 3, 8)]
    lots, rows = held_out_rows(reader, 4)
    assert np.bincount(lots).tolist() == [4, 4] and len(set(zip(lots.tolist(), rows.tolist(), strict=True))) == 8
    batch = reader.read(lots, rows)
    nats, tokens = [0.0, 0.0], [0, 0]
    for row, start, end in zip(batch.row_of_piece, batch.starts, batch.ends, strict=True):
        nats[lots[row]] += reference_losses(model, batch.tokens[row, start:end].tolist()).sum()
        tokens[lots[row]] += end - start - 1
    for found in results:
        assert found["heldout"] == pytest.approx(sum(nats) / sum(tokens), rel=1e-6)
        assert found["heldout/prose"] == pytest.approx(nats[1] / tokens[1], rel=1e-6)
        assert found["bits_per_byte/prose"] == pytest.approx(nats[1] / math.log(2) / (2.5 * tokens[1]), rel=1e-6)
        assert found["bits_per_byte"] == pytest.approx(sum(nats) / math.log(2) / (4 * tokens[0] + 2.5 * tokens[1]), rel=1e-6)
    assert model.training
    assert evaluate(model, RowReader(tmp_path, []), rows_per_source=4, height=2, precision="fp32", ranks=Alone(), pause=lambda: None) == {}


def test_a_loss_that_is_not_finite_stays_in_its_piece(tmp_path):
    _, lots, _ = build(tmp_path)
    batch = RowReader(tmp_path, lots).read(np.array([0, 1, 1]), np.array([1, 2, 3]), height=4)
    losses = torch.rand(4, 32) * (torch.from_numpy(batch.targets()) >= 0)
    losses[1, batch.starts[batch.pieces[1]]] = math.nan
    found = piece_losses(losses, batch).numpy()
    expected = [losses[r, s:e].double().sum() for r, s, e in zip(batch.row_of_piece, batch.starts, batch.ends, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.isnan(found).sum() == 1
