"""Alarms of deduplication: a cluster too large for its source, and a generation of a source that is nearly all duplicates.

Either has, in other systems, been the sign of a faulty normalisation, of templated text, or of documents that met their own copies in an
index; here both are rows of the table ``alarms`` and lines on the terminal, and fail the run where the recipe says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.curation import Curation
from curate.sql import connect, parquet
from curate.step import Shard, ShardWriter, Step
from schemas.errors import GristmillError
from schemas.store import here
from schemas.tables import CLUSTERS, VERDICTS

Json = Any


def alarms_step(c: Curation) -> tuple[Step, list[Shard]]:
    """A step, one shard a generation, that compares its clusters and duplicates with the limits: table ``alarms``."""
    limits = c.recipe.alarms.model_dump(exclude={"fatal"})
    verdicts = [c.steps["verdicts"][shard] for shard in c.new]
    clusters = c.path("dedup", "clusters", len(c.generations) - 1)
    task = {"verdicts": [entry.files["verdicts"].path for entry in verdicts if "verdicts" in entry.files], "clusters": clusters}
    inputs = [[entry.content for entry in verdicts], c.steps["dedup"][-1].content]
    shards = [Shard(f"{number:05d}", inputs, task | limits) for number in range(len(c.generations))]
    return Step("alarms", 1, limits, _alarms), shards


def _alarms(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    with connect() as db:
        for name, paths, schema in (
            ("verdicts", task["verdicts"], VERDICTS),
            ("clusters", [task["clusters"]] if task["clusters"] else [], CLUSTERS),
        ):
            if paths:
                db.execute(f"CREATE TEMP VIEW {name} AS FROM {parquet([str(writer.root / path) for path in paths])}")
            else:
                db.register(name, schema.empty_table())
        found: pa.Table = db.sql(
            """
            WITH judged AS (SELECT source, count(*) AS documents FROM verdicts WHERE len(failures) = 0 GROUP BY ALL),
            members AS (SELECT source, kept_doc_id, count(*) AS duplicates FROM clusters GROUP BY ALL)
            SELECT source, 'oversized_cluster' AS kind, (duplicates + 1) / documents AS share, $cluster_share AS "limit",
                duplicates AS duplicates, documents, kept_doc_id
            FROM members JOIN judged USING (source)
            WHERE duplicates + 1 >= $cluster_documents AND duplicates + 1 > $cluster_share * documents
            UNION ALL
            SELECT source, 'drop_rate', sum(duplicates) / any_value(documents), $drop_share,
                sum(duplicates)::BIGINT, any_value(documents), NULL
            FROM members JOIN judged USING (source) GROUP BY source
            HAVING sum(duplicates) > $drop_share * any_value(documents)
            ORDER BY source, kind, duplicates DESC, kept_doc_id
            """,
            params={name: task[name] for name in ("cluster_share", "cluster_documents", "drop_share")},
        ).to_arrow_table()
    writer.table("alarms", found.append_column("generation", pa.array([int(writer.label)] * found.num_rows, pa.int32())))
    return {"alarms": found.num_rows}


def refuse_alarms(c: Curation) -> None:
    """Fail the run for what the newest generation raised, where the recipe makes alarms fatal.

    Raises:
        GristmillError: says what was found; the lake's snapshot stays what it was.
    """
    path = c.path("alarms", "alarms", len(c.generations) - 1)
    if path is None or not c.recipe.alarms.fatal:
        return
    lines = [describe(row) for row in pq.read_table(here(c.root, path), partitioning=None).to_pylist()]
    raise GristmillError(
        "deduplication raised alarms\n  " + "\n  ".join(lines[:5]) + (f"\n  and {len(lines) - 5} more" if len(lines) > 5 else ""),
        where="alarms",
        fix="look at what was dropped; then mend the input, raise the limits under `alarms`, or set alarms.fatal: false",
    )


def describe(alarm: Mapping[str, Any]) -> str:
    """One line for people; ids are bytes or hex."""
    of = f"{alarm['share']:.1%} of the {alarm['documents']:,} documents of source {alarm['source']!r}"
    if alarm["kind"] == "drop_rate":
        return f"{alarm['duplicates']:,} duplicates are {of} (limit {alarm['limit']:.0%})"
    kept = alarm["kept_doc_id"]
    name = kept.hex() if isinstance(kept, bytes) else kept
    return f"a cluster of {alarm['duplicates'] + 1:,} is {of} (limit {alarm['limit']:.0%}); {name} is kept"
