"""Weights to and from Hugging Face's form: ``transformers`` is the oracle of both kinds of model, and a stage starts from its folders."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from schemas.errors import LakeError, RecipeError
from schemas.hf_config import config_of, numbers_of
from schemas.model import ModelSettings, RopeScaling
from tests.train.run_tables import trainer
from tests.train.tiny_lake import LENGTH, MODEL, WORDS, build
from train.interchange import load_pretrained, to_hf
from train.model import Decoder
from train.tensor_file import read_tensors, write_tensors

GPT2 = ModelSettings(kind="gpt2", layers=2, width=32, heads=4, init_std=0.2)
SETTINGS = {
    "llama": dataclasses.replace(MODEL, init_std=0.2),
    "untied": dataclasses.replace(MODEL, tied=False, kv_heads=0, norm_eps=1e-6, init_std=0.2),
    "linear": dataclasses.replace(MODEL, rope_scaling=RopeScaling("linear", 2.0), init_std=0.2),
    "llama3": dataclasses.replace(MODEL, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 64), rope_theta=500.0, init_std=0.2),
    "gpt2": GPT2,
    "gpt2 tanh": dataclasses.replace(GPT2, gelu="tanh", ff_width=48),
}
LLAMA = {"model_type": "llama", "num_attention_heads": 4, "hidden_size": 32}
TOKENS = torch.randint(0, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def logits(model: Decoder) -> torch.Tensor:
    positions = torch.arange(LENGTH).expand(TOKENS.shape)
    with torch.no_grad():
        return model.eval().hidden(TOKENS, torch.zeros_like(TOKENS), positions) @ model.output_weight.T


def write_folder(folder, model: Decoder) -> None:
    folder.mkdir(parents=True)
    write_tensors(folder / "model.safetensors", to_hf(model.state_dict(), model.settings))
    (folder / "config.json").write_text(json.dumps(config_of(model.settings, model.vocabulary, model.length, 0, 1)))


@pytest.mark.parametrize("name", SETTINGS)
def test_transformers_computes_the_same_logits_and_its_folder_loads_back(tmp_path, name):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model = Decoder(SETTINGS[name], WORDS, LENGTH, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
    write_folder(tmp_path / "ours", model)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(TOKENS).logits, logits(model), atol=1e-5, rtol=1e-5)
    theirs.save_pretrained(tmp_path / "theirs")
    numbers = numbers_of(json.loads((tmp_path / "theirs/config.json").read_text()), "config.json")
    scaling = numbers.pop("rope_scaling", None)
    settings = ModelSettings(**numbers, rope_scaling=RopeScaling(**scaling) if scaling else None)
    again = Decoder(settings, WORDS, LENGTH, seed=9)
    load_pretrained(again, tmp_path / "theirs", again.as_dict(), settings)
    torch.testing.assert_close(logits(again), logits(model), atol=1e-6, rtol=1e-6)


def test_the_safetensors_library_reads_what_is_written_and_writes_what_is_read(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    tensors = {"b": torch.randn(3, 5), "a": torch.randn(7).bfloat16(), "empty": torch.zeros(0, 2), "n": torch.arange(3)}
    write_tensors(tmp_path / "ours", tensors)
    safetensors.save_file(tensors, tmp_path / "theirs")
    for found in (safetensors.load_file(tmp_path / "ours"), dict(read_tensors(tmp_path / "theirs"))):
        assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:4], lambda b: b"\xff" * 8 + b[8:], lambda b: b.replace(b"F32", b"F99")])
def test_a_damaged_file_is_refused(tmp_path, damage):
    write_tensors(tmp_path / "file", {"a": torch.randn(4, 4)})
    (tmp_path / "file").write_bytes(damage((tmp_path / "file").read_bytes()))
    with pytest.raises(LakeError, match="not a safetensors file"):
        dict(read_tensors(tmp_path / "file"))


def test_a_stage_starts_from_a_folder_and_refuses_another_model(tmp_path):
    source = Decoder(MODEL, WORDS, LENGTH, seed=42)
    write_folder(tmp_path / "models/abc", source)
    folder, _, _ = build(tmp_path, init_from="models/abc")
    started = trainer(tmp_path, folder)
    assert all(map(torch.equal, started.model.parameters(), source.parameters()))
    assert started.run().reason == "finished"
    config = json.loads((tmp_path / "models/abc/config.json").read_text())
    (folder / "outcome.json").unlink()
    for name in (folder / "checkpoints").iterdir():
        name.rename(tmp_path / name.name)
    for change, message in (({"num_hidden_layers": 3}, "layers is 2, the folder has 3"), ({"vocab_size": 65}, "has 64 words, .* 65")):
        (tmp_path / "models/abc/config.json").write_text(json.dumps(config | change))
        with pytest.raises(LakeError, match=message):
            trainer(tmp_path, folder)
    (tmp_path / "models/abc/config.json").write_text(json.dumps(config))
    (tmp_path / "models/abc/model.safetensors").unlink()
    with pytest.raises(LakeError, match="weights do not fit"):
        trainer(tmp_path, folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "bert"}, "model_type is 'bert'"),
        ({**LLAMA, "attention_bias": True}, "attention_bias is True"),
        (
            {**LLAMA, "rope_scaling": {"rope_type": "yarn"}},
            "rope_type is 'yarn'",
        ),
        ({"model_type": "gpt2", "activation_function": "relu"}, "activation_function is 'relu'"),
        ({"model_type": "gpt2"}, "lacks 'n_layer'"),
        ([], "model_type is None"),
    ],
)
def test_what_the_decoder_is_not_is_refused_by_field(config, message):
    with pytest.raises(RecipeError, match=message):
        numbers_of(config, "config.json")
