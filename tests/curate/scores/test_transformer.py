"""A transformers classifier gives what the model gives, whatever the batches' padding, and nothing of it is fetched, unpickled or run."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.scores.transformer import check_model, folder_content, score
from curate.step import Silent
from schemas.errors import InputError, RecipeError
from schemas.recipe_file import load_recipe
from tests.curate.made_text import corpus, write_jsonl

transformers = pytest.importorskip("transformers")


def make_model(folder, outputs=2):
    """A BERT of random weights over single characters."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz."]
    inner = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(names), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=outputs,
        max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    return model


def task(folder, **changes):
    given = {"folder": str(folder), "content": folder_content(folder, "here"), "label": None, "device": "cpu", "batch": 4, "max_tokens": 64}
    return given | changes


def strings(texts):
    return pa.array(texts, pa.large_string())


def test_scores_are_the_models_whatever_else_is_in_the_batch(tmp_path):
    model = make_model(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["abc", "", "zz top.", "a" * 300, "hello there", "b"]
    with torch.inference_mode():
        wanted = [
            model(**tokenizer(text or "[PAD]", truncation=True, max_length=64, return_tensors="pt")).logits[0] for text in texts if text
        ]
    kept = [n for n, text in enumerate(texts) if text]
    threads = torch.get_num_threads()
    for batch in (1, 2, 6):
        found = score(strings(texts), task(tmp_path, batch=batch))
        assert found[1].as_py() is None, "no token, no score"
        found = found.to_numpy(zero_copy_only=False)
        assert np.allclose(found[kept], [logits.softmax(-1)[1] for logits in wanted], atol=1e-5)
        first = score(strings(texts), task(tmp_path, batch=batch, label=0)).to_numpy(zero_copy_only=False)
        assert np.allclose((first + found)[kept], 1)
    assert torch.get_num_threads() == threads
    one = task(tmp_path, batch=1)
    assert score(strings(texts).slice(2, 3), one).to_pylist() == score(strings(texts), one).to_pylist()[2:5]


def test_one_output_is_given_as_it_is(tmp_path):
    model = make_model(tmp_path, 1)
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path)("abc", return_tensors="pt")
    with torch.inference_mode():
        assert score(strings(["abc"]), task(tmp_path)).to_pylist() == pytest.approx([model(**ids).logits.item()], abs=1e-5)


def test_folders_that_cannot_be_used_are_refused(tmp_path):
    make_model(tmp_path / "three", 3)
    with pytest.raises(RecipeError, match="3 outputs"):
        check_model(tmp_path / "three", None, 64, "signals.s")
    with pytest.raises(RecipeError, match="no output 3"):
        check_model(tmp_path / "three", 3, 64, "signals.s")
    check_model(tmp_path / "three", 2, 64, "signals.s")
    with pytest.raises(RecipeError, match=r"s\.max_tokens: the model has 64 positions, not 65"):
        check_model(tmp_path / "three", 2, 65, "signals.s")
    with pytest.raises(InputError, match="fails on 1 texts of 65 tokens"):
        score(strings(["a" * 99]), task(tmp_path / "three", label=2, max_tokens=65))
    with pytest.raises(InputError, match="no config.json"):
        check_model(tmp_path, None, 64, "signals.s")
    weights = tmp_path / "three/model.safetensors"
    torch.save({}, tmp_path / "three/pytorch_model.bin")
    weights.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="not safetensors"):
        check_model(tmp_path / "three", 2, 64, "signals.s")
    weights.write_bytes(b"12345678 nothing")
    with pytest.raises(InputError, match="cannot be loaded"):
        score(strings(["a"]), task(tmp_path / "three"))


def test_a_recipe_uses_it_in_a_rule(tmp_path):
    make_model(tmp_path / "model")
    write_jsonl(tmp_path / "web.jsonl", [text[:80] for text in corpus(1, 30)])
    recipe = {
        "name": "made",
        "sources": {"web": {"reader": "jsonl", "paths": ["web.jsonl"]}},
        "signals": {"nice": {"transformer": {"path": "model", "batch": 8, "max_tokens": 64}}},
        "rules": [{"name": "poor", "sql": "nice < 0.5"}],
        "shards": {"bytes": 1000},
        "holdout": {"share": 0},
    }
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    root = tmp_path / "lake"
    snapshot = curate(Curation(root, load_recipe(tmp_path / "r.yaml"), LocalExecutor(1), Silent()))
    assert len(snapshot.files("scores")) > 1
    scores = [row["value"] for file in snapshot.files("scores") for row in pq.read_table(root / file.path).to_pylist()]
    wanted = score(strings([text[:80] for text in corpus(1, 30)]), task(tmp_path / "model", batch=1))
    assert np.allclose(scores, wanted.to_numpy(zero_copy_only=False), atol=1e-5)
    reasons = [row["reason"] for file in snapshot.files("verdicts") for row in pq.read_table(root / file.path).to_pylist()]
    assert [reason == "poor" for reason in reasons] == [value < 0.5 for value in scores]
