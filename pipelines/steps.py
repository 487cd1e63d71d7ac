"""From steps back to documents: which ones some steps of a run saw, by source, and the hardest with their loss and verdict history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from curate.corpus import ROW_BITS
from curate.curation import file_of
from curate.doc_index import is_indexed, locators_of
from pipelines.catalog import Connection, ask, open_catalog, run_select, table_select
from pipelines.one_document import parts
from pipelines.progress import asking
from pipelines.tables import table
from schemas.errors import GristmillError
from schemas.manifest import Snapshot, read_snapshot
from schemas.store import bring

Json = Any

_SOURCES = """
WITH names AS (SELECT DISTINCT lot, source FROM ledger),
counted AS (SELECT source, count(*) AS rows FROM ledger WHERE status = 'seen' GROUP BY source)
SELECT source, any_value(rows) AS rows, count(DISTINCT doc_id) AS documents, sum(tokens)::BIGINT AS tokens, sum(loss) / sum(tokens) AS loss
FROM losses JOIN names USING (lot) JOIN counted USING (source) WHERE status = 'seen' AND tokens > 0 GROUP BY source ORDER BY source
"""

_DOCUMENTS = """
WITH names AS (SELECT DISTINCT lot, source FROM ledger)
SELECT doc_id, source, sum(tokens)::BIGINT AS tokens, sum(loss) / sum(tokens) AS loss, list(DISTINCT step ORDER BY step) AS steps
FROM losses JOIN names USING (lot) WHERE status = 'seen' AND tokens > 0 GROUP BY doc_id, source ORDER BY loss DESC, doc_id LIMIT ?
"""

_VERDICTS = """
SELECT doc_id, state, reason, text_version, [f.rule FOR f IN failures] AS failed FROM ({verdicts})
"""


def seen(root: Path, run: str, first: int, last: int, limit: int, silent: bool = True) -> dict[str, Json]:
    """What steps of a run saw.

    Args:
        root: the lake.
        run: run name.
        first: first step.
        last: last step, included.
        limit: documents to list, those of the highest loss first; 0 lists all.
        silent: show no progress.

    Raises:
        GristmillError: the run has no such steps, or a limit below 0.
    """
    if limit < 0:
        raise GristmillError(f"{limit} is below 0", where="--limit", fix="0 lists all")
    with open_catalog(root) as db, asking(db, silent):
        for name in ("ledger", "losses"):
            files = [path for path in parts(root, name, {run: range(first, last + 1)}) if path.startswith(f"{root}/runs/{run}/")]
            query = run_select(root, name, files, f"step BETWEEN {first} AND {last}")
            db.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {query}")
        counts = "count(DISTINCT step) FILTER (status = 'seen') AS seen, count(DISTINCT (attempt, step)) FILTER (status = 'void') AS void"
        steps = ask(db, f"SELECT {counts} FROM ledger")[0]
        if not steps["seen"] and not steps["void"]:
            raise GristmillError(f"the ledger of run {run!r} has no rows of steps {first} to {last}", where="steps", fix="see table ledger")
        documents = ask(db, _DOCUMENTS, limit or 1 << 62)
        report = {"run": run, "first": first, "last": last, **steps, "sources": ask(db, _SOURCES), "documents": documents}
        _tell_verdicts(db, root, documents)
    return report


def _tell_verdicts(db: Connection, root: Path, documents: Sequence[dict[str, Json]]) -> None:
    """Add to each document its verdict in every snapshot of the lake, the current one first, and what it stands for."""
    ids = [each["doc_id"] for each in documents]
    by_id = {each["doc_id"]: each for each in documents}
    for each in documents:
        each["verdicts"], each["duplicates"] = [], 0
    names = sorted((path.stem for path in root.glob("snapshots/*.json")), key=lambda name: (name != "current", name))
    for name in names if ids else ():
        told = {line["doc_id"]: line for line in ask(db, _verdicts(root, read_snapshot(root, name), ids), ids)}
        for each in documents:
            verdict = told.get(each["doc_id"], {"state": "absent", "reason": None, "text_version": None, "failed": []})
            each["verdicts"].append({"snapshot": name, **{key: value for key, value in verdict.items() if key != "doc_id"}})
    clusters = [str(root / file.path) for file in read_snapshot(root).files("clusters")] if ids else []
    query = table_select("clusters", clusters, "kept_doc_id IN (SELECT unhex(unnest(?)))")
    for line in ask(db, f"SELECT kept_doc_id, count(*) AS n FROM ({query}) GROUP BY ALL", ids) if clusters else ():
        by_id[line["kept_doc_id"]]["duplicates"] = line["n"]


def _verdicts(root: Path, snapshot: Snapshot, ids: Sequence[str]) -> str:
    """A query for the verdicts of documents in a snapshot, over the shards in which they lie."""
    entries = list(snapshot.steps.get("verdicts", ()))
    if is_indexed(snapshot):
        places = locators_of(root, snapshot, [bytes.fromhex(doc) for doc in ids])
        entries = [entries[shard] for shard in sorted({place >> ROW_BITS for place in places.values()})]
    bring(root, [file_of(entry, "verdicts") for entry in entries])
    files = [str(root / entry.files["verdicts"].path) for entry in entries if "verdicts" in entry.files]
    where = "doc_id IN (SELECT unhex(unnest(?)))"
    # Without a file there is no condition either, but the query is asked with its parameter all the same.
    return _VERDICTS.format(verdicts=table_select("verdicts", files, where) if files else f"{table_select('verdicts', [])} AND len(?) = 0")


def print_seen(found: dict[str, Json], console: Console) -> None:
    """Print what steps saw for people."""
    void = f"; {found['void']:,} more were lost to a restart or a rewind and do not count" if found["void"] else ""
    console.print(f"run {found['run']}, steps {found['first']} to {found['last']}: {found['seen']:,} steps{void}", highlight=False)
    shown = table("By source (loss in nats per token)", ("source",), ("rows", "documents", "tokens", "loss"))
    for line in found["sources"]:
        shown.add_row(line["source"], *(f"{line[name]:,}" for name in ("rows", "documents", "tokens")), f"{line['loss']:.3f}")
    console.print(shown)
    listed = table("Documents, the hardest first", ("document", "source"), ("tokens", "loss", "stands for"), ("steps", "verdicts"))
    for line in found["documents"]:
        steps = ", ".join(map(str, line["steps"][:5])) + (", …" if len(line["steps"]) > 5 else "")
        duplicates = f"{line['duplicates']:,}" if line["duplicates"] else "-"
        numbers = (f"{line['tokens']:,}", f"{line['loss']:.3f}", duplicates)
        listed.add_row(Text(line["doc_id"][:12]), Text(line["source"]), *numbers, steps, Text(_history(line["verdicts"])))
    console.print(listed)
    console.print("`gristmill why DOCUMENT` tells one's whole life; --limit 0 --json gives all.", highlight=False)


def _history(verdicts: Sequence[dict[str, Json]]) -> str:
    """What a document's verdicts were, those of other snapshots only where they differ from the current one."""
    words = [(each["snapshot"], each["state"] + (f", {each['reason']}" if each["reason"] else "")) for each in verdicts]
    now = words[0][1]
    edited = f" (text version {verdicts[0]['text_version']})" if verdicts[0]["text_version"] else ""
    return "; ".join([now + edited, *(f"{what} in {name}" for name, what in words[1:] if what != now)])
