"""Multiple choice: likelihoods against an evaluation of each option alone in FP64; the same for any batch; in a run and over a resume."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest
import torch

from schemas.errors import LakeError
from schemas.settings import ChoiceSet, LotShard
from schemas.store import publish
from schemas.tables import CHOICES
from tests.train.run_tables import After, Alone, losses, trainer
from tests.train.tiny_lake import LENGTH, MODEL, TRAINING, WORDS, build
from train.choices import Choices, evaluate_choices
from train.interrupt import Interrupted
from train.model import Decoder


def write(root, questions: int = 7, seed: int = 0) -> ChoiceSet:
    """A set of questions with two to four options of random tokens."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(questions):
        context, count = random.integers(2, WORDS, random.integers(1, 12)), int(random.integers(2, 5))
        right = int(random.integers(count))
        for place in range(count):
            option = random.integers(2, WORDS, random.integers(1, 9))
            tokens = [0, *context.tolist(), *option.tolist()]
            size = int(random.integers(1, 40))
            rows.append({"question": number, "tokens": tokens, "scored": len(option), "bytes": size, "right": place == right})
    table = pa.Table.from_pylist(rows, schema=CHOICES)

    def save(path):
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, CHOICES) as writer:
            writer.write(table)

    done = publish(root, "choices/quiz.arrow", save, len(rows))
    return ChoiceSet("quiz", LotShard(done.path, done.rows, done.bytes, done.checksum))


def test_answers_are_those_of_each_option_alone(tmp_path):
    entry = write(tmp_path, questions=40)
    quiz, model = Choices(tmp_path, entry), Decoder(MODEL, WORDS, LENGTH, seed=3)
    with pa.memory_map(str(tmp_path / entry.shard.path)) as source:
        rows = pa.ipc.open_file(source).read_all().to_pylist()
    double = Decoder(MODEL, WORDS, LENGTH, seed=3).double()
    double.cos, double.sin = double.cos.double(), double.sin.double()
    nats = []
    for row in rows:
        tokens = torch.tensor([row["tokens"]])
        hidden = double.hidden(tokens, torch.zeros_like(tokens), torch.arange(tokens.shape[1])[None])[0]
        picked = (hidden[:-1] @ double.output_weight.T).log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
        nats.append(-float(picked[-row["scored"] :].sum().detach()))
    expected = {}
    for name, values in (("accuracy", [n / r["bytes"] for n, r in zip(nats, rows, strict=True)]), ("accuracy_raw", nats)):
        right = 0
        for number in range(40):
            mine = [i for i, row in enumerate(rows) if row["question"] == number]
            right += rows[min(mine, key=lambda i: values[i])]["right"]
        expected[f"{name}/quiz"] = right / 40
    for height in (1, 3, 64):
        found = evaluate_choices(model, [quiz], height=height, precision="fp32", ranks=Alone(), pause=lambda: None)
        assert found == expected
    assert model.training and len(set(expected.values())) == 2


def test_a_run_measures_them_at_each_evaluation_and_resumes(tmp_path):
    for name in ("whole", "stopped"):
        root = tmp_path / name
        folder, _, _ = build(root, rows=16, training=dataclasses.replace(TRAINING, eval_every=2))
        stage = json.loads((folder / "stage.json").read_text())
        stage["choices"] = [dataclasses.asdict(write(root))]
        (folder / "stage.json").write_text(json.dumps(stage))
        if name == "stopped":
            with pytest.raises(Interrupted):
                trainer(root, folder, After(8)).run()
        trainer(root, folder).run()
    for name in ("accuracy/quiz", "accuracy_raw/quiz", "perplexity", "perplexity/code"):
        values = losses(tmp_path / "whole", name)
        assert list(values) == [1, 3] and values == losses(tmp_path / "stopped", name)
    for step, loss in losses(tmp_path / "whole", "heldout").items():
        assert losses(tmp_path / "whole", "perplexity")[step] == pytest.approx(np.exp(loss))


def test_a_changed_file_is_refused(tmp_path):
    entry = write(tmp_path)
    path = tmp_path / entry.shard.path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LakeError, match="changed or cut short"):
        Choices(tmp_path, entry)
