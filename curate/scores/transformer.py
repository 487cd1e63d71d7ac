"""Signals that a local transformers classifier computes: a folder with config.json, a tokenizer and weights as safetensors.

Nothing is fetched and no code of the folder runs: weights that are pickles are refused, as are folders that need code of their own. Texts
are put into batches by length within the shard, so that a document's score depends on its shard and not on the run's settings; on the
CPU one thread works on a shard, since sums in another order differ in their last bits. Needs the extra ``models``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import InputError, RecipeError
from schemas.manifest import fingerprint
from schemas.store import checksum

_TURN = Lock()
"""Threads of one process share the model and torch's number of threads."""


def folder_content(folder: Path, where: str) -> str:
    """Fingerprint of a model folder's files, without their place.

    Raises:
        InputError: there is no such folder, no config.json in it, or no weights as safetensors.
    """
    if not (folder / "config.json").is_file():
        raise InputError("no model folder: it has no config.json", where=f"{where}: {folder}", fix="give a folder of save_pretrained()")
    if not any(folder.glob("*.safetensors")):
        raise InputError("its weights are not safetensors", where=f"{where}: {folder}", fix="save it with safe_serialization=True")
    return fingerprint([[path.name, checksum(path)] for path in sorted(folder.iterdir()) if path.is_file()])


def check_model(folder: Path, label: int | None, max_tokens: int, where: str) -> None:
    """Accept a folder whose outputs say which of them is the score, of a model that takes so many tokens.

    Raises:
        InputError: see ``folder_content``; or transformers is not installed.
        RecipeError: the label is not an output, or none was chosen of more than two; or there are more tokens than positions.
    """
    folder_content(folder, where)
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise InputError("transformers is not installed", where=where, fix="pip install 'gristmill[models]'") from error
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    outputs = len(config["id2label"]) if "id2label" in config else int(config.get("num_labels", 2))
    if outputs > 2 and label is None:
        raise RecipeError(f"the model has {outputs} outputs", where=f"{where}.label", fix="say which is the score, from 0")
    if label is not None and label >= outputs:
        raise RecipeError(f"there is no output {label}: the model has {outputs}", where=f"{where}.label", fix=f"at most {outputs - 1}")
    positions = config.get("max_position_embeddings") or max_tokens
    if max_tokens > positions:
        raise RecipeError(f"the model has {positions} positions, not {max_tokens}", where=f"{where}.max_tokens", fix=f"at most {positions}")


@lru_cache(maxsize=2)
def _load(folder: str, content: str, device: str) -> tuple[Any, Any]:
    """Tokenizer and model, loaded once in each process."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **local)
        model = AutoModelForSequenceClassification.from_pretrained(folder, use_safetensors=True, **local)
        return tokenizer, model.eval().to(device)
    except Exception as error:  # safetensors and torch raise kinds of their own
        first = str(error).strip().split("\n", 1)[0]
        raise InputError(f"the model cannot be loaded: {first}", where=folder, fix="check the folder and that the device exists") from error


def score(texts: pa.LargeStringArray, task: Any) -> pa.Array:
    """Score of each text, float64: the probability of the label, or the output itself where the model has only one; null without a token.

    Args:
        texts: texts of a shard, without nulls; what is beyond ``max_tokens`` is not seen.
        task: ``folder``, ``content`` (its fingerprint), ``label``, ``device``, ``batch`` and ``max_tokens``.

    Raises:
        InputError: the model cannot be loaded, or fails.
    """
    import torch

    out = np.full(len(texts), np.nan)
    with _TURN, _one_thread(task["device"]), torch.inference_mode():
        tokenizer, model = _load(task["folder"], task["content"], task["device"])
        for rows in _batches(texts, task["batch"]):
            chosen = texts.take(pa.array(rows)).to_pylist()
            made = tokenizer(chosen, truncation=True, max_length=task["max_tokens"], padding=True, return_tensors="pt").to(task["device"])
            seen = made["attention_mask"].sum(1) > 0
            if seen.any():
                logits = _logits(model, made, task["folder"])
                scores = logits[:, 0] if logits.shape[1] == 1 else logits.softmax(-1)[:, 1 if task["label"] is None else task["label"]]
                out[rows] = torch.where(seen, scores, torch.nan).cpu().numpy()
    return pa.array(out, from_pandas=True)


def _logits(model: Any, made: Any, folder: str) -> Any:
    """A model's outputs for a batch; some models have fewer positions than their configuration says.

    Raises:
        InputError: it fails.
    """
    try:
        return model(**made).logits.double()
    except (IndexError, RuntimeError) as error:
        rows, tokens = made["input_ids"].shape
        first = str(error).strip().split("\n", 1)[0]
        fix = "lower max_tokens or, where memory is short, batch"
        raise InputError(f"the model fails on {rows} texts of {tokens} tokens: {first}", where=folder, fix=fix) from error


def _batches(texts: pa.LargeStringArray, size: int) -> Iterator[NDArray[np.int64]]:
    """Rows of each batch: texts of like length together, so that little is padding."""
    lengths = np.diff(np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1])
    order = np.argsort(lengths, kind="stable")
    for first in range(0, len(order), size):
        yield order[first : first + size]


@contextmanager
def _one_thread(device: str) -> Iterator[None]:
    """On the CPU, one thread of torch, whatever the process has."""
    import torch

    before = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
