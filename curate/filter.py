"""Filtering: the signals of every document, and every rule that each document fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.corpus import column_array
from curate.curation import Curation, source_of
from curate.edit.failures import after_edits, edit_files
from curate.exclude import exclusion_files, with_exclusions
from curate.languages.step import language_rules
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
    shards = [
        Shard(entry.label, entry.content, {"documents": c.path("read", "documents", shard), "batch_rows": c.batch_rows})
        for shard, entry in enumerate(c.documents)
    ]
    return Step("signals", SIGNALS_VERSION, {}, _signals), shards


def _signals(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["documents"] is None:
        return {"documents": 0, "bytes": 0}
    file = pq.ParquetFile(writer.root / task["documents"], memory_map=True)
    ids, parts, size = [], [], 0
    for batch in file.iter_batches(batch_size=task["batch_rows"], columns=["doc_id", "text"]):
        ids.append(batch.column("doc_id"))
        size += batch.column("text").nbytes
        parts.append(compute_signals(batch.column("text").cast(pa.large_string())))
    table = pa.Table.from_batches(parts, schema=SIGNALS).add_column(0, "doc_id", pa.chunked_array(ids))
    writer.table("signals", table)
    return {"documents": table.num_rows, "bytes": size}


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
    return Step("rules", 4, {name: rules.version for name, rules in RULE_SETS.items()}, _rules), shards


def rules_of(recipe: Recipe, source: str) -> list[Json]:
    """What a source says of its languages and the recipe's rule entries for it, as JSON."""
    language = recipe.sources[source].language
    entries = [rule for rule in recipe.rules if rule.sources is None or source in rule.sources]
    own: list[Json] = [] if language is None else [{"language": language.model_dump(mode="json")}]
    return own + [entry.model_dump(mode="json", exclude={"sources"}, exclude_defaults=True) for entry in entries]


def check_rules(recipe: Recipe) -> None:
    """Accept rules that exist and, where they are the recipe's own, are each one allowed expression.

    Raises:
        RecipeError: one that is anything else; says which, and what is wrong with it.
    """
    for source in recipe.sources:
        rules = resolved(json.dumps(rules_of(recipe, source)), tuple(recipe.signals))
        if recipe.sources[source].language is None and (told := next((rule for rule in rules if rule.by_language), None)):
            raise RecipeError(
                f"{told.name!r} of {told.origin} has thresholds by language, and this source's is not identified",
                where=f"sources.{source}.language",
                fix="set language: {} (or with allow and min_score), or give the rule one threshold",
            )


@lru_cache(maxsize=64)
def resolved(rules: str, own: tuple[str, ...] = ()) -> list[Rule]:
    """Rules of the recipe's entries (as JSON), checked once rather than for each shard; empty text is dropped whatever they are."""
    entries = json.loads(rules)
    chosen = [rule for entry in entries if "language" in entry for rule in language_rules(entry["language"])]
    chosen += resolve_rules([entry for entry in entries if "language" not in entry], signal_schema(own))
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
