"""Views of a catalogue narrowed to one document, so that asking for its life reads the few files that tell of it.

Temporary views take the place of the catalogue's for one connection: of tables that are cut as documents are, the document's own shard; of
packed rows, its own pack shard; of ledger and losses, the parts of the steps at which its rows stand. What cannot be told is read whole,
and compared by the bytes of the doc_id, which Parquet readers do without making text of it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from curate.corpus import ROW_BITS, raw_column
from curate.curation import file_of, source_of
from curate.doc_index import beginning_with, is_indexed, locators_of
from curate.identity import user_doc_id
from curate.sql import literal
from pipelines.catalog import RUN_TABLES, Connection, documents_select, run_select, table_select
from schemas.manifest import Entry, Snapshot
from schemas.segments import allotments, read_segments
from schemas.store import bring, here
from schemas.tables import TABLES
from train.inverse import steps_of_rows
from train.order import Ints

_PART = re.compile(r"a\d+-s(\d+)-(\d+)\.parquet")


def named(root: Path, snapshot: Snapshot, name: str) -> list[str] | None:
    """doc_ids in hex of the documents that a name may mean, by the index; None where the snapshot has none.

    A whole id of the user's comes first: ids such as a1 would else be lost among the beginnings of doc_ids.
    """
    if not is_indexed(snapshot):
        return None
    own = [user_doc_id(source, name) for source in dict.fromkeys(map(source_of, snapshot.steps["read"]))]
    found = locators_of(root, snapshot, own)
    if not found and name and set(name.lower()) <= set("0123456789abcdef") and len(name) <= 32:
        found = beginning_with(root, snapshot, name.lower())
    return sorted(doc.hex() for doc in found)


@dataclass(frozen=True)
class Place:
    """Where a document lies: its documents shard, and the lot, pack shard (its entry) and rows in the lot, if it is packed."""

    shard: int
    lot: str | None = None
    packed: Entry | None = None
    rows: tuple[int, ...] = ()


def place_of(root: Path, snapshot: Snapshot, doc: str) -> Place | None:
    """The place of a document, None where the snapshot has no index or not that document."""
    if not is_indexed(snapshot):
        return None
    locator = locators_of(root, snapshot, [bytes.fromhex(doc)]).get(bytes.fromhex(doc))
    if locator is None:
        return None
    shard = locator >> ROW_BITS
    entry = _pack_shard(root, snapshot, shard, locator)
    if entry is None or "rows" not in entry.files:
        return Place(shard)
    rows = _rows_of(here(root, entry.files["rows"].path), bytes.fromhex(doc))
    return Place(shard, entry.label.rpartition("/")[0], entry, rows)


def _rows_of(path: Path, doc: bytes) -> tuple[int, ...]:
    """Rows in the lot of a document's pieces, by a pack shard's table."""
    table = pq.ParquetFile(path).read(["doc_id", "row"])
    mine = raw_column(table, "doc_id", "V16") == np.void(doc)
    return tuple(raw_column(table, "row", np.int64)[mine].tolist())


def _pack_shard(root: Path, snapshot: Snapshot, shard: int, locator: int) -> Entry | None:
    """The pack shard that holds a document: the row group of its source's layout in which its locator is."""
    label = f"{source_of(snapshot.steps['read'][shard])}/{bisect_right(snapshot.generations, shard):05d}"
    layout = next((entry for entry in snapshot.steps.get("layout", ()) if entry.label == label and "layout" in entry.files), None)
    if layout is None:
        return None
    file = pq.ParquetFile(here(root, layout.files["layout"].path))
    column = file.schema_arrow.get_field_index("locator")
    for group in range(file.metadata.num_row_groups):
        bounds = file.metadata.row_group(group).column(column).statistics
        if bounds.min <= locator <= bounds.max and locator in raw_column(
            file.read_row_group(group, columns=["locator"]), "locator", np.uint64
        ):
            return _packed_entries(snapshot, label)[group]
    return None


def _packed_entries(snapshot: Snapshot, label: str) -> list[Entry]:
    """Pack shards of a source and generation, in the order of the row groups of their layout."""
    source, _, generation = label.partition("/")
    return [
        entry
        for entry in snapshot.steps["pack"]
        if entry.label.rpartition("/")[0].rsplit("-", 5)[0] == source and entry.counts["generation"] == int(generation)
    ]


def narrow(db: Connection, root: Path, snapshot: Snapshot, doc: str, place: Place | None) -> None:
    """Put views of one document in the place of the catalogue's, for this connection."""
    same = f"doc_id = unhex({literal(doc)})"
    narrow_documents(db, root, snapshot, doc, place)
    files = _files(snapshot, place)
    for table, schema in TABLES.items():
        if table in files and "doc_id" in schema.names and table != "documents":
            bring(root, files[table])
            either = f"{same} OR kept_doc_id = unhex({literal(doc)})" if table == "clusters" else same
            replace_view(db, table, table_select(table, [str(root / path) for path in files[table]], either))
    steps = None if place is None else _steps(root, snapshot, place)
    replace_view(db, "losses", run_select(root, "losses", parts(root, "losses", steps), same))
    if place is not None and place.lot is not None:
        rows = ", ".join(map(str, place.rows)) or "-1"
        mine = f'lot = {literal(place.lot)} AND "row" IN ({rows})'
        replace_view(db, "ledger", run_select(root, "ledger", parts(root, "ledger", steps), mine))


def narrow_documents(db: Connection, root: Path, snapshot: Snapshot, doc: str, place: Place | None) -> None:
    """Put a view of one document in the place of ``documents``."""
    shards = range(len(snapshot.steps["read"])) if place is None else [place.shard]
    entries = [snapshot.steps["read"][shard] for shard in shards]
    bring(root, [file_of(entry, "documents") for entry in entries])
    replace_view(db, "documents", documents_select(root, snapshot.steps["read"], shards, f"doc_id = unhex({literal(doc)})"))


def replace_view(db: Connection, view: str, query: str) -> None:
    """Put a view in the place of the catalogue's, for this connection."""
    db.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {query}")


def _files(snapshot: Snapshot, place: Place | None) -> dict[str, list[str]]:
    """Files that may tell of a document, by table."""
    labels = [entry.label for entry in snapshot.steps["read"]]
    found: dict[str, list[str]] = {}
    for step, entries in snapshot.steps.items():
        mine = {entry.key for entry in entries}
        if place is not None and [entry.label for entry in entries] == labels:
            mine = {entries[place.shard].key}
        elif place is not None and step == "pack":
            mine = set() if place.packed is None else {place.packed.key}
        for entry in entries:
            for table, file in entry.files.items():
                found.setdefault(table, []).extend([file.path] if entry.key in mine else [])
    return found


def _steps(root: Path, snapshot: Snapshot, place: Place) -> Mapping[str, Ints]:
    """Steps of each run at which a document's rows stand; runs that have lots of another snapshot are left out: any of their steps may."""
    shard_rows: dict[str, list[int]] = {}
    for entry in snapshot.steps.get("pack", ()):
        if "shards" in entry.files:
            shard_rows.setdefault(entry.label.rpartition("/")[0], []).append(entry.files["shards"].rows)
    found: dict[str, Ints] = {}
    for path in sorted(root.glob("runs/*/segments.json")):
        segments = read_segments(path)
        if all(a.lot in shard_rows for segment in segments for a in allotments(segment)):
            known = place.lot in shard_rows
            rows = np.array(place.rows if known else (), dtype=np.int64)
            found[path.parent.name] = steps_of_rows(segments, str(place.lot), shard_rows.get(str(place.lot), [1]), rows)
    return found


def parts(root: Path, table: str, steps: Mapping[str, Ints | range] | None) -> list[str]:
    """Files of a run table that may hold some steps, ascending, by run; all files of the runs that are not named."""
    return [str(path) for path in _parts(root, table, steps or {})]


def _parts(root: Path, table: str, steps: Mapping[str, Ints | range]) -> Iterator[Path]:
    for path in sorted(root.glob(f"runs/*/*/{RUN_TABLES[table]}/[!.]*.parquet")):
        wanted, part = steps.get(path.parents[2].name), _PART.fullmatch(path.name)
        if wanted is None or part is None or bisect_left(wanted, int(part[1])) < bisect_left(wanted, int(part[2])):
            yield path
