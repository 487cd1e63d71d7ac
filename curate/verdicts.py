"""Verdicts: what became of every document and why; and the proof that none was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.corpus import column_array, locators
from curate.curation import Curation, file_of, source_of
from curate.edit.failures import edit_steps
from curate.sql import connect, literal, parquet, present, scan
from curate.step import Shard, ShardWriter, Step
from curate.survivors import rows_in
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
    documents = _read(writer.root, task["documents"], ["doc_id", "source", "bytes", "text_version"])
    failures = _read(writer.root, task["failures"], ["failures"])["failures"]
    places = pa.array(locators(task["shard"], len(failures)))
    cluster = _beside(places, writer.root, task["clusters"], CLUSTERS)
    held = _beside(places, writer.root, task["holdout"], HOLDOUT)
    failed, copied = pc.greater(failures.value_lengths(), 0), cluster["locator"].is_valid()
    held_out, near = (pc.fill_null(pc.equal(held["state"], state), False) for state in ("held_out", "near_holdout"))
    dropped = pc.or_(pc.or_(failed, copied), near)
    verdicts = pa.table(
        {
            "doc_id": documents["doc_id"],
            "source": documents["source"],
            "locator": places,
            "state": pc.case_when(pc.make_struct(dropped, held_out), "dropped", "held_out", "kept"),
            "reason": pc.coalesce(
                _first_rules(failures, failed),
                pc.binary_join_element_wise(cluster["kind"], "duplicate", "_"),
                pc.if_else(near, "near_holdout", None),
            ),
            "failures": failures,
            "kept_doc_id": pc.coalesce(cluster["kept_doc_id"], pc.if_else(near, held["reference"], None)),
            "similarity": pc.coalesce(cluster["similarity"], pc.if_else(near, held["similarity"], None)),
            "bytes": documents["bytes"],
            "text_version": documents["text_version"],
        }
    )
    repeated = rows_in(writer.root, task["repeats"], task["shard"])
    if len(repeated):
        verdicts = verdicts.take(pa.array(np.setdiff1d(np.arange(len(places)), repeated)))
    writer.table("verdicts", verdicts)
    return {"verdicts": verdicts.num_rows}


def _read(root: Path, path: str, columns: Sequence[str]) -> dict[str, pa.Array]:
    """Columns of a shard's table."""
    table = pq.read_table(root / path, columns=list(columns), partitioning=None)
    return {name: column_array(table, name) for name in columns}


def _beside(places: pa.Array, root: Path, path: str | None, schema: pa.Schema) -> dict[str, pa.Array]:
    """Columns of a table that names each document at most once, a row a document of a shard; nulls where it does not name one."""
    if path is None:
        return {field.name: pa.nulls(len(places), field.type) for field in schema}
    span = [("locator", ">=", places[0].as_py()), ("locator", "<=", places[-1].as_py())]
    table = pq.read_table(root / path, schema=schema, filters=span, partitioning=None)
    rows = pc.index_in(places, column_array(table, "locator"))
    return {name: column_array(table, name).take(rows) for name in schema.names}


def _first_rules(failures: pa.ListArray, failed: pa.BooleanArray) -> pa.StringArray:
    """The first rule that each document fails, null where it passes."""
    first = pc.if_else(failed, failures.offsets[:-1], None)
    return pc.struct_field(failures.values, "rule").take(first)


def check_sources(c: Curation) -> None:
    """Refuse a source that gave no record, or too many bad ones.

    Raises:
        InputError: names source, counts and limit.
    """
    for name, source in c.recipe.sources.items():
        entries = [entry for entry in c.documents if source_of(entry) == name]
        records = sum(entry.counts["records"] for entry in entries)
        if not records:
            raise InputError(
                f"0 records were read from it{_reasons(c, entries)}",
                where=f"source {name!r}",
                fix="name files that hold records for its reader, or remove the source",
            )
        _check_sample(c, name, entries)
        _check_files(c, name, entries)
        bad = sum(entry.counts["quarantined"] for entry in entries)
        if bad > source.max_bad_share * records:
            raise InputError(
                f"{bad} of {records} records were quarantined, more than max_bad_share = {source.max_bad_share:g}{_reasons(c, entries)}",
                where=f"source {name!r}",
                fix=f"mend the input, name its fields (sources.{name}.text_field, ...) or raise sources.{name}.max_bad_share; "
                f"all of them are in {c.root}/quarantine/{name}",
            )


def _reasons(c: Curation, entries: Sequence[Entry]) -> str:
    """Why records and files of these shards were set aside, a line a reason with its first place, the most frequent first."""
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for path in filter(None, (file_of(entry, "quarantine") for entry in entries)):
        found = pq.read_table(here(c.root, path), columns=["reason", "path", "record", "detail"], partitioning=None)
        wanted: Any = [("reason", "count"), ("path", "first"), ("record", "first"), ("detail", "first")]
        for row in found.group_by("reason", use_threads=False).aggregate(wanted).to_pylist():
            counts[row["reason"]] += row["reason_count"]
            record = "" if row["record_first"] is None else f", record {row['record_first']}"
            first.setdefault(row["reason"], f"first {row['path_first']}{record}: {row['detail_first']}")
    most = sorted(counts, key=lambda reason: (-counts[reason], reason))[:3]
    return "".join(f"\n  {counts[reason]} {reason}; {first[reason]}" for reason in most)


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
            f"{broken} of {len(files)} files are broken or cut short, more than max_bad_share = {limit:g}{_reasons(c, entries)}",
            where=f"source {name!r}",
            fix=f"mend the files or raise sources.{name}.max_bad_share; all of them are in {c.root}/quarantine/{name}",
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
