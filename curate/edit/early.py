"""Rules that look at the text before an edit: its signals then, and the documents that they drop there.

FineWeb judges by Gopher's rules before C4's lines are cut, and by its own rules afterwards. A rule with `before: c4` is judged on the text
as the edits before c4 left it. A document that fails is dropped there: no later edit touches it, and nothing of it counts as a repeat.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curate.corpus import column_array
from curate.curation import Curation, source_of
from curate.edit.rewrite import FAILED, Active
from curate.filter import count_signals, early_rules, rule_versions, rules_of, signal_shards
from curate.rules import evaluate
from curate.step import Shard, ShardWriter, Step
from schemas.signals import SIGNALS_VERSION
from schemas.tables import FAILURE

Json = Any


def judged_edits(c: Curation) -> dict[int, str]:
    """Places and names of the edits before which rules look at the text; of several edits of a name, the first."""
    names: list[str] = [edit.edit for edit in c.recipe.edits]
    return {names.index(name): name for name in {rule.before for rule in c.recipe.rules} if name is not None}


def early_signals_step(c: Curation, place: int, edit: str) -> tuple[Step, list[Shard]]:
    """A step that counts signals in the text before an edit, of the sources that have rules there."""
    shards = signal_shards(c, [source for source in c.recipe.sources if rules_of(c.recipe, source, edit)])
    for shard in shards:
        shard.task["edit"] = place
    return Step(f"early_signals_{place}", SIGNALS_VERSION, {}, _early_signals), shards


def _early_signals(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["documents"] is None:
        return {"documents": 0, "bytes": 0}
    table, size = count_signals(writer.root / task["documents"], task)
    writer.table("early_signals", table.append_column("step", pa.array(np.full(table.num_rows, task["edit"], np.int32))))
    return {"documents": table.num_rows, "bytes": size}


def early_rules_step(c: Curation, place: int, edit: str, active: list[Json], inputs: list[Json]) -> tuple[Step, list[Shard]]:
    """A step that tells which documents fail a rule before an edit.

    Args:
        c: the curation; its early signals are counted.
        place: the edit's place in the recipe.
        edit: its name.
        active: by shard, what tells the rows that edits still apply to (``Active``).
        inputs: by shard, the fingerprints of that.
    """
    shards = []
    for shard, entry in enumerate(c.documents):
        rules = rules_of(c.recipe, source_of(entry), edit)
        signals = c.path(f"early_signals_{place}", "early_signals", shard)
        task = active[shard] | {"documents": c.path("read", "documents", shard), "signals": signals, "rules": rules}
        content = c.steps[f"early_signals_{place}"][shard].content
        shards.append(Shard(entry.label, [inputs[shard], content, rules], task))
    return Step(f"edit_{place}_rules", 1, rule_versions(), _early_rules), shards


def _early_rules(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["signals"] is None or not task["rules"]:
        return {"documents": 0, "failed": 0}
    rows = np.flatnonzero(Active(writer.root, task).rows)
    signals = pq.read_table(writer.root / task["signals"], partitioning=None).drop_columns(["doc_id", "step"])
    lists = column_array(evaluate(signals, early_rules(json.dumps(task["rules"]))), "failures").take(pa.array(rows))
    owner = np.repeat(rows, lists.value_lengths().to_numpy(zero_copy_only=False))
    flat = lists.flatten()
    failed = pa.table([pa.array(owner), *(flat.field(name) for name in FAILURE.names)], schema=FAILED)
    if failed.num_rows:
        writer.publish("failed", "parquet", lambda to: pq.write_table(failed, to, compression="zstd"), failed.num_rows)
    return {"documents": len(rows), "failed": len(np.unique(owner))}
