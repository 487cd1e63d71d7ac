"""The classifier tells kinds of text apart that length does not, gives the same bytes again, and reads no damaged file."""

import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.scores.classifier import auc, load_classifier, train, train_and_judge
from curate.scores.tensors import read_tensors, write_tensors
from curate.step import Silent
from pipelines.cli import run_command
from schemas.errors import InputError
from schemas.recipe_file import load_recipe
from tests.curate.made_text import COMMON, vocabulary, write_jsonl

SOURCE = random.Random(0)
WORDS = vocabulary(SOURCE, 300)


def made(good, count, source):
    """Sentences of the same words and lengths; good ones mostly have 'of the' in a row, bad ones mostly 'the of'."""
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(source.randint(4, 12)):
            order = ["of", "the"] if (source.random() < 0.7) == good else ["the", "of"]
            parts.append(" ".join([source.choice(WORDS), *order, source.choice(WORDS), source.choice(COMMON)]))
        texts.append(". ".join(parts) + ".")
    return texts


def strings(texts):
    return pa.array(texts, pa.large_string())


def test_pairs_of_words_are_learned_where_single_words_and_length_say_nothing():
    source = random.Random(1)
    trained = train_and_judge(strings(made(True, 300, source)), strings(made(False, 300, source)))
    assert trained.judged.auc > 0.85 and trained.judged.accuracy > 0.75
    assert 0.35 < trained.length_only.auc < 0.65
    assert (trained.good, trained.bad) == (300, 300) and 80 < trained.held_out < 160


def test_length_only_is_the_best_that_length_does():
    source = random.Random(2)
    texts = made(True, 400, source)
    longer, shorter = sorted(texts, key=len)[200:], sorted(texts, key=len)[:200]
    trained = train_and_judge(strings(shorter), strings(longer))
    assert trained.length_only.auc > 0.999 and trained.length_only.accuracy > 0.97


def test_auc_is_the_share_of_pairs_in_order_ties_half():
    draw = np.random.Generator(np.random.PCG64(3))
    for _ in range(20):
        scores, labels = draw.integers(0, 6, 30).astype(float), draw.random(30) < 0.4
        good, bad = scores[labels], scores[~labels]
        if len(good) and len(bad):
            pairs = [(g > b) + (g == b) / 2 for g in good for b in bad]
            assert auc(scores, labels) == pytest.approx(np.mean(pairs))


def test_the_same_texts_give_the_same_bytes_and_scores_survive_the_file(tmp_path):
    source = random.Random(4)
    texts = strings(made(True, 60, source) + made(False, 40, source) + ["", " ", "one", "日本語 の 文"])
    labels = np.arange(len(texts)) < 60
    first, second = train(texts, labels), train(texts, labels)
    first.save(tmp_path / "a.safetensors")
    second.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    loaded = load_classifier(tmp_path / "a.safetensors")
    scores = first.score(texts)
    assert np.array_equal(loaded.score(texts), scores)
    assert np.array_equal(np.concatenate([loaded.score(texts.slice(n, 1)) for n in range(len(texts))]), scores)
    assert ((scores > 0) & (scores < 1)).all() and scores[:60].mean() > 0.6 > 0.4 > scores[60:100].mean()
    assert np.array_equal(load_file(tmp_path / "a.safetensors")["weights"], first.weights), "any reader of the format opens it"


@pytest.mark.parametrize(
    "damage", [lambda b: b[:7], lambda b: b[:-4], lambda b: b"\xff" * 8 + b[8:], lambda b: b.replace(b'"weights"', b'"wei"')]
)
def test_a_damaged_file_is_a_users_error(tmp_path, damage):
    path = tmp_path / "m.safetensors"
    train(strings(["a b", "c d"]), np.array([True, False])).save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError):
        load_classifier(path)
    with pytest.raises(InputError, match="check the path"):
        load_classifier(tmp_path / "none.safetensors")


def test_tensors_are_read_back(tmp_path):
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.zeros(0, np.float32)}
    write_tensors(tmp_path / "t", arrays, {"n": 1})
    read, note = read_tensors(tmp_path / "t")
    assert note == {"n": 1} and all(np.array_equal(read[name], arrays[name]) for name in arrays)


def test_train_prints_both_and_a_recipe_uses_the_file_as_a_signal_keyed_by_its_content(tmp_path, capsys):
    source = random.Random(5)
    good, bad = made(True, 120, source), made(False, 120, source)
    write_jsonl(tmp_path / "good.jsonl", good)
    pq.write_table(pa.table({"text": bad}), tmp_path / "bad.parquet")
    model = tmp_path / "model.safetensors"
    train_it = ["classify", "train", str(tmp_path / "good.jsonl"), str(tmp_path / "bad.parquet"), "-o", str(model)]
    assert run_command(train_it) == 0
    assert "classifier" in (shown := capsys.readouterr().out) and "length alone" in shown
    assert run_command([*train_it, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classifier"]["auc"] > 0.8
    write_jsonl(tmp_path / "web.jsonl", [*good[:30], *bad[:30]])
    recipe = {"reader": "jsonl", "paths": ["web.jsonl"]}
    (tmp_path / "r.yaml").write_text(
        json.dumps(
            {
                "name": "made",
                "sources": {"web": recipe},
                "signals": {"quality": {"classifier": "model.safetensors"}},
                "rules": [{"name": "poor", "sql": "quality < 0.5"}],
                "dedup": {"exact": False, "near": None},
                "holdout": {"share": 0},
            }
        )
    )

    def verdicts():
        snapshot = curate(Curation(tmp_path / "lake", load_recipe(tmp_path / "r.yaml"), LocalExecutor(1), Silent()))
        rows = [row for file in snapshot.files("verdicts") for row in pq.read_table(tmp_path / "lake" / file.path).to_pylist()]
        return [row["reason"] for row in rows], snapshot.steps["score_quality"][0].key

    reasons, key = verdicts()
    wanted = load_classifier(model).score(strings([*good[:30], *bad[:30]])) < 0.5
    assert [reason == "poor" for reason in reasons] == wanted.tolist() and 25 < wanted.sum() < 35
    train(strings(good[:10] + bad), np.arange(130) < 10).save(model)
    assert verdicts()[1] != key
    assert run_command(["classify", "train", str(tmp_path / "good.jsonl"), str(tmp_path / "none")]) == 2
