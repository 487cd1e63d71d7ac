"""``gristmill classify``: trains a quality classifier from two sets of documents, and says how it does beside length alone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from curate.loose import loose_texts
from curate.scores.classifier import train_and_judge
from pipelines.progress import Tell, untold
from pipelines.tables import table
from schemas.errors import GristmillError

Json = Any

TOLD_EVERY = 1000
"""Texts between two looks at how many are read."""


def train_classifier(good: str, bad: str, field: str, output: Path, tell: Tell = untold) -> dict[str, Json]:
    """Train on the documents of two files, folders or globs and write the classifier.

    Args:
        good: what the good ones are in.
        bad: what the bad ones are in.
        field: field that holds the text.
        output: file to write.
        tell: takes how many texts are read, in all (0), then how many are trained on, over all passes.

    Raises:
        InputError: a set cannot be read or is too small.
        GristmillError: the file cannot be written.
    """
    read: list[list[str]] = [[], []]
    for path, texts in zip((good, bad), read, strict=True):
        for each in loose_texts([path], [field], path):
            texts.append(each.text)
            if not len(texts) % TOLD_EVERY:
                tell(sum(map(len, read)), 0)
    kinds = [pa.array(texts, pa.large_string()) for texts in read]
    trained = train_and_judge(kinds[0], kinds[1], tell)
    try:
        trained.classifier.save(output)
    except OSError as error:
        raise GristmillError(f"cannot write: {error.strerror}", where=str(output), fix="name another file with -o") from error
    counts = {"good": trained.good, "bad": trained.bad, "held_out": trained.held_out}
    return {"file": str(output), **counts, "classifier": asdict(trained.judged), "length_only": asdict(trained.length_only)}


def print_classifier(found: dict[str, Json], console: Console) -> None:
    """Print a training for people."""
    console.print(f"{found['good']:,} good and {found['bad']:,} bad texts, of which {found['held_out']:,} were held out", highlight=False)
    made = table("On held-out texts", ("by",), ("AUC", "accuracy"))
    for name, key in (("classifier", "classifier"), ("length alone", "length_only")):
        made.add_row(name, f"{found[key]['auc']:.3f}", f"{found[key]['accuracy']:.3f}")
    console.print(made)
    console.print(f"Use it in a recipe:\n  signals:\n    quality: {{classifier: {found['file']}}}", highlight=False, markup=False)
