"""A step for each signal of the user's own, from documents shards to shards of table ``scores``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from curate.corpus import column_array
from curate.curation import Curation, source_of
from curate.rules import validate_expression
from curate.scores.classifier import Classifier, load_classifier
from curate.scores.columns import signal_schema, step_name
from curate.scores.fasttext import FASTTEXT_VERSION, label_number, load_fasttext
from curate.scores.fasttext_file import read_model
from curate.scores.losses import losses_of, read_losses
from curate.scores.python import GIVEN, code_of, load_function, score
from curate.scores.transformer import check_model, folder_content
from curate.scores.transformer import score as model_scores
from curate.step import Shard, ShardWriter, Step
from schemas.curation import Signal
from schemas.errors import RecipeError
from schemas.recipe import Recipe
from schemas.store import checksum
from schemas.tables import DOCUMENTS, SCORES

Json = Any
SCORES_VERSION = 1
"""Raise it whenever the same function or model and documents give other rows."""


def check_signals(recipe: Recipe) -> None:
    """Accept signals whose names rules can use and whose code or model can be loaded.

    Raises:
        RecipeError: says which signal, and what is wrong with it.
        InputError: a model's file cannot be read.
    """
    reserved = {str(word) for (word,) in duckdb.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()}
    taken = {*signal_schema(()).names, *DOCUMENTS.names, "locator", "position"}
    for name, signal in recipe.signals.items():
        where = f"signals.{name}"
        if name in taken:
            raise RecipeError(f"a table has a column {name!r} already, that expressions may mean", where=where, fix="choose another name")
        if name in reserved:
            raise RecipeError(f"{name!r} is a word of SQL, so rules could not name it", where=where, fix="choose another name")
        validate_expression(name, signal_schema(recipe.signals), where=where)
        if signal.python is not None:
            load_function(signal.python, f"{where}.python")
        elif signal.classifier is not None:
            load_classifier(Path(signal.classifier))
        elif signal.transformer is not None:
            model = signal.transformer
            check_model(Path(model.path), model.label, model.max_tokens, f"{where}.transformer")
        elif signal.fasttext is not None:
            label_number(read_model(Path(signal.fasttext.path)), signal.fasttext.label, f"{where}.fasttext.label")
        elif signal.losses is not None:
            read_losses(signal.losses)


def score_steps(c: Curation) -> list[tuple[Step, list[Shard]]]:
    """The steps, in the recipe's order."""
    return [_score_step(c, name, signal) for name, signal in c.recipe.signals.items()]


def _score_step(c: Curation, name: str, signal: Signal) -> tuple[Step, list[Shard]]:
    settings: dict[str, Json] = {"signal": name, "version": signal.version}
    model: dict[str, Json] = {}
    if signal.python is not None:
        settings["python"], model = code_of(signal.python), {"python": signal.python}
    elif signal.classifier is not None:
        settings["classifier"] = checksum(Path(signal.classifier))
        model = {"classifier": signal.classifier, "content": settings["classifier"]}
    elif signal.transformer is not None:
        content = folder_content(Path(signal.transformer.path), f"signals.{name}")
        settings["transformer"] = signal.transformer.model_dump(exclude={"path"}) | {"content": content}
        model = {"transformer": settings["transformer"] | {"folder": signal.transformer.path}}
    elif signal.fasttext is not None:
        content = checksum(Path(signal.fasttext.path))
        settings["fasttext"] = [content, signal.fasttext.label, FASTTEXT_VERSION]
        model = {"fasttext": signal.fasttext.model_dump(), "content": content}
    elif signal.losses is not None:
        settings["losses"], model = checksum(Path(signal.losses)), {"losses": signal.losses}
    wanted = set(c.recipe.sources if signal.sources is None else signal.sources)
    shards = []
    for shard, entry in enumerate(c.documents):
        path = c.path("read", "documents", shard) if source_of(entry) in wanted else None
        task = {"documents": path, "signal": name, "where": f"signals.{name}: shard {entry.label}", **model}
        shards.append(Shard(entry.label, None if path is None else entry.content, task))
    # Functions and models on the CPU use a thread of Python's or torch's each; models on a GPU share it.
    apart = signal.python is not None or (signal.transformer is not None and signal.transformer.device == "cpu")
    return Step(step_name(name), SCORES_VERSION, settings, _score, processes=apart), shards


def _score(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["documents"] is None:
        return {"documents": 0}
    documents = pq.read_table(writer.root / task["documents"], columns=list(GIVEN), partitioning=None)
    if "losses" in task:
        values = losses_of(read_losses(task["losses"]), documents)
    elif "python" in task:
        values = score(load_function(task["python"], task["where"]), documents, task["python"], task["where"])
    elif "classifier" in task:
        values = pa.array(_classifier(task["classifier"], task["content"]).score(column_array(documents, "text")))
    elif "fasttext" in task:
        fasttext = load_fasttext(task["fasttext"]["path"], task["content"])
        values = fasttext.score(column_array(documents, "text"), label_number(fasttext.model, task["fasttext"]["label"], task["where"]))
    else:
        values = model_scores(column_array(documents, "text"), task["transformer"])
    names = pa.repeat(task["signal"], documents.num_rows)
    writer.table("scores", pa.table([documents.column("doc_id"), names, values], names=SCORES.names))
    return {"documents": documents.num_rows, "bytes": documents.column("text").nbytes}


@lru_cache(maxsize=8)
def _classifier(path: str, content: str) -> Classifier:
    """A classifier's file of that content, read once for all shards."""
    return load_classifier(Path(path))
