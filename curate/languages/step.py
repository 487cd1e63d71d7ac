"""Languages: a step that identifies them for the sources that ask, and the rules that a source's allowed languages make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.curation import Curation, source_of
from curate.languages.identify import LANGUAGE_VERSION, language_model, languages_of
from curate.languages.words import splitter
from curate.rules import Rule
from curate.step import Shard, ShardWriter, Step
from schemas.errors import RecipeError, nearest
from schemas.recipe import Recipe

Json = Any


def languages_steps(c: Curation) -> list[tuple[Step, list[Shard]]]:
    """A step from documents shards to languages shards, row by row aligned, where some source asks; of the others nothing is written."""
    if all(source.language is None for source in c.recipe.sources.values()):
        return []
    shards = []
    for shard, entry in enumerate(c.documents):
        asked = c.recipe.sources[source_of(entry)].language is not None
        task = {"documents": c.path("read", "documents", shard) if asked else None, "batch_rows": c.batch_rows}
        shards.append(Shard(entry.label, [entry.content, asked], task))
    return [(Step("languages", LANGUAGE_VERSION, {}, _languages), shards)]


def _languages(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["documents"] is None:
        return {}
    file = pq.ParquetFile(writer.root / task["documents"], memory_map=True)
    parts = []
    for batch in file.iter_batches(batch_size=task["batch_rows"], columns=["doc_id", "text"]):
        found, scores = languages_of(batch.column("text").cast(pa.large_string()))
        parts.append(pa.table({"doc_id": batch.column("doc_id"), "language": found, "language_score": scores}))
    table = pa.concat_tables(parts)
    writer.table("languages", table)
    return {"documents": table.num_rows}


def language_rules(language: Json) -> list[Rule]:
    """The rules of a source's ``language``; they come before all others, and none for None."""
    rules = []
    if language and language["allow"]:
        listed = ", ".join(f"'{name}'" for name in language["allow"])
        rules.append(Rule("language_not_allowed", f"language IS NULL OR language NOT IN ({listed})", None, None, "language"))
    if language and language["min_score"] is not None:
        rules.append(Rule("language_score", "language_score", "<=", language["min_score"], "language"))
    return rules


def check_languages(recipe: Recipe) -> None:
    """Accept allowed languages that the model knows.

    Raises:
        RecipeError: one that it does not know, with the nearest name; or the model or ICU is not installed.
    """
    for name, source in recipe.sources.items():
        if source.language is None:
            continue
        splitter()
        _, known = language_model()
        for language in source.language.allow:
            if language not in known:
                raise RecipeError(
                    f"the model knows no language {language!r}{nearest(language, known)}",
                    where=f"sources.{name}.language.allow",
                    fix="correct it",
                )
