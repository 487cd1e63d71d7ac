"""Weights of Hugging Face's Llama and GPT-2 to the decoder's names and back.

Rotary pairs lie alike in both (first and second half of a head), so Llama's matrices carry over as they are. GPT-2's are stored input
first, and its q, k and v lie side by side in one.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch

from schemas.errors import LakeError
from schemas.hf_config import numbers_of, positions_of
from schemas.settings import ModelSettings, build
from schemas.store import read_json
from train.model import Decoder
from train.sharding import load_weights
from train.tensor_file import read_tensors

State = dict[str, torch.Tensor]
IMPORTED = "models"
"""Folder of a lake that holds the models that runs start from."""

_LLAMA = {
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
_GPT2 = {"attention_norm": "ln_1", "attention.out": "attn.c_proj", "feed_forward_norm": "ln_2", "feed_forward.down": "mlp.c_proj"}


def to_hf(state: State, settings: ModelSettings) -> State:
    """The weights of a decoder under the names of ``LlamaForCausalLM`` or ``GPT2LMHeadModel``; a tied head is left out.

    Those models know no muP: its factors are taken into the queries' weights and the last norm's.
    """
    state = {name: value * _factor(name, settings) for name, value in state.items()} if settings.mup_base_width else state
    gpt2 = settings.kind == "gpt2"
    body = "transformer" if gpt2 else "model"
    last = "transformer.ln_f" if gpt2 else "model.norm"
    made = {f"{last}.{part}": state[f"norm.{part}"] for part in (("weight", "bias") if gpt2 else ("weight",))}
    made["transformer.wte.weight" if gpt2 else "model.embed_tokens.weight"] = state["embedding.weight"]
    if gpt2:
        made["transformer.wpe.weight"] = state["position_embedding.weight"]
    if not settings.tied:
        made["lm_head.weight"] = state["head.weight"]
    for layer in range(settings.layers):
        ours, theirs = f"blocks.{layer}", f"{body}.{'h' if gpt2 else 'layers'}.{layer}"
        if not gpt2:
            made |= {f"{theirs}.{new}.weight": state[f"{ours}.{old}.weight"] for old, new in _LLAMA.items()}
            continue
        for part in ("weight", "bias"):
            made |= {f"{theirs}.{new}.{part}": _turn(state[f"{ours}.{old}.{part}"]) for old, new in _GPT2.items()}
            made[f"{theirs}.attn.c_attn.{part}"] = _turn(torch.cat([state[f"{ours}.attention.{name}.{part}"] for name in "qkv"]))
        made[f"{theirs}.mlp.c_fc.weight"] = _turn(state[f"{ours}.feed_forward.up.weight"])
        made[f"{theirs}.mlp.c_fc.bias"] = state[f"{ours}.feed_forward.up_bias"]
    return made


def _factor(name: str, settings: ModelSettings) -> float:
    if ".attention.q." in name:
        return settings.attention_scale * math.sqrt(settings.width / settings.heads)
    return 1 / settings.width_ratio if name.startswith("norm.") else 1.0


def from_hf(state: State, settings: ModelSettings) -> State:
    """The weights of a Hugging Face model under the decoder's names; what the decoder does not have is passed through."""
    known: State = {}
    rest = dict(state)
    for ours, theirs, parts in _pairs(settings):
        if theirs not in rest:
            continue
        found = rest.pop(theirs)
        found = found.T if settings.kind == "gpt2" and found.ndim == 2 and ".h." in theirs else found
        known |= dict(zip((ours,) if parts == 1 else tuple(ours.replace("*", name) for name in "qkv"), found.chunk(parts), strict=True))
    return {**rest, **known}


def _pairs(settings: ModelSettings) -> list[tuple[str, str, int]]:
    """(our name, theirs, into how many of ours it falls) of every tensor."""
    if settings.kind == "llama":
        block = [(f"{old}.weight", f"{new}.weight", 1) for old, new in _LLAMA.items()]
        whole = [("embedding.weight", "model.embed_tokens.weight", 1), ("norm.weight", "model.norm.weight", 1)]
        prefix = "model.layers"
    else:
        block = [(f"{old}.{part}", f"{new}.{part}", 1) for old, new in _GPT2.items() for part in ("weight", "bias")]
        block += [(f"attention.*.{part}", f"attn.c_attn.{part}", 3) for part in ("weight", "bias")]
        block += [("feed_forward.up.weight", "mlp.c_fc.weight", 1), ("feed_forward.up_bias", "mlp.c_fc.bias", 1)]
        whole = [("embedding.weight", "transformer.wte.weight", 1), ("position_embedding.weight", "transformer.wpe.weight", 1)]
        whole += [(f"norm.{part}", f"transformer.ln_f.{part}", 1) for part in ("weight", "bias")]
        prefix = "transformer.h"
    whole += [] if settings.tied else [("head.weight", "lm_head.weight", 1)]
    layers = range(settings.layers)
    return whole + [(f"blocks.{i}.{ours}", f"{prefix}.{i}.{theirs}", parts) for i in layers for ours, theirs, parts in block]


def _turn(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.T if tensor.ndim == 2 else tensor


def load_pretrained(model: Decoder, folder: Path, shape: dict[str, Any], settings: ModelSettings) -> None:
    """Load the weights of a folder with ``config.json`` and safetensors into a decoder.

    Args:
        model: the decoder.
        folder: the model's folder.
        shape: ``Decoder.as_dict()``.
        settings: the decoder's settings.

    Raises:
        RecipeError: the config is of a model that the decoder cannot be.
        LakeError: it is another model than the settings say, or a weight is missing, unknown or of another shape.
    """
    config = read_json(folder / "config.json")
    where = str(folder)
    theirs: ModelSettings = build(ModelSettings, numbers_of(config, where), where)
    fields = ["kind", "layers", "width", "heads", "all_kv_heads", "inner_width", "norm_eps", "tied"]
    fields += ["gelu"] if settings.kind == "gpt2" else ["rope_theta", "rope_scaling"]
    pairs = [(name, getattr(settings, name), getattr(theirs, name)) for name in fields]
    changed = [f"{name} is {own}, the folder has {value}" for name, own, value in pairs if own != value]
    changed += ["it has no mup_base_width"] if settings.mup_base_width else []
    if config["vocab_size"] != shape["vocabulary"]:
        changed.append(f"the tokenizer has {shape['vocabulary']} words, the folder's model {config['vocab_size']}")
    if changed:
        raise LakeError(
            f"the model to start from is another: {'; '.join(changed)}",
            where=where,
            fix="leave sizes out, and take its own tokenizer",
        )
    files = sorted(folder.glob("*.safetensors"))
    state = {name: tensor for file in files for name, tensor in read_tensors(file)}
    if settings.kind == "gpt2":  # some of its files have the body alone, and masks beside the weights
        names = [name for name in state if not re.search(r"\.attn\.(masked_)?bias$", name)]
        state = {name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": state[name] for name in names}
        if shape["length"] > positions_of(config):
            raise LakeError(f"rows of {shape['length']} tokens, the model has {positions_of(config)} positions", where=where)
        if "transformer.wpe.weight" in state:
            state["transformer.wpe.weight"] = state["transformer.wpe.weight"][: shape["length"]]
    if settings.tied:
        state.pop("lm_head.weight", None)
    try:
        load_weights(model, {name: tensor.float() for name, tensor in from_hf(state, settings).items()})
    except RuntimeError as error:
        raise LakeError(f"the weights do not fit: {error}", where=where, fix="get the folder again, with all its files") from error
