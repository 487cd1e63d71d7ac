"""muP: activations and updates keep their size over widths, where the standard parametrisation's grow; exported models are the same."""

from __future__ import annotations

import pytest
import torch

from schemas.model import ModelSettings
from train.interchange import from_hf, to_hf
from train.model import Decoder
from train.optim import build_optimizer

WIDTHS = (64, 128, 256, 512)
BASE = 64


def coordinates(width: int, base: int, kind: str, tied: bool) -> list[float]:
    """RMS of the last block's output, and of what four steps of AdamW changed of it and of the logits."""
    settings = ModelSettings(kind=kind, layers=2, width=width, heads=4, tied=tied, mup_base_width=base)
    model = Decoder(settings, 128, 32, seed=1)
    optimizer = build_optimizer("adamw", model.named_parameters(), lr=4e-3, weight_decay=0.0, width_ratio=settings.width_ratio)
    tokens = torch.randint(0, 128, (4, 32), generator=torch.Generator().manual_seed(0))
    documents, positions = torch.zeros_like(tokens), torch.arange(32).expand(tokens.shape)

    def look() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            return model._through(tokens, documents, positions), model.hidden(tokens, documents, positions) @ model.output_weight.T

    before = look()
    for _ in range(4):
        optimizer.zero_grad()
        model(tokens, tokens.roll(-1, 1), documents, positions).mean().backward()
        optimizer.step()
    after = look()
    changes = [float((late - early).square().mean().sqrt()) for early, late in zip(before, after, strict=True)]
    return [float(after[0].square().mean().sqrt()), *changes]


@pytest.mark.parametrize(("kind", "tied"), [("llama", True), ("gpt2", False)])
def test_the_coordinates_keep_their_size_over_widths(kind, tied):
    by_width = torch.tensor([coordinates(width, BASE, kind, tied) for width in WIDTHS])
    standard = torch.tensor([coordinates(width, 0, kind, tied) for width in (WIDTHS[0], WIDTHS[-1])])
    assert (by_width.amax(0) / by_width.amin(0)).max() < 2
    assert ((standard[1] / standard[0]) > 2).all(), "without it they grow"


def test_the_parametrisation_at_the_base_width_with_heads_of_64_is_the_standard_one():
    tokens = torch.arange(16)[None]
    rest = (tokens.roll(-1, 1), torch.zeros_like(tokens), tokens)
    losses = [Decoder(ModelSettings(layers=2, width=128, heads=2, mup_base_width=base), 64, 16, seed=3)(tokens, *rest) for base in (0, 128)]
    torch.testing.assert_close(losses[0], losses[1])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_an_exported_model_has_the_factors_in_its_weights(kind):
    """The names of Hugging Face back to ours, in a model without muP."""
    sizes = {"kind": kind, "layers": 2, "width": 128, "heads": 4}
    model = Decoder(ModelSettings(**sizes, mup_base_width=32), 64, 16, seed=3)
    plain = Decoder(ModelSettings(**sizes), 64, 16)
    plain.load_state_dict(from_hf(to_hf(model.state_dict(), model.settings), plain.settings))
    tokens = torch.arange(16)[None]
    torch.testing.assert_close(plain.next_logits(tokens), model.next_logits(tokens), rtol=1e-5, atol=1e-6)


def test_rules_that_do_not_move_by_the_learning_rate_are_refused():
    model = Decoder(ModelSettings(layers=1, width=64, heads=1), 64, 16)
    with pytest.raises(ValueError, match="muP's learning rates are for adamw"):
        build_optimizer("sgd", model.named_parameters(), lr=1e-3, width_ratio=2.0)
    groups = build_optimizer("adamw", model.named_parameters(), lr=1e-3, width_ratio=2.0).param_groups
    assert {name: group["lr"] for group in groups for name in group["param_names"]} == {
        name: 5e-4 if name.startswith("blocks.") and parameter.ndim > 1 else 1e-3 for name, parameter in model.named_parameters()
    }
