"""Filtering: the signals of every document, and every rule that each document fails."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.corpus import column_array
from curate.curation import Curation, source_of
from curate.edit.failures import after_edits, edit_files
from curate.exclude import exclusion_files, with_exclusions
from curate.languages.step import language_rules
from curate.languages.words import splitter, with_words
from curate.rules import RULE_SETS, Rule, evaluate, resolve_rules
from curate.scores import content_of, read_signals, signal_files, signal_schema
from curate.signals import compute_signals
from curate.step import Shard, ShardWriter, Step
from schemas.errors import RecipeError
from schemas.recipe import Recipe
from schemas.signals import SIGNALS, SIGNALS_VERSION

Json = Any


def signals_step(c: Curation) -> tuple[Step, list[Shard]]:
    """A step from documents shards to signals shards, row by row aligned."""
    return Step("signals", SIGNALS_VERSION, {}, _signals), signal_shards(c, c.recipe.sources)


def signal_shards(c: Curation, sources: Container[str]) -> list[Shard]:
    """Shards of a step that counts signals in the text of some sources as it is now; where languages matter, words are cut by script."""
    shards = []
    for shard, entry in enumerate(c.documents):
        source = source_of(entry)
        asked, by_script = source in sources, c.recipe.sources[source].language is not None
        path = c.path("read", "documents", shard) if asked else None
        task = {"documents": path, "batch_rows": c.batch_rows, "by_script": by_script}
        inputs = [entry.content, splitter()] if by_script else entry.content
        shards.append(Shard(entry.label, inputs if asked else None, task, 0 if path is None else entry.files["documents"].bytes))
    return shards


def _signals(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["documents"] is None:
        return {"documents": 0, "bytes": 0}
    table, size = count_signals(writer.root / task["documents"], task)
    writer.table("signals", table)
    return {"documents": table.num_rows, "bytes": size}


def count_signals(documents: Path, task: Json) -> tuple[pa.Table, int]:
    """The signals of a documents shard, with ``doc_id``, and the bytes of its texts."""
    file = pq.ParquetFile(documents, memory_map=True)
    ids, parts, size = [], [], 0
    for batch in file.iter_batches(batch_size=task["batch_rows"], columns=["doc_id", "text"]):
        ids.append(batch.column("doc_id"))
        size += batch.column("text").nbytes
        texts = batch.column("text").cast(pa.large_string())
        counted = compute_signals(texts)
        parts.append(with_words(texts, counted) if task["by_script"] else counted)
    return pa.Table.from_batches(parts, schema=SIGNALS).add_column(0, "doc_id", pa.chunked_array(ids)), size


def rules_step(c: Curation) -> tuple[Step, list[Shard]]:
    """A step from signals shards to failures shards, row by row aligned; each source has its own rules."""
    shards = []
    for shard, entry in enumerate(c.steps["signals"]):
        rules = rules_of(c.recipe, source_of(entry))
        own = list(c.recipe.signals)
        contents, paths = exclusion_files(c, shard)
        edits, failed = edit_files(c, shard)
        task = {"signals": signal_files(c.steps, own, shard), "rules": rules, "exclusions": paths, "failed": failed}
        shards.append(Shard(entry.label, [content_of(c.steps, own, shard), rules, *contents, edits], task))
    return Step("rules", 4, rule_versions(), _rules), shards


def rule_versions() -> dict[str, int]:
    """Version of each rule set."""
    return {name: rules.version for name, rules in RULE_SETS.items()}


def rules_of(recipe: Recipe, source: str, before: str | None = None) -> list[Json]:
    """The recipe's rule entries for a source as JSON, after what it says of its languages; by choice those before an edit."""
    language = recipe.sources[source].language if before is None else None
    entries = [recipe.rules[place] for place in _places(recipe, source, before)]
    own: list[Json] = [] if language is None else [{"language": language.model_dump(mode="json")}]
    return own + [entry.model_dump(mode="json", exclude={"sources", "before"}, exclude_defaults=True) for entry in entries]


def _places(recipe: Recipe, source: str, before: str | None) -> tuple[int, ...]:
    """Where a source's rules before an edit, or after all, stand in the recipe."""
    rules = enumerate(recipe.rules)
    return tuple(place for place, rule in rules if rule.before == before and (rule.sources is None or source in rule.sources))


def check_rules(recipe: Recipe) -> None:
    """Accept rules that exist and, where they are the recipe's own, are each one allowed expression.

    Raises:
        RecipeError: one that is anything else; says which, and what is wrong with it.
    """
    for source in recipe.sources:
        rules = resolved(json.dumps(rules_of(recipe, source)), tuple(recipe.signals), _places(recipe, source, None))
        asking = (rule for rule in rules if rule.by_language or re.search(r"\blanguage(_score)?\b", rule.value, re.IGNORECASE))
        if recipe.sources[source].language is None and (told := next(asking, None)):
            raise RecipeError(
                f"{told.name!r} of {told.origin} depends on the language, and this source's is not identified",
                where=f"sources.{source}.language",
                fix="set language: {} (or with allow and min_score), or name the rule's sources without this one",
            )
        for edit in sorted({rule.before for rule in recipe.rules if rule.before is not None}):
            early_rules(json.dumps(rules_of(recipe, source, edit)), _places(recipe, source, edit))


@lru_cache(maxsize=64)
def early_rules(rules: str, places: tuple[int, ...] = ()) -> list[Rule]:
    """Rules of entries (as JSON; where they stand) that are judged before an edit, where only the signals table is known of a text.

    Raises:
        RecipeError: one that needs more.
    """
    chosen = resolve_rules(json.loads(rules), places=places)
    for rule in chosen:
        later = {"language"} & {"language" if rule.by_language else ""} | set(re.findall(r"\w+", rule.value)) - set(SIGNALS.names)
        later &= set(signal_schema(()).names)
        if later:
            raise RecipeError(
                f"{rule.name!r} of {rule.origin} reads {sorted(later)[0]!r}, which is measured after all edits",
                where="rules",
                fix="leave its 'before' out",
            )
    return chosen


@lru_cache(maxsize=64)
def resolved(rules: str, own: tuple[str, ...] = (), places: tuple[int, ...] = ()) -> list[Rule]:
    """Rules of the recipe's entries (as JSON; where they stand), checked once, not for each shard; empty text is always dropped."""
    entries = json.loads(rules)
    chosen = [rule for entry in entries if "language" in entry for rule in language_rules(entry["language"])]
    chosen += resolve_rules([entry for entry in entries if "language" not in entry], signal_schema(own), places)
    empty = next(rule for rule in RULE_SETS["gopher_quality"].rules if rule.name == "empty")
    return chosen if any(rule.name == "empty" for rule in chosen) else [empty, *chosen]


def failures_of(signals: pa.Table, rules: list[Json]) -> pa.Table:
    """Every failing rule of each document.

    Args:
        signals: what ``read_signals`` gives.
        rules: what ``rules_of`` gives.

    Returns:
        One column, ``failures``.
    """
    known = {"doc_id", *signal_schema(()).names}
    own = tuple(name for name in signals.column_names if name not in known)
    return evaluate(signals.drop_columns(["doc_id"]), resolved(json.dumps(rules), own))


def _rules(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["signals"] is None:
        return {"documents": 0, "passed": 0}
    signals = read_signals(writer.root, task["signals"])
    failures = with_exclusions(writer.root, failures_of(signals, task["rules"]), task["exclusions"])
    failures = after_edits(writer.root, task["failed"], failures)
    writer.table("failures", failures.add_column(0, "doc_id", signals.column("doc_id")))
    lengths = column_array(failures, "failures").value_lengths()
    return {"documents": failures.num_rows, "passed": sum(1 for n in lengths.to_pylist() if n == 0)}
