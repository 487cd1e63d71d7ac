"""Text from a trained model: the prompt through the run's tokenizer, the model of a checkpoint, and back."""

from __future__ import annotations

import math
from pathlib import Path

from schemas.errors import GristmillError
from schemas.manifest import read_snapshot
from schemas.settings import StageSettings, read_outcome, read_stage


def only_run(root: Path) -> str:
    """The name of a lake's only run.

    Raises:
        GristmillError: it has none, or several.
    """
    names = sorted(path.parent.name for path in root.glob("runs/*/segments.json"))
    if len(names) != 1:
        what = f"the lake has several runs: {', '.join(names)}" if names else "the lake has no run"
        raise GristmillError(what, where=str(root), fix="choose with --run" if names else "make one: gristmill run RECIPE")
    return names[0]


def last_checkpoint(root: Path, run: str) -> tuple[StageSettings, str] | None:
    """The run's last stage that has ended, and the checkpoint that it left; None when there is none."""
    for path in sorted(
        (root / "runs" / run).glob("*-*/stage.json"), key=lambda path: int(path.parent.name.partition("-")[0]), reverse=True
    ):
        outcome = read_outcome(path.parent)
        if outcome is not None:
            return read_stage(path), outcome.checkpoint
    return None


def generate_text(root: Path, run: str, prompt: str, tokens: int, temperature: float = 0.8, top_k: int = 40, seed: int = 0) -> str:
    """Continue a prompt with the run's newest model; the same seed gives the same text.

    Args:
        root: the lake.
        run: run name.
        prompt: text to go on from; empty begins a document.
        tokens: most tokens to add.
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_k: sample among this many likeliest tokens; 0 among all.
        seed: seed of the draws.

    Raises:
        GristmillError: the run has no finished stage, or a number is out of its range.
        LakeError: its checkpoint or tokenizer is damaged.
    """
    for option, value, below in (
        ("tokens", tokens, math.inf),
        ("temperature", temperature, math.inf),
        ("top-k", top_k, math.inf),
        ("seed", seed, 1 << 63),
    ):
        if not 0 <= value < below:
            raise GristmillError(f"{value} is not a number from 0 to below {below}", where=f"--{option}")
    found = last_checkpoint(root, run)
    if found is None:
        raise GristmillError(f"run {run!r} has no finished stage", where=str(root / "runs"), fix="train one: gristmill run RECIPE")
    from curate.tokenizer import load_tokenizer
    from train.checkpoint import load
    from train.generate import generate
    from train.model import Decoder

    stage, path = found
    tokenizer = load_tokenizer(root / read_snapshot(root).steps["tokenizer"][0].files["tokenizer"].path)
    model = Decoder(stage.model, stage.vocabulary, stage.row_length)
    model.load_state_dict(load(root, path).tensors("model"))
    ids, _ = tokenizer.encode_batch([prompt])
    new = generate(model, [tokenizer.bos, *ids.tolist()], tokens, temperature=temperature, top_k=top_k, seed=seed, stop=tokenizer.eos)
    return prompt + tokenizer.decode(new)
