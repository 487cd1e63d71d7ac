"""A step for each family of signals that some source needs, from documents shards to shards of the family's table, row by row aligned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.curation import Curation, source_of
from curate.filter import resolved, rules_of
from curate.step import Shard, ShardWriter, Step
from schemas.families import FAMILIES, FAMILY_VERSIONS
from schemas.recipe import Recipe
from schemas.sources import Repeats

Json = Any


def wanted_families(recipe: Recipe, source: str) -> frozenset[str]:
    """The families of which a source's rules, difficulty or repeats or the order of duplicates name a column, and those it asks for."""
    chosen = recipe.sources[source]
    expressions = [rule.value for rule in resolved(json.dumps(rules_of(recipe, source)), tuple(recipe.signals))]
    expressions += [chosen.difficulty or "", chosen.repeats.by if isinstance(chosen.repeats, Repeats) else ""]
    return named_families([*expressions, *recipe.dedup.prefer]) | frozenset(chosen.families)


def named_families(expressions: Iterable[str]) -> frozenset[str]:
    """The families of which SQL expressions name a column."""
    named = {word.lower() for sql in expressions for word in re.findall(r"\w+", sql)}
    return frozenset(family for family, schema in FAMILIES.items() if named & set(schema.names))


def family_steps(c: Curation) -> list[tuple[Step, list[Shard]]]:
    """The steps, none for a family that no source needs."""
    wanted = {source: wanted_families(c.recipe, source) for source in c.recipe.sources}
    return [_family_step(c, family, wanted) for family in FAMILIES if any(family in named for named in wanted.values())]


def _family_step(c: Curation, family: str, wanted: Mapping[str, frozenset[str]]) -> tuple[Step, list[Shard]]:
    shards = []
    for shard, entry in enumerate(c.documents):
        asked = family in wanted[source_of(entry)]
        path = c.path("read", "documents", shard) if asked else None
        shards.append(Shard(entry.label, [entry.content, asked], {"documents": path, "family": family, "batch_rows": c.batch_rows}))
    return Step(family, FAMILY_VERSIONS[family], {}, _family), shards


def _family(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["documents"] is None:
        return {}
    file = pq.ParquetFile(writer.root / task["documents"], memory_map=True)
    count, parts, size = counter(task["family"]), [], 0
    for batch in file.iter_batches(batch_size=task["batch_rows"], columns=["doc_id", "text"]):
        counted = count(batch.column("text").cast(pa.large_string()))
        parts.append(pa.Table.from_batches([counted]).add_column(0, "doc_id", batch.column("doc_id")))
        size += batch.column("text").nbytes
    table = pa.concat_tables(parts)
    writer.table(task["family"], table)
    return {"documents": table.num_rows, "bytes": size}


def counter(family: str) -> Callable[[pa.LargeStringArray], pa.RecordBatch]:
    """What computes a family; compiled code is loaded when it is first needed."""
    function: Callable[[pa.LargeStringArray], pa.RecordBatch]
    module, name = _COUNTERS[family]
    function = getattr(import_module(f"curate.families.{module}"), name)
    return function


_COUNTERS = {
    "code": ("code", "code_signals"),
    "compression": ("compression", "compression_signals"),
    "scripts": ("scripts", "script_signals"),
    "redpajama": ("redpajama", "redpajama_signals"),
    "structure": ("structure", "structure_signals"),
}
"""Module and function of each family."""
