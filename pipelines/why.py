"""One document's whole life: source, signals, verdict, lots, stages, and the steps that saw it with the loss it had."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from curate.doc_index import is_indexed
from pipelines.catalog import Connection, ask, bring_tables, open_catalog
from pipelines.one_document import named, narrow, narrow_documents, place_of
from pipelines.query import shown
from pipelines.tables import table
from schemas.errors import GristmillError
from schemas.families import FAMILIES
from schemas.manifest import Snapshot, read_snapshot
from schemas.signals import SIGNAL_FAMILIES

Json = Any
EXCERPT = 400


class UnknownDocument(GristmillError):
    """No document, or more than one, answers to a name."""


def life(root: Path, name: str) -> dict[str, Json]:
    """Everything the lake knows of a document.

    Args:
        root: the lake.
        name: its doc_id in hex or the beginning of it, or the user's own id.

    Raises:
        LakeError: there is no lake, or it holds nothing yet.
        UnknownDocument: no document has that name, or several have.
    """
    with open_catalog(root) as db:
        snapshot = read_snapshot(root)
        if not is_indexed(snapshot):
            bring_tables(root, ("documents", "rows"))
        doc = find_document(db, root, snapshot, name)
        narrow(db, root, snapshot, doc, place_of(root, snapshot, doc))
        document = _one(db, "SELECT * EXCLUDE (text), text[:?] AS excerpt FROM documents WHERE doc_id = ? LIMIT 1", EXCERPT, doc)
        verdict = _one(db, "SELECT * EXCLUDE (doc_id, source, locator) FROM verdicts WHERE doc_id = ?", doc)
        signals = _one(db, "SELECT * EXCLUDE (doc_id) FROM signals WHERE doc_id = ? LIMIT 1", doc)
        return {
            "doc_id": doc,
            "document": document,
            "edits": ask(db, _EDITS, doc),
            "verdict": verdict,
            "signals": signals,
            "families": {name: _one(db, f"SELECT * EXCLUDE (doc_id) FROM {name} WHERE doc_id = ? LIMIT 1", doc) for name in FAMILIES},
            "scores": ask(db, "SELECT signal, value FROM scores WHERE doc_id = ? ORDER BY signal", doc),
            "forgotten": bool(ask(db, "FROM forgotten WHERE doc_id = ?", doc)),
            "excluded": ask(db, "SELECT reason, detail, matches FROM exclusions WHERE doc_id = ? ORDER BY ALL", doc),
            "language": _one(db, "SELECT language, language_score FROM languages WHERE doc_id = ? LIMIT 1", doc),
            "repeats_of_its_id": ask(db, "SELECT path, record, detail FROM quarantine WHERE doc_id = ? ORDER BY ALL", doc),
            "duplicates": ask(db, "SELECT doc_id, kind, similarity FROM clusters WHERE kept_doc_id = ? ORDER BY ALL", doc),
            "held_out_near": ask(db, "SELECT state, reference, similarity FROM holdout WHERE doc_id = ?", doc),
            "lots": ask(db, _LOTS, doc),
            "stages": ask(db, _STAGES, doc),
            "steps": ask(db, _STEPS, doc),
            "kept_instead": _kept_instead(db, root, snapshot, verdict),
        }


_EDITS = """
SELECT step, edit, text_version, bytes_before, bytes_after, removed, added,
    [c.kind || ' ' || c.count for c in changes] AS changes
FROM edits WHERE doc_id = ? ORDER BY step
"""

_LOTS = """
SELECT lot, lots.source, repeats, bin, list("row" ORDER BY "row") AS rows, sum(pieces.tokens)::BIGINT AS tokens
FROM (SELECT lot, "row", tokens FROM rows WHERE doc_id = ?) AS pieces JOIN lots USING (lot) GROUP BY ALL ORDER BY lot
"""

_STAGES = """
SELECT run, position, stage, count(*) FILTER (status = 'seen') AS rows_seen, count(*) FILTER (status = 'void') AS rows_void,
    min(step) AS first_step, max(step) AS last_step
FROM ledger JOIN (SELECT DISTINCT lot, "row" FROM rows WHERE doc_id = ?) USING (lot, "row") GROUP BY ALL ORDER BY run, position
"""

_STEPS = """
SELECT run, stage, step, attempt, status, sum(tokens)::BIGINT AS tokens, sum(loss) / sum(tokens) AS loss
FROM losses WHERE doc_id = ? AND tokens > 0 GROUP BY ALL ORDER BY run, step, attempt
"""


def find_document(db: Connection, root: Path, snapshot: Snapshot, name: str, where: str = "why") -> str:
    """doc_id in hex of the only document with that name: the user's own id, or a doc_id or its beginning.

    Args:
        db: the catalogue.
        root: the lake.
        snapshot: the snapshot whose documents are meant.
        name: what a user calls it.
        where: command or option that asks, for the error.

    Raises:
        UnknownDocument: none has it, or several have.
    """
    found = named(root, snapshot, name)
    if found is None:
        found = _sought(db, name)
    if not found:
        listing = 'gristmill sql "SELECT doc_id, id, path FROM documents"'
        hint = f"give the beginning of a doc_id in hex or the record's own id; `{listing}` lists them"
        raise UnknownDocument(f"no document {name!r}", where=where, fix=hint)
    if len(found) > 1:
        names = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise UnknownDocument(f"{name!r} is the name of several documents: {names}", where=where, fix="give more of its doc_id")
    return found[0]


def _sought(db: Connection, name: str) -> list[str]:
    """The same without an index, by a look at every document."""
    found = db.execute("SELECT DISTINCT doc_id FROM documents WHERE id = ? ORDER BY ALL LIMIT 6", [name]).fetchall()
    prefix = name.lower()
    if not found and prefix and set(prefix) <= set("0123456789abcdef"):
        found = db.execute("SELECT DISTINCT doc_id FROM documents WHERE starts_with(doc_id, ?) ORDER BY ALL LIMIT 6", [prefix]).fetchall()
    return [doc for (doc,) in found]


def _kept_instead(db: Connection, root: Path, snapshot: Snapshot, verdict: Json) -> Json:
    if verdict is None or verdict["kept_doc_id"] is None:
        return None
    kept = verdict["kept_doc_id"]
    narrow_documents(db, root, snapshot, kept, place_of(root, snapshot, kept))
    return _one(db, "SELECT doc_id, source, id, path, record FROM documents WHERE doc_id = ? LIMIT 1", kept)


def _one(db: Connection, query: str, *values: object) -> dict[str, Json] | None:
    rows = ask(db, query, *values)
    return rows[0] if rows else None


def print_life(found: dict[str, Json], console: Console) -> None:
    """Print a document's life for people."""
    document = found["document"]
    place = f"{document['source']}: {document['path']}, record {document['record']}"
    lines: list[Any] = [Text(place), Text(f"{document['bytes']:,} bytes" + "".join(_known(document)))]
    console.print(Panel(Group(*lines, Text(document["excerpt"], style="dim")), title=f"document {found['doc_id']}", title_align="left"))
    _print_rows("Edits, in order (bytes)", found["edits"], console)
    if found["forgotten"]:
        console.print("Forgotten: its text was taken out of the lake; the next curation drops it.")
    _print_verdict(found, console)
    _print_signals(found["signals"], found["families"], console)
    if (language := found["language"]) is not None:
        console.print(Text(f"Language: {language['language'] or 'none found'}, score {_number(language['language_score'])}"))
    _print_rows("Signals of the recipe's own", found["scores"], console)
    for title, key in (("Repeats of its id (set aside)", "repeats_of_its_id"), ("Documents it stands for", "duplicates")):
        _print_rows(title, found[key][:20], console)
    _print_rows("Lots and rows", found["lots"], console)
    _print_rows("Stages", found["stages"], console)
    _print_rows("Steps that saw it (loss in nats per token)", found["steps"][:40], console)
    if len(found["steps"]) > 40:
        console.print(f"and {len(found['steps']) - 40} more; --json gives all")
    if found["lots"] and not found["stages"]:
        console.print("No step has seen it yet.")


def _known(document: dict[str, Json]) -> list[str]:
    return [f", {name} {document[name]}" for name in ("id", "url", "date", "license") if document[name] is not None]


def _print_verdict(found: dict[str, Json], console: Console) -> None:
    verdict = found["verdict"]
    if verdict is None:
        console.print("[bold]Verdict[/bold]: none yet (curation has not come to it)")
        return
    text = Text("Verdict: ", style="bold")
    text.append(verdict["state"], style="green" if verdict["state"] == "kept" else "yellow")
    text.append(f", {verdict['reason']}" if verdict["reason"] else "")
    console.print(text)
    for failure in verdict["failures"]:
        console.print(Text(f"  {failure['rule']}: value {_number(failure['value'])}, threshold {_number(failure['threshold'])}"))
    for excluded in found["excluded"]:
        console.print(Text(f"  {excluded['reason']}: {excluded['detail']}"))
    if (kept := found["kept_instead"]) is not None:
        name = f"{kept['doc_id']} ({kept['source']}: {kept['path']}, record {kept['record']})"
        jaccard = verdict["similarity"]
        console.print(Text(f"  address of {name}" if jaccard is None else f"  similar to {name}, Jaccard {_number(jaccard)}"))
    for near in found["held_out_near"]:
        console.print(Text(f"  {near['state']}: Jaccard {_number(near['similarity'])} to held-out {near['reference']}"))


def _print_signals(signals: dict[str, Json] | None, families: dict[str, dict[str, Json] | None], console: Console) -> None:
    if signals is None:
        return
    made = table("Signals (zeros left out)", ("family", "signals"), ())
    rows = {family: {name: signals[name] for name in names} for family, names in SIGNAL_FAMILIES.items()}
    for family, counts in (rows | {name: found or {} for name, found in families.items()}).items():
        values = [f"{name} {count:,}" for name, count in counts.items() if count]
        if values:
            made.add_row(Text(family), Text(", ".join(values)))
    console.print(made)


def _print_rows(title: str, rows: Sequence[dict[str, Json]], console: Console) -> None:
    if not rows:
        return
    numbers = [name for name, value in rows[0].items() if isinstance(value, int | float)]
    texts = [name for name in rows[0] if name not in numbers]
    made = table(title, texts, numbers)
    for row in rows:
        made.add_row(*(Text(shown(row[name])) for name in (*texts, *numbers)))
    console.print(made)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
