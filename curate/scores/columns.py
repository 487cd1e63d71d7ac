"""The signals of a shard as one table: those counted in the text, its language, families asked for, and the user's own.

Each signal of the user's own is a step of its own, so that a new one computes nothing else anew; its file of table ``scores`` is aligned
with the documents shard row by row, and absent where the signal is not computed for the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.families import FAMILIES
from schemas.manifest import Entry
from schemas.signals import SIGNALS
from schemas.tables import LANGUAGES

Json = Any
Steps = Mapping[str, Sequence[Entry]]

LANGUAGE_COLUMNS = pa.schema([LANGUAGES.field("language"), LANGUAGES.field("language_score")])
ASKED: dict[str, pa.Schema] = {"languages": LANGUAGE_COLUMNS, **FAMILIES}
"""Columns, by step and table, that only sources that ask for them have."""


def step_name(signal: str) -> str:
    """Name of the step that computes a signal of the user's own."""
    return f"score_{signal}"


def signal_schema(names: Iterable[str]) -> pa.Schema:
    """What expressions over signals may name: the columns of signals, languages and families, and the user's own as DOUBLE."""
    asked = (field.with_nullable(True) for columns in ASKED.values() for field in columns)
    return pa.schema([*SIGNALS, *asked, *(pa.field(name, pa.float64()) for name in names)])


def content_of(steps: Steps, names: Iterable[str], shard: int) -> Json:
    """Fingerprints of what a shard's signals are."""
    content = steps["signals"][shard].content
    own = {name: steps[step_name(name)][shard].content for name in names}
    own |= {asked: steps[asked][shard].content for asked in _asked(steps, shard)}
    return [content, own] if own else content


def signal_files(steps: Steps, names: Iterable[str], shard: int) -> Json:
    """Paths of a shard's signals, as ``read_signals`` takes them; None when the shard has no documents."""
    files = steps["signals"][shard].files
    if "signals" not in files:
        return None
    return {"signals": files["signals"].path, "asked": _asked(steps, shard), "scores": score_paths(steps, names, shard)}


def _asked(steps: Steps, shard: int) -> dict[str, str]:
    """Path of a shard's file of each table that its source asks for."""
    files = {name: steps[name][shard].files.get(name) for name in ASKED if name in steps}
    return {name: file.path for name, file in files.items() if file is not None}


def score_paths(steps: Steps, names: Iterable[str], shard: int) -> dict[str, str | None]:
    """Path of a shard's file of each signal of the user's own."""
    found = {name: steps[step_name(name)][shard].files.get("scores") for name in names}
    return {name: None if file is None else file.path for name, file in found.items()}


def read_signals(root: Path, files: Json) -> pa.Table:
    """The signals of a shard's documents, with ``doc_id``, in their order; what the source does not ask for is null.

    Args:
        root: the lake.
        files: what ``signal_files`` gives.
    """
    table = pq.read_table(root / files["signals"], columns=["doc_id", *SIGNALS.names], partitioning=None)
    for asked, columns in ASKED.items():
        path = files["asked"].get(asked)
        found = None if path is None else pq.read_table(root / path, columns=columns.names, partitioning=None)
        for field in columns:
            values = pa.nulls(table.num_rows, field.type) if found is None else found.column(field.name)
            table = table.append_column(pa.field(field.name, field.type), values)
    for name, path in files["scores"].items():
        values = pa.nulls(table.num_rows, pa.float64())
        if path is not None:
            values = pq.read_table(root / path, columns=["value"], partitioning=None).column("value")
        table = table.append_column(pa.field(name, pa.float64()), values)
    return table
