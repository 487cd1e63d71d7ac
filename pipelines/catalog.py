"""The catalogue: ``catalog.duckdb`` in a lake, with a view of every table, small summaries, and macros for the usual questions.

Failure model. The file holds no truth: it is built from manifests and Parquet, under a temporary name, and renamed, so readers see the old
one or the new one. It is built anew by whoever opens it after the lake was moved or has other content; for a lake that this user may only
read, in the user's cache. Views hold absolute paths, so that any DuckDB client opens it from any folder; views of run tables are globs, so
that they show a training run as it goes.
"""

from __future__ import annotations

import glob
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from curate.sql import literal, located, parquet
from curate.tombstones import PATH as FORGOTTEN_PATH
from pipelines.macros import MACROS, SUMMARIES
from pipelines.segment_tables import create_segment_tables
from schemas.errors import LakeError
from schemas.manifest import Entry, Snapshot, fingerprint, read_snapshot
from schemas.settings import read_outcome
from schemas.store import bring, publish, using
from schemas.tables import DOC_ID, TABLES
from schemas.working_copy import cache_folder, copy_of

CATALOG = "catalog.duckdb"
CATALOG_VERSION = 2
STORAGE_VERSION = "v1.0.0"
"""Storage that DuckDB clients from 1.0 on open; the newest library writes a newer one by default."""

RUN_TABLES = {"ledger": "ledger", "losses": "losses", "metrics": "metrics", "events": "events"}
"""Tables written by stages, and the folder of each under ``runs/<run>/<position>-<stage>/``."""

LAKE_FILES = {"forgotten": FORGOTTEN_PATH, "ablations": "ablation/results.parquet"}
"""Tables of one file that belong to the lake rather than to a snapshot."""

Connection = duckdb.DuckDBPyConnection


LARGE = ("documents", "rows", "tokens")
"""Tables as large as the text or the tokens: of a lake in an object store they are brought only for who names them."""

REFRESH_SECONDS = 10.0
"""A page that is served live looks so often for what other machines have published to an object store."""


@contextmanager
def open_catalog(root: Path, *large: str) -> Iterator[Connection]:
    """Open the lake's catalogue read-only and locked down, after building it where it is absent or out of date.

    The connection reads files of the lake only, cannot write any, loads no extension, and its configuration cannot be changed.

    Args:
        root: the lake.
        large: those of ``LARGE`` that will be asked for.

    Raises:
        LakeError: there is no lake.
    """
    if not root.is_dir():
        raise LakeError("no such lake", where=str(root), fix="make one with `gristmill run RECIPE`, or name another with --lake")
    if copy := copy_of(root):
        copy.refresh(REFRESH_SECONDS)
    with using(root):
        bring_tables(root, large)
        if not is_current(root):
            build_catalog(root)
        with _opened(root, current_catalog(root) or root / CATALOG) as db:
            yield db


def bring_tables(root: Path, large: Iterable[str]) -> None:
    """Have the files of all tables here, of the ``LARGE`` ones the first (whose columns a view looks up) but where they are named."""
    if copy_of(root) is None or not (root / "snapshots/current.json").is_file():
        return
    snapshot = read_snapshot(root)
    for table in TABLES:
        files = snapshot.files(table)
        bring(root, [file.path for file in (files[:1] if table in LARGE and table not in large else files)])


def bring_named(db: Connection, query: str) -> None:
    """Have the files of the large tables here that a query over an open catalogue names."""
    root = db.cursor().execute("SELECT lake FROM catalog_info").fetchone()  # a cursor's, since a result not read to its end blocks others
    if root is not None and copy_of(Path(root[0])) is not None:
        tree = str(db.cursor().execute("SELECT json_serialize_sql(?)", [query]).fetchone()).lower()
        bring_tables(Path(root[0]), [table for table in LARGE if f'"table_name":"{table}"' in tree])


@contextmanager
def _opened(root: Path, path: Path) -> Iterator[Connection]:
    with tempfile.TemporaryDirectory(prefix="gristmill-sql-") as spill, duckdb.connect(str(path), read_only=True) as db:
        lock_down(db, root, Path(spill))
        yield db


def lock_down(db: Connection, root: Path, spill: Path) -> None:
    """Limit a connection to reading the lake, for good (connections of one process to one file share their configuration)."""
    if db.execute("SELECT current_setting('lock_configuration')").fetchone() == (True,):
        return
    db.execute(f"SET temp_directory = {literal(str(spill))}")
    db.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    # A name with the characters of a glob is written otherwise in what reads Parquet.
    allowed = dict.fromkeys((f"{root}/", glob.escape(f"{root}/")))
    db.execute(f"SET allowed_directories = [{', '.join(map(literal, allowed))}]")
    db.execute("SET enable_external_access = false")
    follow(db)
    db.execute("SET lock_configuration = true")


def follow(db: Connection) -> None:
    """Have a connection tell how much of a query is done, and print nothing about it."""
    db.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")


def is_current(root: Path) -> bool:
    """Whether there is a catalogue that describes the lake as it is and where it is."""
    return current_catalog(root) is not None


def current_catalog(root: Path) -> Path | None:
    """The catalogue that describes the lake as it is and where it is: its own, or the one kept for a lake that may only be read."""
    return next((path for path in (root / CATALOG, _outside(root)) if _describes(path, root)), None)


def _outside(root: Path) -> Path:
    """Place of the catalogue of a lake that this user may only read."""
    return cache_folder() / "catalogs" / f"{root.name}-{hashlib.blake2b(str(root).encode(), digest_size=8).hexdigest()}.duckdb"


def _describes(path: Path, root: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with duckdb.connect(str(path), read_only=True) as db:
            row = db.execute("SELECT state FROM catalog_info").fetchone()
    except duckdb.Error:
        return False
    return row is not None and row[0] == lake_state(root)


def lake_state(root: Path) -> str:
    """Fingerprint of everything that the catalogue's text depends on."""
    marked = [
        root / "snapshots/current.json",
        *(root / path for path in LAKE_FILES.values()),
        *sorted(root.glob("runs/*/segments.json")),
        *sorted(root.glob("runs/*/*/outcome.json")),
    ]
    files = [(str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns) for path in marked if path.is_file()]
    present = [str(path.relative_to(root)) for path in sorted(root.glob("runs/*/*/*")) if path.name in RUN_TABLES and any(path.iterdir())]
    schemas = {table: [f"{field.name} {field.type}" for field in schema] for table, schema in TABLES.items()}
    return fingerprint(CATALOG_VERSION, schemas, MACROS, SUMMARIES, str(root), files, present)


def build_catalog(root: Path) -> None:
    """Write the catalogue of the lake's current snapshot and runs."""
    state = lake_state(root)
    has_snapshot = (root / "snapshots/current.json").is_file()
    snapshot = read_snapshot(root) if has_snapshot else Snapshot("", {})

    def write(path: Path) -> None:
        try:
            with duckdb.connect(":memory:") as db:
                db.execute(f"ATTACH {literal(str(path))} AS catalog (STORAGE_VERSION '{STORAGE_VERSION}')")
                db.execute("USE catalog")
                fill(db, root, snapshot, state)
                db.execute("USE memory; DETACH catalog")
        finally:
            path.with_name(f"{path.name}.wal").unlink(missing_ok=True)  # stays where the disk was too full for the whole

    place = root / CATALOG if os.access(root, os.W_OK) else _outside(root)
    try:
        publish(place.parent, place.name, write)
        _share(root)
    except duckdb.Error as error:
        raise LakeError(
            f"the catalogue cannot be built: {str(error).partition(chr(10) + chr(10))[0]}",
            where=str(place),
            fix="free space if the disk is full; a table that is missing or cut short is rebuilt by `gristmill curate RECIPE`",
        ) from error


def _share(root: Path) -> None:
    """Put the catalogue's tables beside a lake in an object store: views could not reach its files from any client."""
    copy = copy_of(root)
    if copy is None:
        return
    with tempfile.TemporaryDirectory(prefix="gristmill-catalog-") as folder, duckdb.connect(":memory:") as db:
        path = Path(folder) / CATALOG
        db.execute(f"ATTACH {literal(str(root / CATALOG))} AS whole (READ_ONLY)")
        db.execute(f"ATTACH {literal(str(path))} AS shared (STORAGE_VERSION '{STORAGE_VERSION}')")
        for (name,) in db.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'whole' ORDER BY ALL").fetchall():
            db.execute(f'CREATE TABLE shared."{name}" AS FROM whole."{name}"')
        db.execute("UPDATE shared.catalog_info SET lake = ?", [copy.address])
        db.execute("DETACH shared")
        with suppress(LakeError):  # a reader may have no right to write there
            copy.share(CATALOG, path)


def fill(db: Connection, root: Path, snapshot: Snapshot, state: str) -> None:
    """Create all views, summaries and macros in the connection's current database."""
    _create_info(db, root, snapshot, state)
    _create_runs(db, root)
    for table in sorted(TABLES, key=lambda name: name != "events"):  # views of run tables look at events
        if table == "plans":
            files = [str(path) for path in sorted(root.glob("runs/*/*/plan.parquet"))]
            db.execute(f"CREATE VIEW plans AS {table_select('plans', files)}")
        elif table in LAKE_FILES:
            files = [str(root / LAKE_FILES[table])] if (root / LAKE_FILES[table]).is_file() else []
            db.execute(f"CREATE VIEW {table} AS {table_select(table, files)}")
        elif table in RUN_TABLES:
            db.execute(f"CREATE VIEW {table} AS {run_select(root, table)}")
        else:
            db.execute(f"CREATE VIEW {table} AS {snapshot_select(root, snapshot, table)}")
    for statement in (*MACROS, *SUMMARIES):
        db.execute(statement)


def snapshot_select(root: Path, snapshot: Snapshot, table: str) -> str:
    """A query for all rows of a table of a snapshot; documents carry their locator."""
    if table == "documents":
        entries = snapshot.steps.get("read", ())
        return documents_select(root, entries, range(len(entries)))
    return table_select(table, [str(root / file.path) for file in snapshot.files(table)])


def _create_info(db: Connection, root: Path, snapshot: Snapshot, state: str) -> None:
    db.execute("CREATE TABLE catalog_info (lake VARCHAR, snapshot VARCHAR, recipe VARCHAR, state VARCHAR)")
    db.execute("INSERT INTO catalog_info VALUES (?, ?, ?, ?)", [str(root), snapshot.id if snapshot.steps else "", snapshot.recipe, state])


def _create_runs(db: Connection, root: Path) -> None:
    """Tables ``stages`` (how each stage ended) and those of each run's order."""
    db.execute(
        "CREATE TABLE stages (run VARCHAR, position INTEGER, stage VARCHAR, reason VARCHAR, detail VARCHAR, next_row BIGINT,"
        " next_step BIGINT, first_loss DOUBLE, last_loss DOUBLE, heldout MAP(VARCHAR, DOUBLE), returned_rows BIGINT)"
    )
    for folder in sorted(root.glob("runs/*/*-*")):
        end = read_outcome(folder)
        if end is None:
            continue
        position, _, stage = folder.name.partition("-")
        returned = sum(stop - start for _, start, stop in end.returned)
        row = [folder.parent.name, int(position), stage, end.reason, end.detail, end.next_row, end.next_step]
        db.execute(
            "INSERT INTO stages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", [*row, end.first_loss, end.last_loss, end.heldout, returned]
        )
    create_segment_tables(db, root)


def documents_select(root: Path, entries: Sequence[Entry], shards: Sequence[int], where: str = "true") -> str:
    """A query for the documents of some shards that meet a condition, with their locators."""
    files = [(shard, entries[shard].files["documents"].path) for shard in shards if "documents" in entries[shard].files]
    if not files:
        return f"SELECT *, NULL::UBIGINT AS locator FROM ({table_select('documents', [])})"
    return f"SELECT {_columns('documents')}, locator FROM ({located(root, files, ['*'])}) WHERE {where}"


def table_select(table: str, files: Sequence[str], where: str = "true") -> str:
    """A query for the rows of a table's files that meet a condition on its columns as they are stored."""
    if not files:
        empty = ", ".join(f'NULL::{sql_type(field.type)} AS "{field.name}"' for field in TABLES[table])
        return f"SELECT {empty} WHERE false"
    return f"SELECT {_columns(table)} FROM {parquet(files)} WHERE {where}"


def run_select(root: Path, table: str, files: Sequence[str] | None = None, where: str = "true") -> str:
    """A run table with run, position and stage from the path, and whether a later attempt made the row void.

    Args:
        root: the lake.
        table: its name.
        files: files to read; None is those of all stages, whenever the query runs.
        where: condition on the columns as they are stored.
    """
    folder = RUN_TABLES[table]
    there = any(root.glob(f"runs/*/*/{folder}/[!.]*.parquet")) if files is None else files
    if not there:
        plain = f"SELECT NULL::VARCHAR AS run, NULL::INTEGER AS position, NULL::VARCHAR AS stage, * FROM ({table_select(table, [])})"
    else:
        every = f"/runs/*/*/{folder}/[!.]*.parquet" if files is None else ""
        source = parquet([str(root)] if files is None else files, more=every, filename=True, union_by_name=True)
        place = f"/runs/([^/]+)/([0-9]+)-([^/]+)/{folder}/"
        plain = (
            f"SELECT regexp_extract(filename, '{place}', 1) AS run, regexp_extract(filename, '{place}', 2)::INTEGER AS position,"
            f" regexp_extract(filename, '{place}', 3) AS stage, {_columns(table)}"
            f" FROM {source} WHERE {where}"
        )
    if table == "events":
        return plain
    # A step is redone by every later attempt, of this stage or the next, that begins at or before it: only the last one counts.
    return (
        f"WITH rows AS ({plain}), starts AS (SELECT run, attempt, min(step) AS first FROM events"
        " WHERE kind IN ('started', 'resumed', 'rewound') GROUP BY ALL)"
        " SELECT rows.*, CASE WHEN EXISTS (SELECT 1 FROM starts WHERE starts.run = rows.run AND starts.attempt > rows.attempt"
        " AND starts.first <= rows.step) THEN 'void' ELSE 'seen' END AS status FROM rows"
    )


def _columns(table: str) -> str:
    """Columns of a table, ids as hex."""
    return ", ".join(
        f'lower(hex("{field.name}")) AS "{field.name}"' if field.type == DOC_ID else f'"{field.name}"' for field in TABLES[table]
    )


def sql_type(kind: pa.DataType) -> str:
    """DuckDB's name of an Arrow type as the catalogue shows it."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{sql_type(kind.value_type)}[]"
    if pa.types.is_struct(kind):
        fields = [kind.field(position) for position in range(kind.num_fields)]
        return "STRUCT(" + ", ".join(f'"{field.name}" {sql_type(field.type)}' for field in fields) + ")"
    names = {
        DOC_ID: "VARCHAR",
        pa.string(): "VARCHAR",
        pa.large_string(): "VARCHAR",
        pa.int64(): "BIGINT",
        pa.int32(): "INTEGER",
        pa.uint64(): "UBIGINT",
        pa.uint32(): "UINTEGER",
        pa.float64(): "DOUBLE",
        pa.bool_(): "BOOLEAN",
    }
    return names[kind]


def ask(db: Connection, query: str, *values: object) -> list[dict[str, Any]]:
    """Rows of a query as mappings from column name to value."""
    cursor = db.execute(query, list(values))
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
