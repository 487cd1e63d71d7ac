"""What changed between two snapshots, of one lake or of two: by source, verdict and document."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
from rich.console import Console

from pipelines.catalog import ask, follow, snapshot_select
from pipelines.progress import asking
from pipelines.tables import table
from schemas.manifest import read_snapshot
from schemas.store import address_of, open_lake, using

Json = Any
LISTED = 50

_CHANGES = """
CREATE TABLE changes AS
SELECT coalesce(a.doc_id, b.doc_id) AS doc_id, coalesce(a.source, b.source) AS source,
    coalesce(a.reason, a.state, 'absent') AS before, coalesce(b.reason, b.state, 'absent') AS after, coalesce(b.bytes, a.bytes) AS bytes
FROM a FULL JOIN b USING (doc_id) WHERE coalesce(a.reason, a.state) IS DISTINCT FROM coalesce(b.reason, b.state)
"""

_COUNTED = """
SELECT source, before, after, count(*) AS documents, sum(bytes)::BIGINT AS bytes FROM changes GROUP BY ALL ORDER BY source, before, after
"""


def place_of(text: str, lake: Path | str) -> tuple[Path, str]:
    """Lake and snapshot name of ``LAKE``, ``LAKE@NAME`` or ``@NAME`` (of the lake at hand)."""
    folder, _, name = text.partition("@")
    return (open_lake(folder) if folder else open_lake(lake)), name or "current"


def diff(a: tuple[Path, str], b: tuple[Path, str], silent: bool = True) -> dict[str, Json]:
    """Compare the verdicts of two snapshots, each a lake and a snapshot name; show no progress where it is to be silent.

    Raises:
        LakeError: one of them does not exist.
    """
    with tempfile.TemporaryDirectory(prefix="gristmill-diff-") as spill, duckdb.connect(":memory:") as db, ExitStack() as held:
        db.execute("SET temp_directory = ?", [spill])
        follow(db)
        for view, (root, name) in (("a", a), ("b", b)):
            snapshot = read_snapshot(root, name)
            held.enter_context(using(root, snapshot.files("verdicts")))
            db.execute(f"CREATE VIEW {view} AS {snapshot_select(root, snapshot, 'verdicts')}")
        held.enter_context(asking(db, silent))
        db.execute(_CHANGES)
        return {
            "a": f"{address_of(a[0])}@{a[1]}",
            "b": f"{address_of(b[0])}@{b[1]}",
            "counts": ask(db, "SELECT (SELECT count(*) FROM a) AS a, (SELECT count(*) FROM b) AS b")[0],
            "changes": ask(db, _COUNTED),
            "documents": ask(
                db, f"SELECT doc_id, source, before, after FROM changes ORDER BY source, before, after, doc_id LIMIT {LISTED}"
            ),
        }


def print_diff(found: dict[str, Json], console: Console) -> None:
    """Print a comparison for people."""
    console.print(
        f"a: {found['a']}, {found['counts']['a']:,} documents\nb: {found['b']}, {found['counts']['b']:,} documents", highlight=False
    )
    if not found["changes"]:
        console.print("No document's verdict differs.")
        return
    shown = table("Changed verdicts", ("source", "a", "b"), ("documents", "MB"))
    for line in found["changes"]:
        shown.add_row(line["source"], line["before"], line["after"], f"{line['documents']:,}", f"{line['bytes'] / 1e6:,.2f}")
    console.print(shown)
    listed = table(f"Documents (at most {LISTED})", ("document", "source", "a", "b"), ())
    for line in found["documents"]:
        listed.add_row(line["doc_id"], line["source"], line["before"], line["after"])
    console.print(listed)
