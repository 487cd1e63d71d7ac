"""The decoder against a FP64 computation of its own, document by document, and its samples."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from schemas.errors import RecipeError
from schemas.model import RopeScaling
from schemas.settings import ModelSettings
from tests.train.tiny_lake import BOS, MODEL, WORDS, build
from train.data import RowReader
from train.generate import generate
from train.model import Decoder


def reference_losses(model: Decoder, document: list[int]) -> np.ndarray:
    """Loss of each token but the first of one document on its own: plain NumPy in FP64, from the papers."""
    weights = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    s = model.settings
    heads, kv_heads, width = s.heads, s.kv_heads or s.heads, s.width // s.heads

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + s.norm_eps) * weights[f"{name}.weight"]

    def rotate(x):
        half = width // 2
        angle = np.arange(len(x))[:, None] * s.rope_theta ** (-np.arange(half) / half)
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None]
        return np.concatenate([turned.real, turned.imag], -1)

    x = weights["embedding.weight"][document]
    for layer in range(s.layers):
        at = f"blocks.{layer}"
        y = norm(x, f"{at}.attention_norm")
        q = rotate((y @ weights[f"{at}.attention.q.weight"].T).reshape(len(y), heads, width))
        k = rotate((y @ weights[f"{at}.attention.k.weight"].T).reshape(len(y), kv_heads, width))
        v = (y @ weights[f"{at}.attention.v.weight"].T).reshape(len(y), kv_heads, width)
        seen = []
        for h in range(heads):
            scores = q[:, h] @ k[:, h * kv_heads // heads].T / np.sqrt(width)
            scores[np.triu_indices(len(y), 1)] = -np.inf
            share = np.exp(scores - scores.max(-1, keepdims=True))
            seen.append(share / share.sum(-1, keepdims=True) @ v[:, h * kv_heads // heads])
        x = x + np.concatenate(seen, -1) @ weights[f"{at}.attention.out.weight"].T
        y = norm(x, f"{at}.feed_forward_norm")
        gate = y @ weights[f"{at}.feed_forward.gate.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (y @ weights[f"{at}.feed_forward.up.weight"].T)
        x = x + inner @ weights[f"{at}.feed_forward.down.weight"].T
    logits = norm(x, "norm") @ weights["embedding.weight" if s.tied else "head.weight"].T
    logits -= logits.max(-1, keepdims=True)
    log_probability = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -log_probability[np.arange(len(document) - 1), document[1:]]


@pytest.mark.parametrize("settings", [MODEL, dataclasses.replace(MODEL, tied=False, kv_heads=0, heads=2, init_std=0.2)])
def test_losses_equal_those_of_each_document_alone(tmp_path, settings):
    _, lots, _ = build(tmp_path)
    batch = RowReader(tmp_path, lots).read(np.array([0, 1, 0]), np.array([0, 3, lots[0].rows - 1]), height=4)
    model = Decoder(settings, WORDS, 32, seed=3)
    inputs = [torch.from_numpy(a) for a in (batch.tokens, batch.targets(), batch.documents(), batch.positions())]
    losses = model(*inputs).detach().numpy()
    expected = np.zeros_like(losses)
    for row, start, end in zip(batch.row_of_piece, batch.starts, batch.ends, strict=True):
        expected[row, start : end - 1] = reference_losses(model, batch.tokens[row, start:end].tolist())
    assert (expected > 0).sum() == batch.valid_tokens
    np.testing.assert_allclose(losses, expected, atol=5e-6)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize(("attention", "positions"), [("row", "row"), ("row", "document"), ("document", "row")])
def test_attention_and_positions_are_over_rows_where_asked(tmp_path, kind, attention, positions):
    _, lots, _ = build(tmp_path)
    batch = RowReader(tmp_path, lots).read(np.array([0, 0, 1, 1]), np.array([0, 1, 2, 3]))
    settings = dataclasses.replace(MODEL, kind=kind, kv_heads=0, init_std=0.3, attention=attention, positions=positions)
    tokens, targets, documents, places = (
        torch.from_numpy(a) for a in (batch.tokens, batch.targets(), batch.documents(), batch.positions())
    )
    losses = Decoder(settings, WORDS, 32, seed=3)(tokens, targets, documents, places)
    if attention == "row":
        documents = torch.zeros_like(documents)
    if positions == "row":
        places = torch.arange(32).expand(tokens.shape)
    plain = Decoder(dataclasses.replace(settings, attention="document", positions="document"), WORDS, 32, seed=3)
    torch.testing.assert_close(losses, plain(tokens, targets, documents, places), atol=0, rtol=0)
    first, second = batch.documents() == 0, (batch.documents() == 1) & (batch.targets() >= 0)
    assert second.any()
    tokens[torch.from_numpy(first)] = (tokens[torch.from_numpy(first)] + 1) % WORDS
    inputs = (tokens, targets, torch.from_numpy(batch.documents()), torch.from_numpy(batch.positions()))
    moved = (Decoder(settings, WORDS, 32, seed=3)(*inputs) - losses).abs().detach().numpy()[second]
    assert (moved.max() > 1e-6) == (attention == "row"), "the second document sees the first one's tokens, or does not"


def test_z_loss_is_added_while_training_and_never_in_evaluation(tmp_path):
    _, lots, _ = build(tmp_path)
    batch = RowReader(tmp_path, lots).read(np.array([0, 1]), np.array([0, 3]))
    inputs = [torch.from_numpy(a) for a in (batch.tokens, batch.targets(), batch.documents(), batch.positions())]
    settings = dataclasses.replace(MODEL, init_std=0.3)
    plain, model = Decoder(settings, WORDS, 32, seed=3), Decoder(settings, WORDS, 32, seed=3, z_loss=0.01)
    losses = model(*inputs)
    hidden = model.hidden(inputs[0], *inputs[2:])
    logits = (hidden @ model.output_weight.T).double()
    z = torch.where(inputs[1] >= 0, 0.01 * logits.logsumexp(-1) ** 2, 0)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs[1].flatten(), reduction="none").view(z.shape) + z
    np.testing.assert_allclose(losses.detach().numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert float(z.detach().sum()) > 1
    parameters = list(model.parameters())
    for found, wanted in zip(*(torch.autograd.grad(value.sum(), parameters) for value in (losses, expected)), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-4)
    assert torch.equal(model.eval()(*inputs), plain.eval()(*inputs))


def test_tied_embeddings_are_one_parameter_and_initialisation_is_seeded():
    tied, untied = Decoder(MODEL, WORDS, 32, seed=1), Decoder(dataclasses.replace(MODEL, tied=False), WORDS, 32, seed=1)
    assert untied.parameter_count() - tied.parameter_count() == WORDS * MODEL.width
    assert tied.output_weight is tied.embedding.weight
    again, other = Decoder(MODEL, WORDS, 32, seed=1), Decoder(MODEL, WORDS, 32, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(tied.parameters(), again.parameters(), strict=True))
    assert not torch.equal(tied.embedding.weight, other.embedding.weight)
    big = Decoder(ModelSettings(layers=8, width=256, heads=4), WORDS, 32)
    assert float(big.blocks[0].attention.q.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert float(big.blocks[0].feed_forward.down.weight.detach().std()) == pytest.approx(0.02 / 4, rel=0.02)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"heads": 5}, "heads"),
        ({"kv_heads": 3}, "kv_heads"),
        ({"width": 36}, "width"),
        ({"dropout": 1.0}, "dropout"),
        ({"kind": "gpt2"}, "kv_heads"),
        ({"gelu": "tanh"}, "gelu"),
        ({"rope_scaling": RopeScaling("linear", 0.5)}, "rope_scaling"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_field(change, field):
    with pytest.raises(RecipeError, match=rf"model\.{field}"):
        Decoder(dataclasses.replace(MODEL, **change), WORDS, 32)


def test_samples_are_seeded_and_respect_top_k():
    model = Decoder(dataclasses.replace(MODEL, init_std=0.5), WORDS, 8, seed=1)
    first = generate(model, [BOS], 20, seed=5)
    assert first == generate(model, [BOS], 20, seed=5) != generate(model, [BOS], 20, seed=6)
    assert len(first) == 20 and model.training
    greedy = generate(model, [BOS, 5], 12, temperature=0)
    assert greedy == generate(model, [BOS, 5], 12, top_k=1, seed=9)
    tokens = [BOS, 5, *greedy]
    for i in range(2, len(tokens)):
        model.eval()
        assert int(model.next_logits(torch.tensor([tokens[max(0, i - 8) : i]])).argmax()) == tokens[i]
    assert generate(model, [BOS, 5], 12, temperature=0, stop=greedy[3]) == greedy[: greedy.index(greedy[3])]
    with pytest.raises(ValueError, match="prompt"):
        generate(model, [], 3)
