"""Scores: each document's loss is the sum over its pieces in all its rows, whatever the height of a pass, and becomes a signal."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from curate.scores.losses import losses_of, read_losses
from schemas.errors import InputError
from schemas.tables import DOCUMENT_LOSSES
from tests.train.tiny_lake import LENGTH, MODEL, WORDS, documents, pack, write_lot
from train.data import RowReader
from train.model import Decoder
from train.passes import forward
from train.score import score


def scored(root, lots, height):
    model = Decoder(MODEL, WORDS, LENGTH, 3)
    told = []
    found = score(root, lots, model, height=height, precision="fp32", device=torch.device("cpu"), tell=lambda a, b: told.append((a, b)))
    assert told[-1] == (sum(lot.rows for lot in lots),) * 2
    return found, model


def test_scores_are_sums_over_all_pieces(tmp_path):
    lots = [write_lot(tmp_path, f"{s}-0", s, pack(documents(i, 20, 1))) for i, s in enumerate(("code", "prose"))]
    found, model = scored(tmp_path, lots, 3)
    again, _ = scored(tmp_path, lots, 50)
    assert (found.doc_ids == again.doc_ids).all() and found.nats == pytest.approx(again.nats, rel=1e-5)
    wanted: dict[bytes, list[float]] = {}
    for lot in lots:
        reader = RowReader(tmp_path, [lot])
        for row in range(lot.rows):
            batch = reader.read(np.array([0]), np.array([row]))
            with torch.no_grad():
                losses = forward(model.eval(), batch, torch.device("cpu"))[0].double().numpy()
            for start, end, name in zip(batch.starts, batch.ends, batch.doc_ids, strict=True):
                total = wanted.setdefault(name.tobytes(), [0.0, 0])
                total[0] += losses[start : end - 1].sum()
                total[1] += end - start - 1
    assert [name.tobytes() for name in found.doc_ids] == sorted(wanted)
    assert found.nats == pytest.approx([wanted[name][0] for name in sorted(wanted)], rel=1e-5)
    assert found.tokens.tolist() == [wanted[name][1] for name in sorted(wanted)]


def test_a_file_of_losses_is_a_signal_by_doc_id(tmp_path):
    path = tmp_path / "losses.parquet"
    ids = [bytes([n]) * 16 for n in range(4)]
    pq.write_table(pa.table([pa.array(ids[:3], pa.binary(16)), [5, 6, 0], [2.0, 1.0, None]], schema=DOCUMENT_LOSSES), path)
    asked = pa.table({"doc_id": pa.array([ids[3], ids[1], ids[0], ids[2]], pa.binary(16))})
    assert losses_of(read_losses(str(path)), asked).to_pylist() == [None, 1.0, 2.0, None]
    (tmp_path / "other.parquet").write_bytes(b"no parquet")
    with pytest.raises(InputError, match="gristmill score"):
        read_losses(str(tmp_path / "other.parquet"))
