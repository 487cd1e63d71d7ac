"""Runs one read-only query and writes its rows as a table, CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

import duckdb
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.catalog import Connection, bring_named, open_catalog
from pipelines.progress import asking
from pipelines.tables import PLAIN_WIDTH, console, printable
from schemas.errors import GristmillError

Format = Literal["table", "csv", "json"]
_EXPLAIN = re.compile(r"\s*explain\b\s*(analyze\b|\([^)]*\))?", re.IGNORECASE)
SHOWN_ROWS = 200


class QueryError(GristmillError):
    """A query that cannot be run, or that would change something."""


def query_text(query: str | None, file: Path | None) -> str:
    """The query given as text or in a file; with neither, standard input.

    Raises:
        QueryError: both, or a file that cannot be read.
    """
    if file is None:
        return sys.stdin.read() if query is None else query
    if query is not None:
        raise QueryError("a query and a file with one", where="sql", fix="give one of them")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QueryError(f"cannot read the query: {error}", where=str(file)) from error


def run_query(root: Path, query: str, form: Format, out: TextIO | None = None) -> None:
    """Run a query over a lake and print what it returns.

    Args:
        root: the lake.
        query: one statement that reads.
        form: table (the first 200 rows, for people), csv, or json (an array of objects).
        out: where to print, in place of standard output.

    Raises:
        QueryError: not SQL, not one statement, or one that does not read.
    """
    with open_catalog(root) as db:
        with asking(db, silent=form != "table"):
            cursor = execute(db, query)
        if form == "table":
            print_result(cursor, console() if out is None else Console(file=out, width=PLAIN_WIDTH))
        else:
            WRITERS[form](_names(cursor), rows_of(cursor), out or sys.stdout)


def save_query(root: Path, query: str, target: Path) -> int:
    """Run a query over a lake and write what it returns to a file: .csv, .json or .parquet, told by its name; returns the rows.

    The file appears whole or not at all, and replaces one that is there.

    Raises:
        QueryError: another ending, or see ``run_query``.
    """
    form = target.suffix.removeprefix(".")
    if form != "parquet" and form not in WRITERS:
        raise QueryError(f"cannot tell the format of {target.name!r}", where="--out", fix="end it in .csv, .json or .parquet")
    written = target.with_name(f".{target.name}.partial")
    try:
        with open_catalog(root) as db, asking(db):
            count = _write_parquet(db, query, written) if form == "parquet" else _write_text(db, query, WRITERS[form], written)
        written.replace(target)
    except OSError as error:
        raise QueryError(f"cannot write: {error}", where=str(target)) from error
    finally:
        written.unlink(missing_ok=True)
    return count


def _write_text(db: Connection, query: str, write: Callable[[Sequence[str], Iterable[tuple[Any, ...]], TextIO], int], target: Path) -> int:
    cursor = execute(db, query)
    with target.open("w", encoding="utf-8") as out:
        return write(_names(cursor), rows_of(cursor), out)


def _write_parquet(db: Connection, query: str, target: Path) -> int:
    import pyarrow.parquet as pq

    try:
        batches: Any = db.from_query(reading(db, query).query).to_arrow_reader(1 << 16)
        with pq.ParquetWriter(target, batches.schema, compression="zstd") as writer:
            count = 0
            for batch in batches:
                writer.write_batch(batch)
                count += batch.num_rows
        return count
    except duckdb.Error as error:
        raise QueryError(str(error), where="sql") from error


def execute(db: Connection, query: str) -> Connection:
    """Execute one statement that reads.

    Raises:
        QueryError: see ``run_query``.
    """
    statement = reading(db, query)
    try:
        return db.execute(statement)
    except duckdb.Error as error:
        raise QueryError(str(error), where="sql") from error


def reading(db: Connection, query: str) -> duckdb.Statement:
    """The one statement of a query, which reads.

    Raises:
        QueryError: see ``run_query``.
    """
    try:
        statements = db.extract_statements(query)
        kinds = [_kind(db, statement) for statement in statements]
    except duckdb.Error as error:
        raise QueryError(str(error), where="sql") from error
    if len(statements) != 1:
        raise QueryError(f"{len(statements)} statements", where="sql", fix="give one query")
    if kinds != ["SELECT"]:
        raise QueryError(f"{kinds[0]} is not a query", where="sql", fix="the lake is open for reading only: SELECT, EXPLAIN")
    bring_named(db, _EXPLAIN.sub("", query, count=1))
    return statements[0]


def _kind(db: Connection, statement: duckdb.Statement) -> str:
    """The type of a statement; of EXPLAIN the type of what it explains, since EXPLAIN ANALYZE runs that (COPY would write)."""
    if statement.type != duckdb.StatementType.EXPLAIN:
        return statement.type.name
    explained = db.extract_statements(_EXPLAIN.sub("", statement.query, count=1))
    return explained[0].type.name if len(explained) == 1 else "EXPLAIN"


def rows_of(cursor: Connection) -> Iterator[tuple[Any, ...]]:
    """Rows of a result, a thousand at a time."""
    try:
        while rows := cursor.fetchmany(1000):
            yield from rows
    except duckdb.Error as error:
        raise QueryError(str(error), where="sql") from error


def plain(value: Any) -> Any:
    """A value as CSV and tables show it: bytes as hex, nested values as JSON."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, default=_json, ensure_ascii=False)
    return value


def _names(cursor: Connection) -> list[str]:
    return [column[0] for column in cursor.description or ()]


def write_csv(names: Sequence[str], rows: Iterable[tuple[Any, ...]], out: TextIO) -> int:
    """Write rows as CSV with a line of names; returns how many."""
    writer, count = csv.writer(out, lineterminator="\n"), 0
    writer.writerow(names)
    for row in rows:
        writer.writerow([plain(value) for value in row])
        count += 1
    return count


def write_json(names: Sequence[str], rows: Iterable[tuple[Any, ...]], out: TextIO) -> int:
    """Write rows as a JSON array of objects, one a line; returns how many."""
    count = 0
    for count, row in enumerate(rows, 1):
        before = "[\n" if count == 1 else ",\n"
        out.write(before + json.dumps(dict(zip(names, row, strict=True)), default=_json, ensure_ascii=False))
    out.write("\n]\n" if count else "[]\n")
    return count


WRITERS = {"csv": write_csv, "json": write_json}


def print_result(cursor: Connection, target: Console) -> None:
    """Print a table for people; long values are cut, and a note says when there are more rows."""
    rows = cursor.fetchmany(SHOWN_ROWS + 1)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, name in enumerate(_names(cursor)):
        numeric = any(isinstance(row[position], int | float) for row in rows[:50])
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows[:SHOWN_ROWS]:
        table.add_row(*(Text(shown(value)) for value in row))
    target.print(table)
    if len(rows) > SHOWN_ROWS:
        target.print(f"the first {SHOWN_ROWS} rows; --format csv or json, or --out FILE, gives all")


def shown(value: Any) -> str:
    """A cell of a table for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    text = printable(str(plain(value)))
    return text if len(text) <= 200 else text[:199] + "…"


def _json(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
