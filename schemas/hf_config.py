"""Hugging Face's ``config.json`` of Llama and GPT-2 models, to and from model settings."""

from __future__ import annotations

from typing import Any

from schemas.errors import RecipeError
from schemas.model import ModelSettings

Json = Any
_GELU = {"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


def config_of(model: ModelSettings, vocabulary: int, length: int, bos: int, eos: int) -> dict[str, Json]:
    """The config of a model as ``transformers`` reads it."""
    shared = {"vocab_size": vocabulary, "tie_word_embeddings": model.tied, "bos_token_id": bos, "eos_token_id": eos, "dtype": "float32"}
    if model.kind == "gpt2":
        return shared | {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_layer": model.layers,
            "n_embd": model.width,
            "n_head": model.heads,
            "n_inner": model.inner_width,
            "n_positions": length,
            "activation_function": "gelu" if model.gelu == "exact" else "gelu_new",
            "layer_norm_epsilon": model.norm_eps,
            "initializer_range": model.init_std,
            "attn_pdrop": 0.0,
            "embd_pdrop": model.dropout,
            "resid_pdrop": model.dropout,
        }
    rope: dict[str, Json] = {"rope_theta": model.rope_theta, "rope_type": "default"}
    if (scaling := model.rope_scaling) is not None:
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
            rope |= {"original_max_position_embeddings": scaling.original_length}
    return shared | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": model.layers,
        "hidden_size": model.width,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.all_kv_heads,
        "head_dim": model.width // model.heads,
        "intermediate_size": model.inner_width,
        "max_position_embeddings": length,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "initializer_range": model.init_std,
        "rope_parameters": rope,
        # what versions of transformers before 5 read
        "rope_theta": model.rope_theta,
        "rope_scaling": None if scaling is None else {k: v for k, v in rope.items() if k != "rope_theta"},
    }


def numbers_of(config: dict[str, Json], where: str) -> dict[str, Json]:
    """Fields of ``ModelSettings`` that a config decides.

    Raises:
        RecipeError: another architecture, or a feature that the decoder has not; names the field and its value.
    """
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in ("llama", "gpt2"):
        raise RecipeError(f"model_type is {kind!r}", where=where, fix="start from a llama or gpt2 model")
    try:
        return _gpt2(config, where) if kind == "gpt2" else _llama(config, where)
    except (KeyError, TypeError) as error:
        raise RecipeError(f"the config lacks {error}, or has it in another form", where=where) from error


def _gpt2(config: dict[str, Json], where: str) -> dict[str, Json]:
    activation = config.get("activation_function", "gelu_new")
    _demand(activation in _GELU, "activation_function", activation, where)
    for field, plain in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False), ("add_cross_attention", False)):
        _demand(config.get(field, plain) == plain, field, config.get(field), where)
    return {
        "kind": "gpt2",
        "layers": config["n_layer"],
        "width": config["n_embd"],
        "heads": config["n_head"],
        "ff_width": config.get("n_inner") or 4 * config["n_embd"],
        "gelu": _GELU[activation],
        "norm_eps": config.get("layer_norm_epsilon", 1e-5),
        "tied": config.get("tie_word_embeddings", True),
    }


def _llama(config: dict[str, Json], where: str) -> dict[str, Json]:
    heads = config["num_attention_heads"]
    for field, plain in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        _demand(config.get(field, plain) == plain, field, config.get(field), where)
    head = config.get("head_dim") or config["hidden_size"] // heads
    _demand(head * heads == config["hidden_size"], "head_dim", head, where)
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    _demand(kind in ("default", "linear", "llama3"), "rope_parameters.rope_type", kind, where)
    scaling: dict[str, Json] | None = None
    if kind != "default":
        scaling = {"kind": kind, "factor": float(rope["factor"])}
    if scaling is not None and kind == "llama3":
        scaling |= {name: float(rope[name]) for name in ("low_freq_factor", "high_freq_factor")}
        scaling["original_length"] = rope["original_max_position_embeddings"]
    return {
        "kind": "llama",
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "ff_width": config["intermediate_size"],
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "rope_theta": float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        "rope_scaling": scaling,
        "tied": config.get("tie_word_embeddings", False),
    }


def positions_of(config: dict[str, Json]) -> int:
    """Longest row that a model with this config was made for."""
    return int(config.get("n_positions", 1024) if config.get("model_type") == "gpt2" else config.get("max_position_embeddings", 2048))


def _demand(holds: bool, field: str, value: Json, where: str) -> None:
    if not holds:
        raise RecipeError(f"{field} is {value!r}, which the decoder does not have", where=where)
