"""Multiple-choice sets: questions by file, tokenised into Arrow, one row an option, for the trainer to evaluate.

Forms: ``hellaswag`` has ``ctx``, ``endings`` and ``label`` (the right ending's number); ``arc`` has ``question`` (text, or an object with
``stem`` and ``choices``), ``choices`` and ``answerKey``, as AI2 and Hugging Face publish it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from curate.step import Json, Shard, ShardWriter, Step
from curate.tokenizer import load_tokenizer
from schemas.errors import InputError
from schemas.manifest import Entry, Snapshot
from schemas.recipe import Recipe
from schemas.settings import ChoiceSet, LotShard
from schemas.store import checksum
from schemas.tables import CHOICES

Question = tuple[str, list[str], int]
"""Context, options (each with the space that begins it), and the right one's number."""


def choices_step(recipe: Recipe, tokenizer: Entry) -> tuple[Step, list[Shard]]:
    """The step from each file of ``choices`` to its Arrow file.

    Raises:
        InputError: a file is missing.
    """
    file = tokenizer.files["tokenizer"]
    shards = []
    for name, entry in recipe.choices.items():
        if not Path(entry.path).is_file():
            raise InputError("no such file", where=entry.path, fix=f"correct choices.{name}.path")
        task = {"path": entry.path, "form": entry.form, "limit": entry.limit, "row_length": recipe.pack.row_length}
        inputs = [checksum(Path(entry.path)), entry.form, entry.limit, recipe.pack.row_length]
        shards.append(Shard(name, inputs, {**task, "tokenizer": file.path}))
    return Step("choices", 1, {"tokenizer": file.checksum}, _tokenise), shards


def choice_sets(snapshot: Snapshot) -> tuple[ChoiceSet, ...]:
    """The sets of a snapshot as the trainer reads them."""
    files = [(entry.label, entry.files["choices"]) for entry in snapshot.steps.get("choices", ())]
    return tuple(ChoiceSet(name, LotShard(file.path, file.rows, file.bytes, file.checksum)) for name, file in files)


def read_questions(path: Path, form: str) -> list[Question]:
    """Read a file of questions.

    Raises:
        InputError: a line that is not a question of the form; names the line.
    """
    questions = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                context, options, right = _FORMS[form](json.loads(line))
                if not 0 <= right < len(options) or len(options) < 2 or not all(option.strip() for option in options):
                    raise ValueError(f"answer {right} of {len(options)} options")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(f"not a question of form {form}: {error!r}", where=f"{path}:{number}") from error
            questions.append((context, options, right))
    if not questions:
        raise InputError("no questions", where=str(path))
    return questions


def _hellaswag(value: Json) -> Question:
    return value["ctx"].strip(), [f" {ending.strip()}" for ending in value["endings"]], int(value["label"])


def _arc(value: Json) -> Question:
    question = value["question"]
    stem, choices = (question["stem"], question["choices"]) if isinstance(question, dict) else (question, value["choices"])
    if isinstance(choices, dict):
        texts, labels = choices["text"], choices["label"]
    else:
        texts, labels = [choice["text"] for choice in choices], [choice["label"] for choice in choices]
    return f"Question: {stem.strip()}\nAnswer:", [f" {text.strip()}" for text in texts], labels.index(value["answerKey"])


_FORMS = {"hellaswag": _hellaswag, "arc": _arc}


def _tokenise(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    tokenizer = load_tokenizer(writer.root / task["tokenizer"])
    questions = _spread(read_questions(Path(task["path"]), task["form"]), task["limit"])
    contexts = _encode(tokenizer, [context for context, _, _ in questions])
    endings = iter(_encode(tokenizer, [option for _, options, _ in questions for option in options]))
    rows: list[dict[str, Any]] = []
    for number, ((_, options, right), context) in enumerate(zip(questions, contexts, strict=True)):
        for place, option in enumerate(options):
            ending = next(endings)
            tokens = np.concatenate([[tokenizer.bos], context, ending])
            tokens = tokens[-task["row_length"] :]  # the end of a context that is too long
            scored = min(len(ending), len(tokens) - 1)
            size = len(option.encode())
            rows.append({"question": number, "tokens": tokens, "scored": scored, "bytes": size, "right": place == right})
    writer.arrow("choices", pa.Table.from_pylist(rows, schema=CHOICES).combine_chunks())
    return {"questions": len(questions), "options": len(rows)}


def _spread(questions: Sequence[Question], limit: int) -> list[Question]:
    count = min(limit, len(questions))
    return [questions[i * len(questions) // count] for i in range(count)]


def _encode(tokenizer: Any, texts: Sequence[str]) -> list[np.ndarray]:
    ids, offsets = tokenizer.encode_batch(texts)
    return np.split(ids, offsets[1:-1])
