"""Runs one read-only query and prints its rows as a table, CSV or JSON."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

import duckdb
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.catalog import Connection, open_catalog
from pipelines.tables import PLAIN_WIDTH, console
from schemas.errors import GristmillError

Format = Literal["table", "csv", "json"]
_EXPLAIN = re.compile(r"\s*explain\b\s*(analyze\b|\([^)]*\))?", re.IGNORECASE)
SHOWN_ROWS = 200


class QueryError(GristmillError):
    """A query that cannot be run, or that would change something."""


def run_query(root: Path, query: str, form: Format, out: TextIO = sys.stdout) -> None:
    """Run a query over a lake and print what it returns.

    Args:
        root: the lake.
        query: one statement that reads.
        form: table (the first 200 rows, for people), csv, or json (an array of objects).
        out: where to print.

    Raises:
        QueryError: not SQL, not one statement, or one that does not read.
    """
    with open_catalog(root) as db:
        cursor = execute(db, query)
        names = [column[0] for column in cursor.description or ()]
        if form == "csv":
            csv.writer(out, lineterminator="\n").writerow(names)
            csv.writer(out, lineterminator="\n").writerows([plain(value) for value in row] for row in rows_of(cursor))
        elif form == "json":
            write_json(names, rows_of(cursor), out)
        else:
            print_rows(names, cursor.fetchmany(SHOWN_ROWS + 1), console() if out is sys.stdout else Console(file=out, width=PLAIN_WIDTH))


def execute(db: Connection, query: str) -> Connection:
    """Execute one statement that reads.

    Raises:
        QueryError: see ``run_query``.
    """
    try:
        statements = db.extract_statements(query)
        if len(statements) != 1:
            raise QueryError(f"{len(statements)} statements", where="sql", fix="give one query")
        if (kind := _kind(db, statements[0])) != "SELECT":
            raise QueryError(f"{kind} is not a query", where="sql", fix="the lake is open for reading only: SELECT, EXPLAIN")
        return db.execute(statements[0])
    except duckdb.Error as error:
        raise QueryError(str(error), where="sql") from error


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


def write_json(names: Sequence[str], rows: Iterator[tuple[Any, ...]], out: TextIO) -> None:
    """Write rows as a JSON array of objects, one a line."""
    before = "[\n"
    for row in rows:
        out.write(before + json.dumps(dict(zip(names, row, strict=True)), default=_json, ensure_ascii=False))
        before = ",\n"
    out.write("[]\n" if before == "[\n" else "\n]\n")


def print_rows(names: Sequence[str], rows: Sequence[tuple[Any, ...]], target: Console) -> None:
    """Print a table for people; long values are cut, and a note says when there are more rows."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, name in enumerate(names):
        numeric = any(isinstance(row[position], int | float) for row in rows[:50])
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows[:SHOWN_ROWS]:
        table.add_row(*(Text(shown(value)) for value in row))
    target.print(table)
    if len(rows) > SHOWN_ROWS:
        target.print(f"the first {SHOWN_ROWS} rows; --format csv or json gives all")


def shown(value: Any) -> str:
    """A cell of a table for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    text = str(plain(value))
    return text if len(text) <= 200 else text[:199] + "…"


def _json(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
