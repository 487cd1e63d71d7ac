"""Batches against a row-by-row oracle, and shards that were changed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from schemas.errors import LakeError
from tests.train.tiny_lake import LENGTH, build, documents, pack, write_lot
from train.data import IGNORED, RowReader
from train.stage import Stage


@pytest.fixture
def lots(tmp_path):
    rows = [pack(documents(i, 60, 1)) for i in (0, 1)]
    return tmp_path, rows, [write_lot(tmp_path, f"lot-{i}", "abc"[i], rows[i], shard_rows=8 if i else 5) for i in (0, 1)]


def test_batches_equal_the_rows_as_packed(lots):
    root, packed, made = lots
    random = np.random.default_rng(0)
    which = random.integers(0, 2, 40)
    numbers = np.array([random.integers(0, made[i].rows) for i in which])
    batch = RowReader(root, made, checksums=True).read(which, numbers, height=43)
    documents_, positions, targets = batch.documents(), batch.positions(), batch.targets()
    valid = 0
    for r, (lot, number) in enumerate(zip(which, numbers, strict=True)):
        tokens, ends, ids = packed[lot][number]
        assert batch.tokens[r].tolist() == tokens
        mine = slice(batch.pieces[r], batch.pieces[r + 1])
        assert batch.ends[mine].tolist() == ends
        assert [i.tobytes() for i in batch.doc_ids[mine]] == ids
        start = 0
        for piece, end in enumerate(ends):
            assert (documents_[r, start:end] == piece).all()
            assert positions[r, start:end].tolist() == list(range(end - start))
            assert targets[r, start:end].tolist() == [*tokens[start + 1 : end], IGNORED]
            valid += end - start - 1
            start = end
        assert (documents_[r, start:] == len(ends)).all() and (targets[r, start:] == IGNORED).all()
    assert (targets[40:] == IGNORED).all() and (positions[40:] == np.arange(LENGTH)).all()
    assert batch.valid_tokens == valid == (targets != IGNORED).sum() == batch.predicted.sum()


def test_nothing_asked_for_gives_empty_rows(lots):
    batch = RowReader(lots[0], lots[2]).read(np.array([], dtype=np.int64), np.array([], dtype=np.int64), height=2)
    assert batch.valid_tokens == 0 and (batch.targets() == IGNORED).all() and batch.documents().shape == (2, LENGTH)


def test_a_changed_shard_is_refused(lots):
    root, _, made = lots
    path = root / made[0].shards[1].path
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(LakeError, match=r"00001\.arrow: a shard of rows was changed"):
        RowReader(root, made)
    path.write_bytes(good[:300] + bytes([good[300] ^ 1]) + good[301:])
    with pytest.raises(LakeError, match="changed or cut short"):
        RowReader(root, made, checksums=True).read(np.array([0]), np.array([5]))
    path.write_bytes(b"x" * len(good))
    with pytest.raises(LakeError, match="not a shard of packed rows"):
        RowReader(root, made).read(np.array([0]), np.array([5]))
    path.unlink()
    with pytest.raises(LakeError, match="missing"):
        RowReader(root, made)


def test_a_shard_of_another_lot_is_refused(lots):
    root, _, made = lots
    swapped = dataclasses.replace(made[0], shards=made[1].shards)
    with pytest.raises(LakeError, match="of lot 'lot-1'"):
        RowReader(root, [swapped]).read(np.array([0]), np.array([0]))


def test_the_tiny_lake_opens_as_a_dataset(tmp_path):
    datasets = pytest.importorskip("datasets")
    _, made, _ = build(tmp_path / "lake")
    files = [str(tmp_path / "lake" / shard.path) for shard in made[0].shards]
    table = datasets.load_dataset("arrow", data_files=files, cache_dir=str(tmp_path / "cache"), split="train")
    assert len(table) == made[0].rows and len(table[0]["tokens"]) == LENGTH


def test_the_trainer_refuses_a_shard_of_the_right_length_with_a_changed_byte(tmp_path):
    folder, made, _ = build(tmp_path, rows=16)
    stage = Stage.open(tmp_path, str(folder.relative_to(tmp_path)))
    stage.micro_batches(stage.first_step, 0, 1)
    for shard in made[0].shards:
        path = tmp_path / shard.path
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises(LakeError, match="changed or cut short"):
        fresh = Stage.open(tmp_path, str(folder.relative_to(tmp_path)))
        for step in range(fresh.first_step, fresh.end_step):
            fresh.micro_batches(step, 0, 1)
