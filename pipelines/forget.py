"""``gristmill forget``: takes documents out of a lake for good, and tells what has held them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from curate.doc_index import is_indexed
from curate.identity import user_doc_id
from curate.purge import purge
from curate.tombstones import add_tombstones
from pipelines.catalog import Connection, ask, bring_tables, open_catalog, table_select
from pipelines.one_document import place_of, replace_view
from pipelines.progress import Tell, untold
from pipelines.tables import table
from pipelines.why import find_document
from schemas.errors import GristmillError
from schemas.manifest import Snapshot, read_snapshot
from schemas.store import bring, lock

Json = Any

_LOTS = """
SELECT lot, any_value(lots.source) AS source, count(DISTINCT "row") AS rows, sum(pieces.tokens)::BIGINT AS tokens
FROM (SELECT lot, "row", tokens FROM rows WHERE list_contains(?, doc_id)) AS pieces JOIN lots USING (lot) GROUP BY lot ORDER BY lot
"""

_RUNS = """
SELECT run, stage, count(*) AS uses, count(*) FILTER (status = 'seen') AS seen, min(step) AS first_step, max(step) AS last_step
FROM ledger JOIN (SELECT DISTINCT lot, "row" FROM rows WHERE list_contains(?, doc_id)) USING (lot, "row")
GROUP BY run, stage ORDER BY run, first_step, stage
"""


def forget(root: Path, names: Sequence[str], listing: Path | None, dry_run: bool, tell: Tell = untold) -> dict[str, Json]:
    """Forget documents and report what has held them; with ``dry_run`` only report.

    Args:
        root: the lake.
        names: each a doc_id in hex, its beginning, the record's own id, or source:id.
        listing: a file of more names, one a line; lines that begin with # are comments.
        dry_run: change nothing.
        tell: takes how many of the lake's entries are purged, and how many there are.

    Raises:
        GristmillError: no name, or one that names no document or several (a whole doc_id and source:id may name one yet to come).
    """
    wanted = [*names, *_listed(listing)]
    if not wanted:
        raise GristmillError("no document is named", where="forget", fix="give doc_ids, source:id, or --file")
    with open_catalog(root) as db:
        snapshot = read_snapshot(root)
        if not is_indexed(snapshot):
            bring_tables(root, ("documents", "rows"))
        ids = sorted({_identity(db, root, snapshot, name) for name in wanted})
        there = _in_lake(db, root, snapshot, ids)
        lots, runs = ask(db, _LOTS, ids), ask(db, _RUNS, ids)
    report = {
        "documents": [{"doc_id": doc, "in_lake": doc in there} for doc in ids],
        "lots": lots,
        "runs": runs,
        "checkpoints": _checkpoints(root, runs),
        "purged": [],
    }
    if not dry_run:
        with lock(root / ".lock", "forget"):
            add_tombstones(root, map(bytes.fromhex, ids))
            report["purged"] = purge(root, pa.array(list(map(bytes.fromhex, ids)), pa.binary(16)), tell)
    return report


def _in_lake(db: Connection, root: Path, snapshot: Snapshot, ids: Sequence[str]) -> set[str]:
    """Which documents the snapshot has; where it has an index, the catalogue's ``rows`` become those of their pack shards."""
    if not is_indexed(snapshot):
        return {row["doc_id"] for row in ask(db, "SELECT DISTINCT doc_id FROM documents WHERE list_contains(?, doc_id)", ids)}
    places = {doc: place for doc in ids if (place := place_of(root, snapshot, doc)) is not None}
    files = {place.packed.files["rows"].path for place in places.values() if place.packed is not None and "rows" in place.packed.files}
    bring(root, files)
    replace_view(db, "rows", table_select("rows", [str(root / file) for file in sorted(files)]))
    return set(places)


def _listed(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise GristmillError(f"cannot be read: {error}", where=str(path), fix="give a UTF-8 file with one document a line") from error
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _identity(db: Connection, root: Path, snapshot: Snapshot, name: str) -> str:
    """doc_id in hex of what a user calls a document."""
    if re.fullmatch("[0-9a-fA-F]{32}", name):
        return name.lower()
    source, colon, own = name.partition(":")
    if colon:
        return user_doc_id(source, own).hex()
    return find_document(db, root, snapshot, name, "forget")


def _checkpoints(root: Path, runs: Sequence[dict[str, Json]]) -> list[str]:
    """Checkpoints of runs written after a step that used a document; steps are counted over the whole run."""
    first: dict[str, int] = {}
    for each in runs:
        first[each["run"]] = min(each["first_step"], first.get(each["run"], each["first_step"]))
    found = []
    for run, step in first.items():
        for path in sorted(root.glob(f"runs/{run}/*/checkpoints/*")):
            number = re.search(r"s(\d+)$", path.name)
            if number is not None and int(number[1]) > step:
                found.append(str(path.relative_to(root)))
    return found


def print_forgotten(found: dict[str, Json], console: Console) -> None:
    """Print a report for people."""
    absent = [each["doc_id"] for each in found["documents"] if not each["in_lake"]]
    console.print(f"{len(found['documents'])} documents" + (f"; not in the lake so far: {', '.join(absent)}" if absent else ""))
    for title, key in (("Lots that hold them", "lots"), ("Runs that saw them (steps lost to a rewind included)", "runs")):
        rows = found[key]
        if rows:
            numbers = [name for name, value in rows[0].items() if isinstance(value, int)]
            texts = [name for name in rows[0] if name not in numbers]
            made = table(title, texts, numbers)
            for row in rows:
                made.add_row(*(str(row[name]) for name in texts), *(f"{row[name]:,}" for name in numbers))
            console.print(made)
    if found["checkpoints"]:
        console.print("Checkpoints that were trained on them, which only training anew without them can mend:")
        for path in found["checkpoints"]:
            console.print(f"  {path}", highlight=False)
    if found["purged"]:
        console.print(f"Their text was taken out of {len(found['purged'])} files; the next curation drops them as 'forgotten'.")
        console.print("Exports, copies of the lake and the input files are yours to mend.")
