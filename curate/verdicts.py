"""Verdicts: what became of every document and why; and the proof that none was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.curation import Curation, file_of, source_of
from curate.edit.failures import edit_steps
from curate.read import check_records
from curate.sql import connect, literal, parquet, present, scan
from curate.step import Shard, ShardWriter, Step
from schemas.errors import GristmillError, InputError
from schemas.manifest import Entry
from schemas.store import bring, here, read_json
from schemas.tables import CLUSTERS, CONSERVATION, EDITS, HOLDOUT, QUARANTINE, REPEATS, VERDICTS

Json = Any


def verdicts_step(c: Curation) -> tuple[Step, list[Shard]]:
    """A step that writes the verdicts of each documents shard, in its order, documents with a repeated id left out."""
    judged = [entry.content for step in ("repeats", "dedup", "holdout") for entry in c.steps[step]]
    shards = [
        Shard(
            entry.label,
            [shard, entry.content, c.steps["rules"][shard].content, judged],
            {
                "shard": shard,
                "documents": c.path("read", "documents", shard),
                "failures": c.path("rules", "failures", shard),
                "repeats": c.path("repeats", "repeats"),
                "clusters": c.common("dedup", "clusters", shard),
                "holdout": c.common("holdout", "holdout", shard),
            },
        )
        for shard, entry in enumerate(c.documents)
    ]
    return Step("verdicts", 1, {}, _verdicts), shards


def _verdicts(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["documents"] is None:
        return {"verdicts": 0}
    with connect() as db:
        scan(db, "documents", writer.root, [(task["shard"], task["documents"])], ["doc_id", "source", "bytes", "text_version"])
        scan(db, "failures", writer.root, [(task["shard"], task["failures"])], ["failures"])
        for name, schema in (("repeats", REPEATS), ("clusters", CLUSTERS), ("holdout", HOLDOUT)):
            if task[name] is None:
                db.register(name, schema.empty_table())
            else:
                db.execute(f"CREATE TEMP VIEW {name} AS FROM {parquet([str(writer.root / task[name])])}")
        verdicts = db.sql(
            f"""
            SELECT d.doc_id, d.source, d.locator,
                CASE WHEN len(f.failures) > 0 OR c.locator IS NOT NULL OR h.state = 'near_holdout' THEN 'dropped'
                     WHEN h.state = 'held_out' THEN 'held_out' ELSE 'kept' END AS state,
                CASE WHEN len(f.failures) > 0 THEN f.failures[1].rule
                     WHEN c.locator IS NOT NULL THEN c.kind || '_duplicate'
                     WHEN h.state = 'near_holdout' THEN h.state END AS reason,
                f.failures,
                coalesce(c.kept_doc_id, CASE WHEN h.state = 'near_holdout' THEN h.reference END) AS kept_doc_id,
                coalesce(c.similarity, CASE WHEN h.state = 'near_holdout' THEN h.similarity END) AS similarity,
                d.bytes, d.text_version
            FROM documents d JOIN failures f USING (locator)
                LEFT JOIN (FROM clusters WHERE locator >> 32 = {task["shard"]}) c USING (locator)
                LEFT JOIN (FROM holdout WHERE locator >> 32 = {task["shard"]}) h USING (locator)
            WHERE d.locator NOT IN (SELECT locator FROM repeats) ORDER BY d.locator
            """
        ).to_arrow_table()
    writer.table("verdicts", verdicts)
    return {"verdicts": verdicts.num_rows}


def check_sources(c: Curation) -> None:
    """Refuse a source that gave no record, or too many bad ones.

    Raises:
        InputError: names source, counts and limit.
    """
    for name, source in c.recipe.sources.items():
        entries = [entry for entry in c.documents if source_of(entry) == name]
        records = sum(entry.counts["records"] for entry in entries)
        check_records(name, records)
        _check_sample(c, name, entries)
        _check_files(c, name, entries)
        bad = sum(entry.counts["quarantined"] for entry in entries)
        if bad > source.max_bad_share * records:
            raise InputError(
                f"{bad} of {records} records were quarantined ({_reasons(c, entries)}), more than max_bad_share = {source.max_bad_share:g}",
                where=f"source {name!r}",
                fix=f"look at {c.root}/quarantine/{name}; mend the input or raise sources.{name}.max_bad_share",
            )


def _reasons(c: Curation, entries: Sequence[Entry]) -> str:
    """Why records of these shards were quarantined, the most frequent reasons first."""
    counts: Counter[str] = Counter()
    for path in filter(None, (file_of(entry, "quarantine") for entry in entries)):
        reasons = pq.read_table(here(c.root, path), columns=["reason"], partitioning=None).column("reason")
        counts.update({pair["values"]: pair["counts"] for pair in reasons.value_counts().to_pylist()})
    return ", ".join(f"{reason}: {n}" for reason, n in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:3])


def _check_sample(c: Curation, name: str, entries: Sequence[Entry]) -> None:
    out = sum(entry.counts.get("sampled_out", 0) for entry in entries)
    if out and not sum(entry.counts["documents"] for entry in entries):
        raise InputError(
            f"none of the {out:,} documents of source {name!r} is in a sample of {c.sample:.3g}",
            where="--sample",
            fix=f"give at least {min(1.0, 10 / out):.2g}, or leave it out",
        )


def _check_files(c: Curation, name: str, entries: Sequence[Entry]) -> None:
    """Of a file that breaks off nobody knows how many records are lost, so files are counted against the limit as well."""
    broken = sum(entry.counts.get("broken_files", 0) for entry in entries)
    if not broken:
        return
    records = [read_json(c.root / entry.files["generation"].path) for entry in c.steps["generation"]]
    shards = [shard for record in records for shard in record["shards"] if shard["label"].partition("/")[0] == name]
    files = {path for shard in shards for path, *_ in shard["pieces"]}
    limit = c.recipe.sources[name].max_bad_share
    if broken > limit * len(files):
        raise InputError(
            f"{broken} of {len(files)} files are broken or cut short, more than max_bad_share = {limit:g}",
            where=f"source {name!r}",
            fix=f"look at {c.root}/quarantine/{name}; mend the files or raise sources.{name}.max_bad_share",
        )


def conservation_step(c: Curation) -> tuple[Step, list[Shard]]:
    """Check that every record and byte is accounted for, then a step that publishes the count.

    The reader counted what went in; SQL over quarantine and verdicts counts what came out.

    Raises:
        GristmillError: by source, what does not add up.
    """
    counted = _counted_out(c)
    rows = []
    for name in c.recipe.sources:
        entries = [entry for entry in c.documents if source_of(entry) == name]
        total = {key: sum(entry.counts.get(key, 0) for entry in entries) for key in ("records", "bytes_in", "sampled_out")}
        row: dict[str, Any] = {
            "source": name,
            "records_in": total["records"],
            "sampled_out": total["sampled_out"],
            "bytes_in": total["bytes_in"],
            **counted[name],
        }
        rows.append(row)
        out = sum(row[key] for key in ("sampled_out", "quarantined", "dropped", "held_out", "kept"))
        if out != row["records_in"] or row["bytes_in"] != row["bytes_out"] + row["bytes_edited"]:
            raise GristmillError(
                f"records do not add up: {row}",
                where=f"source {name!r}",
                fix="the lake was changed by hand or a step is faulty: please report it",
            )
    inputs = [entry.content for step in ("read", "repeats", "verdicts") for entry in c.steps[step]]
    return Step("conservation", 2, {}, _conservation), [Shard("all", [inputs, rows], rows)]


def _counted_out(c: Curation) -> dict[str, dict[str, int]]:
    """Quarantined, dropped, held out and kept by source, by SQL over the tables themselves."""
    files = {
        "quarantine": [*c.paths("read", "quarantine"), *c.paths("repeats", "quarantine")],
        "verdicts": c.paths("verdicts", "verdicts"),
        "repeats": c.paths("repeats", "repeats"),
        "edits": [path for step in edit_steps(c) for path in c.paths(step, "edits")],
        "documents": c.paths("read", "documents"),
    }
    schemas = {"quarantine": QUARANTINE, "verdicts": VERDICTS, "repeats": REPEATS, "edits": EDITS}
    bring(c.root, [path for name in schemas for path in files[name]])
    bring(c.root, files["documents"] if any(files["repeats"]) else [])
    with connect() as db:
        for name in schemas:
            paths = [str(c.root / path) for path in files[name] if path is not None]
            if paths:
                db.execute(f"CREATE TEMP VIEW {name} AS FROM {parquet(paths)}")
            else:
                db.register(name, schemas[name].empty_table())
        documents = present(files["documents"]) if any(files["repeats"]) else []
        if documents:
            scan(db, "documents", c.root, documents, ["source"])
            repeated = "SELECT source, r.bytes FROM repeats r JOIN documents USING (locator)"
        else:
            repeated = "SELECT ''::VARCHAR AS source, 0::BIGINT AS bytes WHERE false"
        sources = ", ".join(f"({literal(name)})" for name in c.recipe.sources)
        found = db.sql(
            f"""
            SELECT source,
                (SELECT count(*) FROM quarantine q WHERE q.source = s.source AND record IS NOT NULL) AS quarantined,
                (SELECT count(*) FROM verdicts v WHERE v.source = s.source AND state = 'dropped') AS dropped,
                (SELECT count(*) FROM verdicts v WHERE v.source = s.source AND state = 'held_out') AS held_out,
                (SELECT count(*) FROM verdicts v WHERE v.source = s.source AND state = 'kept') AS kept,
                (SELECT coalesce(sum(removed) - sum(added), 0)::BIGINT FROM edits e WHERE e.source = s.source) AS bytes_edited,
                (SELECT coalesce(sum(bytes), 0)::BIGINT FROM verdicts v WHERE v.source = s.source)
                    + (SELECT coalesce(sum(bytes), 0)::BIGINT FROM ({repeated}) r WHERE r.source = s.source) AS bytes_out
            FROM (VALUES {sources}) s (source)
            """
        ).to_arrow_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    return {row.pop("source"): row for row in rows}


def _conservation(writer: ShardWriter, rows: Json) -> Mapping[str, int]:
    writer.table("conservation", pa.Table.from_pylist(rows, schema=CONSERVATION))
    return {"sources": len(rows)}
