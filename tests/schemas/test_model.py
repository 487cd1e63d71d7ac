"""Model sizes by name, and what a recipe makes of them."""

from __future__ import annotations

import pytest

from schemas.errors import RecipeError
from schemas.model import SIZES, ModelSettings
from schemas.recipe import Recipe
from schemas.recipe_file import load_recipe


def recipe(tmp_path, model: str) -> Recipe:
    path = tmp_path / "r.yaml"
    path.write_text(f"name: r\nsources: {{a: {{reader: text, paths: [x]}}}}\nmodel: {model}\n")
    return load_recipe(path)


def test_a_size_by_name_gives_the_numbers_and_numbers_beside_it_win(tmp_path):
    found = recipe(tmp_path, "{size: 350M, layers: 6}").model
    assert (found.layers, found.width, found.heads, found.tied) == (6, 1024, 16, True)
    big = recipe(tmp_path, "{size: 70B}").model
    assert (big.kv_heads, big.ff_width, big.tied) == (8, 28672, False)
    gpt2 = recipe(tmp_path, "{size: 70B, kind: gpt2}").model
    assert (gpt2.kv_heads, gpt2.inner_width) == (0, 4 * 8192)


@pytest.mark.parametrize("size", SIZES)
def test_a_size_has_about_the_parameters_of_its_name(size):
    from curate.model_size import parameters

    named = float(size[:-1]) * {"M": 1e6, "B": 1e9}[size[-1]]
    for kind in ("llama", "gpt2") if size != "70B" else ("llama",):
        numbers = {k: v for k, v in SIZES[size].items() if kind == "llama" or k not in ("kv_heads", "ff_width")}
        assert 0.87 < parameters(ModelSettings(kind=kind, **numbers), 32_000 if size[-2:] == "0B" else 50_257, 1024) / named < 1.33, kind


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{size: 125M}", "model.size"),
        ("{kind: gpt2, kv_heads: 2}", "kv_heads"),
        ("{kind: gpt2, rope_scaling: {kind: linear, factor: 2}}", "rope_scaling"),
        ("{rope_scaling: {kind: yarn, factor: 2}}", "rope_scaling"),
        ("{gelu: tanh}", "gelu"),
    ],
)
def test_what_does_not_fit_is_refused_by_field(tmp_path, model, message):
    with pytest.raises(RecipeError, match=message):
        recipe(tmp_path, model)
