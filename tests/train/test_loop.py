"""The loop: its loss sequence against a computation of its own, what it records, and how stages end and follow one another."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from schemas.errors import LakeError, RecipeError
from schemas.segments import read_segments
from schemas.settings import EarlyStopSettings, Outcome, read_stage
from schemas.settings import build as from_json
from tests.train.run_tables import After, losses, table, trainer, valid
from tests.train.tiny_lake import LENGTH, TRAINING, build, write_stage
from train.data import RowReader
from train.interrupt import Interrupted
from train.model import Decoder
from train.order import Order


def reference_sequence(root, folder):
    """Loss of each step in FP64: each document piece on its own, an own AdamW, clip and schedule."""
    stage = read_stage(folder / "stage.json")
    training, segment = stage.training, read_segments(root / stage.segments)[0]
    order = Order([segment], {lot.lot: [s.rows for s in lot.shards] for lot in stage.lots})
    reader = RowReader(root, [lot for name in order.lots for lot in stage.lots if lot.lot == name])
    model = Decoder(stage.model, stage.vocabulary, stage.row_length, stage.seed).double()
    model.cos, model.sin = model.cos.double(), model.sin.double()
    parameters = [p for p in model.parameters() if p.requires_grad]
    first, second = [torch.zeros_like(p) for p in parameters], [torch.zeros_like(p) for p in parameters]
    sequence = []
    for step in range(segment.steps):
        rows = order.rows(np.arange(step * segment.batch, min((step + 1) * segment.batch, segment.rows)))
        batch = reader.read(rows.lot, rows.row)
        total, count = 0, 0
        for row, start, end in zip(batch.row_of_piece, batch.starts, batch.ends, strict=True):
            piece = torch.from_numpy(batch.tokens[row, start:end])[None]
            hidden = model.hidden(piece, torch.zeros_like(piece), torch.arange(end - start)[None])
            total = total + torch.nn.functional.cross_entropy(hidden[0, :-1] @ model.output_weight.T, piece[0, 1:], reduction="sum")
            count += end - start - 1
        loss = total / count
        gradients = torch.autograd.grad(loss, parameters)
        sequence.append(float(loss.detach()))
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
        shrink = min(1.0, training.clip / (norm + 1e-6))
        warmup, s = training.schedule.warmup_steps, training.schedule
        rate = (step + 1) / (warmup + 1)
        if step >= warmup:
            rate = s.min_ratio + (1 - s.min_ratio) * (1 + math.cos(math.pi * (step - warmup) / (segment.steps - 1 - warmup))) / 2
        lr = training.optimizer.lr * rate
        with torch.no_grad():
            for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                g = g * shrink
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.95).add_(0.05 * g**2)
                if p.ndim > 1:
                    p.mul_(1 - lr * training.optimizer.weight_decay)
                p.sub_(lr * (m / (1 - 0.9 ** (step + 1))) / ((v / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8))
    return sequence


def test_the_loss_sequence_is_that_of_the_papers(tmp_path):
    """Ragged: 46 rows in steps of 4, micro-batches of 2, documents of all lengths, padding."""
    folder, _, _ = build(tmp_path, rows=46, training=dataclasses.replace(TRAINING, clip=0.5))
    outcome = trainer(tmp_path, folder).run()
    found = losses(tmp_path)
    expected = reference_sequence(tmp_path, folder)
    assert list(found) == list(range(12))
    np.testing.assert_allclose(list(found.values()), expected, rtol=2e-5)
    assert expected[-1] < expected[0] - 0.2
    assert outcome.first_loss == found[0] and outcome.last_loss == found[11]
    assert max(losses(tmp_path, "grad_norm").values()) > 0.5, "clipping was exercised"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_accumulation_does_not_change_the_losses(tmp_path, precision):
    sequences = []
    for micro in (1, 2, 4):
        root = tmp_path / str(micro)
        training = dataclasses.replace(TRAINING, micro_batch_rows=micro, precision=precision)
        folder, _, _ = build(root, rows=18, training=training)
        trainer(root, folder).run()
        sequences.append(list(losses(root).values()))
    np.testing.assert_allclose(sequences[0], sequences[1], rtol=1e-6 if precision == "fp32" else 1e-2)
    np.testing.assert_allclose(sequences[0], sequences[2], rtol=1e-6 if precision == "fp32" else 1e-2)


def test_z_loss_is_part_of_the_training_loss(tmp_path):
    found = []
    for z_loss in (0.0, 0.01):
        folder, _, _ = build(tmp_path / str(z_loss), rows=4, training=dataclasses.replace(TRAINING, z_loss=z_loss))
        trainer(tmp_path / str(z_loss), folder).run()
        found.append(losses(tmp_path / str(z_loss))[0])
    log_partition = math.log(64)  # of random weights, nearly
    assert found[1] - found[0] == pytest.approx(0.01 * log_partition**2, rel=0.02)


def test_tables_agree_with_the_order_and_with_each_other(tmp_path):
    folder, lots, _ = build(tmp_path)
    trainer(tmp_path, folder).run()
    segment = read_segments(tmp_path / "runs/r/segments.json")[0]
    order = Order([segment], {lot.lot: [s.rows for s in lot.shards] for lot in lots})
    rows = order.rows(np.arange(48))
    ledger = sorted(table(tmp_path, "ledger"), key=lambda r: r["index"])
    assert [r["index"] for r in ledger] == list(range(48))
    assert [(order.lots.index(r["lot"]), r["row"], r["use"], r["step"]) for r in ledger] == [
        (int(a), int(b), int(c), i // 4) for i, (a, b, c) in enumerate(zip(rows.lot, rows.row, rows.use, strict=True))
    ]
    assert all(r["source"] == r["lot"].split("-")[0] for r in ledger)
    pieces, metric, by_source = table(tmp_path, "losses"), losses(tmp_path), losses(tmp_path, "loss/code")
    for step in range(12):
        mine = [r for r in pieces if r["step"] == step]
        assert sum(r["loss"] for r in mine) / sum(r["tokens"] for r in mine) == pytest.approx(metric[step], rel=1e-12)
        code = [r for r in mine if r["lot"].startswith("code")]
        assert sum(r["loss"] for r in code) / sum(r["tokens"] for r in code) == pytest.approx(by_source[step], rel=1e-12)
        batch = RowReader(tmp_path, lots).read(
            np.array([0 if r["lot"] == "code-0" else 1 for r in ledger[4 * step : 4 * step + 4]]),
            np.array([r["row"] for r in ledger[4 * step : 4 * step + 4]]),
        )
        assert [r["doc_id"] for r in mine] == [i.tobytes() for i in batch.doc_ids]
        assert [r["tokens"] for r in mine] == batch.predicted.tolist()
    assert not list(tmp_path.rglob(".tmp-*"))


def test_early_stop_ends_the_stage_and_returns_what_it_did_not_use(tmp_path):
    stop = EarlyStopSettings(patience=2, min_delta=10.0, min_steps=5)
    training = dataclasses.replace(TRAINING, eval_every=2, early_stop=stop)
    folder, lots, held = build(tmp_path, rows=80, training=training)
    outcome = trainer(tmp_path, folder).run()
    # The first evaluation (step 2) always improves on nothing; those after 4 and 6 do not by 10 nats.
    assert (outcome.reason, outcome.next_step, outcome.next_row) == ("early_stop", 6, 24)
    assert outcome.returned == (("code-0", 18, 4 * lots[0].rows), ("prose-0", 6, 4 * lots[1].rows))
    assert from_json(Outcome, json.loads((folder / "outcome.json").read_text())) == outcome
    assert [e["kind"] for e in table(tmp_path, "events") if e["kind"] not in ("checkpoint",)] == ["started", "early_stop"]
    second = write_stage(
        tmp_path,
        "second",
        lots,
        held,
        {lot: (a, b) for lot, a, b in outcome.returned},
        16,
        quotas={"code": 3, "prose": 1},
        init_from="runs/r/0-first",
        first=(24, 6),
        training=dataclasses.replace(TRAINING, optimizer=dataclasses.replace(TRAINING.optimizer, lr=1e-3)),
    )
    model = trainer(tmp_path, second)
    weights = torch.load(tmp_path / outcome.checkpoint / "model.pt", weights_only=True)
    assert all(torch.equal(weights[name], p) for name, p in model.model.state_dict().items())
    assert model.optimizer.state_dict()["state"][0]["step"] == 6, "the optimizer's moments go on"
    assert {g["initial_lr"] for g in model.optimizer.param_groups} == {1e-3}, "with the new stage's settings"
    model.run()
    uses = [(r["lot"], r["use"]) for r in valid(tmp_path, "ledger")]
    assert len(uses) == len(set(uses)) == 40
    assert sorted(r["index"] for r in valid(tmp_path, "ledger")) == list(range(40))


@pytest.mark.parametrize("start", ["continue", "rewarm"])
def test_a_later_stage_takes_up_the_learning_rate_where_the_earlier_left_it(tmp_path, start):
    schedule = dataclasses.replace(TRAINING.schedule, name="linear", min_ratio=0.5)
    folder, lots, held = build(tmp_path, rows=16, training=dataclasses.replace(TRAINING, schedule=schedule))
    outcome = trainer(tmp_path, folder).run()
    assert losses(tmp_path, "lr")[3] == pytest.approx(1.5e-3)
    later = dataclasses.replace(
        TRAINING,
        optimizer=dataclasses.replace(TRAINING.optimizer, lr=6e-3),
        schedule=dataclasses.replace(schedule, start=start, name="linear" if start == "continue" else "constant", min_ratio=0.0),
    )
    second = write_stage(
        tmp_path, "second", lots, held, {a: (b, c) for a, b, c in outcome.returned}, 16, quotas={"code": 3, "prose": 1},
        init_from="runs/r/0-first", first=(16, 4), training=later,
    )  # fmt: skip
    run = trainer(tmp_path, second, After(2))
    with pytest.raises(Interrupted):
        run.run()
    trainer(tmp_path, second).run()
    rates = [losses(tmp_path, "lr")[step] for step in range(4, 8)]
    if start == "continue":
        assert rates == pytest.approx([1.5e-3, 1e-3, 0.5e-3, 0.0]), "a cool-down from where the earlier stage was"
    else:
        assert rates == pytest.approx([3e-3, 4.5e-3, 6e-3, 6e-3])


def test_the_best_checkpoint_is_kept_and_handed_on_by_choice(tmp_path):
    """A learning rate that ruins the model after a while: the best is not the last."""
    training = dataclasses.replace(
        TRAINING,
        eval_every=1,
        checkpoint_every=1,
        keep_last=1,
        clip=0,
        optimizer=dataclasses.replace(TRAINING.optimizer, lr=0.3),
        schedule=dataclasses.replace(TRAINING.schedule, name="constant", warmup_steps=30),
        early_stop=EarlyStopSettings(patience=3, on_stop="restore_best"),
    )
    folder, lots, held = build(tmp_path, rows=160, training=training)
    outcome = trainer(tmp_path, folder).run()
    measured = losses(tmp_path, "heldout")
    best = min(measured, key=lambda step: measured[step])
    assert outcome.reason == "early_stop" and outcome.next_step == best + 1 == int(outcome.checkpoint[-8:]) < max(measured) + 1
    assert outcome.next_row == 4 * outcome.next_step
    assert {p.name[-8:] for p in (folder / "checkpoints").iterdir()} == {f"{best + 1:08d}", f"{max(measured) + 1:08d}"}
    assert sum(stop - start for _, start, stop in outcome.returned) == 4 * (lots[0].rows + lots[1].rows) - outcome.next_row
    second = write_stage(
        tmp_path, "second", lots, held, {lot: (a, b) for lot, a, b in outcome.returned}, 16, quotas={"code": 3, "prose": 1},
        init_from="runs/r/0-first", first=(outcome.next_row, outcome.next_step),
    )  # fmt: skip
    trainer(tmp_path, second).run()
    uses = [(r["lot"], r["use"]) for r in valid(tmp_path, "ledger")]
    assert len(uses) == len(set(uses)) == outcome.next_row + 16, "rows after the best checkpoint are void, and came again"


def test_a_loss_that_is_not_finite_changes_nothing_and_is_recorded(tmp_path, monkeypatch):
    folder, _, _ = build(tmp_path)
    run = trainer(tmp_path, folder)
    original, before = Decoder.forward, {}

    def poisoned(self, *inputs):
        losses_ = original(self, *inputs)
        if self.training and run.step == 5:
            before.update({n: t.clone() for n, t in self.state_dict().items()})
            before["moments"] = [s["exp_avg"].clone() for s in run.optimizer.state.values()]
            return losses_ * torch.where(torch.arange(LENGTH) == 3, math.nan, 1.0)
        if self.training and run.step == 6 and "moments" in before:
            moments = before.pop("moments")
            assert all(torch.equal(s["exp_avg"], m) for s, m in zip(run.optimizer.state.values(), moments, strict=True))
            assert all(torch.equal(before[n], t) for n, t in self.state_dict().items())
        return losses_

    monkeypatch.setattr(Decoder, "forward", poisoned)
    outcome = run.run()
    assert "moments" not in before, "the check ran"
    assert outcome.reason == "finished" and math.isfinite(outcome.last_loss) and math.isnan(losses(tmp_path)[5])
    assert [(e["step"], e["kind"]) for e in table(tmp_path, "events") if e["kind"] == "skipped"] == [(5, "skipped")]
    assert len([r for r in table(tmp_path, "ledger") if r["step"] == 5]) == 4, "the rows were used"
    pieces = [r["loss"] for r in table(tmp_path, "losses") if r["step"] == 5]
    assert any(map(math.isnan, pieces)) and any(map(math.isfinite, pieces)), "only the pieces that had it"


def test_mistakes_are_named(tmp_path):
    folder, lots, held = build(tmp_path)
    text = (folder / "stage.json").read_text()

    def refused(change, kind, message):
        value = json.loads(text)
        change(value)
        (folder / "stage.json").write_text(json.dumps(value))
        with pytest.raises(kind, match=message):
            trainer(tmp_path, folder)

    refused(lambda v: v["training"].update(batch_rows=0), RecipeError, r"training\.batch_rows: 0 is below 1")
    refused(lambda v: v["training"].update(threads=100_000), RecipeError, r"training\.threads: 100000 is above")
    refused(lambda v: v["training"].update(batchrows=1), RecipeError, "did you mean 'batch_rows'")
    refused(lambda v: v["training"]["schedule"].update(start="continue"), RecipeError, r"schedule\.start: the first stage has nothing")
    refused(lambda v: v["training"].update(early_stop={"on_stop": "cooldown"}), RecipeError, r"early_stop\.cooldown")
    refused(lambda v: v["training"].update(early_stop={"cooldown": 3}), RecipeError, r"early_stop\.cooldown")
    refused(lambda v: v["training"]["optimizer"].update(name="adamv"), RecipeError, "did you mean 'adamw'")
    refused(lambda v: v["training"].update(early_stop={"monitor": "heldout/cod"}), RecipeError, "heldout/code")
    refused(lambda v: (v["training"]["optimizer"].update(name="kfac"), v["training"].update(compile=True)), RecipeError, "compiled blocks")
    refused(lambda v: v.update(segments_hash="0"), LakeError, "not those that stage 'first' was planned with")
    refused(lambda v: v.update(init_from="runs/r/9-none"), LakeError, "has not ended")
    refused(lambda v: v["model"].update(heads=3), RecipeError, r"model\.heads")
    (folder / "stage.json").write_text(text)
    ended = Outcome("finished", "", 48, 12, "runs/r/0-first/checkpoints/gone", 1.0, 1.0, {}, ())
    (folder / "outcome.json").write_text(json.dumps(dataclasses.asdict(ended)))
    second = write_stage(tmp_path, "second", lots, held, {"code-0": (60, 90)}, 8, init_from="runs/r/0-first", first=(48, 12))
    with pytest.raises(LakeError, match="no such checkpoint"):
        trainer(tmp_path, second)
