"""A trained model as a folder that ``transformers`` loads: config, weights as safetensors, tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from schemas.errors import GristmillError
from schemas.hf_config import config_of
from schemas.manifest import Snapshot


def write_model(root: Path, snapshot: Snapshot, path: Path, run: str | None, checkpoint: str | None) -> int:
    """Write a checkpoint's weights in Hugging Face's form, FP32; returns the number of parameters.

    Args:
        root: the lake.
        snapshot: its snapshot.
        path: folder to make.
        run: run name; None is the lake's only one.
        checkpoint: checkpoint folder relative to the lake; None is the run's newest.

    Raises:
        GristmillError: no stage has ended and no checkpoint is named.
        LakeError: the checkpoint is missing or damaged.
    """
    from curate.tokenizer import PairTokenizer, load_tokenizer
    from pipelines.generate import last_checkpoint, only_run
    from schemas.settings import ModelSettings, build
    from train.checkpoint import load
    from train.interchange import to_hf
    from train.tensor_file import write_tensors

    if checkpoint is None:
        name = run or only_run(root)
        found = last_checkpoint(root, name)
        if found is None:
            raise GristmillError(f"run {name!r} has no finished stage", where=str(root / "runs"), fix="name a checkpoint: --checkpoint")
        checkpoint = found[1]
    saved = load(root, checkpoint)
    shape = saved.state["model"]
    settings = build(ModelSettings, shape["settings"])
    file = root / snapshot.steps["tokenizer"][0].files["tokenizer"].path
    tokenizer = load_tokenizer(file)
    state = saved.tensors("model")
    path.mkdir(parents=True)
    write_tensors(path / "model.safetensors", {name: tensor.float() for name, tensor in to_hf(state, settings).items()})
    config = config_of(settings, shape["vocabulary"], shape["length"], tokenizer.bos, tokenizer.eos)
    (path / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if isinstance(tokenizer, PairTokenizer):  # bytes as tokens have no tokenizer.json
        (path / "tokenizer.json").write_text(tokenizer.json, encoding="utf-8")
        about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": shape["length"]}
        (path / "tokenizer_config.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return sum(tensor.numel() for tensor in state.values())
