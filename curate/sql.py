"""DuckDB inside curation: ids and numbers only, never text, within a memory limit, without access to anything else."""

from __future__ import annotations

import atexit
import contextlib
import glob
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import duckdb

from curate.corpus import ROW_BITS

SHARED_BYTES = 2 << 30
"""Memory of the database that queries over single shards share."""


@lru_cache(maxsize=4)
def _kept(memory_bytes: int) -> duckdb.DuckDBPyConnection:
    """A database of the process, whose spill folder goes with the process: opening one takes longer than most queries."""
    spill = tempfile.mkdtemp(prefix="gristmill-")
    atexit.register(shutil.rmtree, spill, ignore_errors=True)
    db = duckdb.connect(":memory:")
    db.execute(f"SET memory_limit = '{memory_bytes // 1_000_000}MB'; SET threads = 1; SET temp_directory = '{spill}'")
    db.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    # A purge puts other bytes under a name that was read before.
    db.execute("SET enable_external_file_cache = false")
    return db


@contextlib.contextmanager
def connect(memory_bytes: int = SHARED_BYTES) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection without tables, of one thread, that spills to a temporary folder; make only temporary views in it.

    Args:
        memory_bytes: memory of all connections that ask for as much; by default of those that query single shards.
    """
    with _kept(memory_bytes).cursor() as db:
        yield db


def scan(db: duckdb.DuckDBPyConnection, view: str, root: Path, files: Sequence[tuple[int, str]], columns: Sequence[str] = ("*",)) -> None:
    """Make a view over Parquet files of documents shards, with each row's ``locator``.

    Args:
        db: the connection.
        view: name of the view.
        root: the lake.
        files: (shard number, path in the lake) of each file; file row r has locator ``shard << 32 | r``.
        columns: columns to take.
    """
    db.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {located(root, files, columns)}")


def located(root: Path, files: Sequence[tuple[int, str]], columns: Sequence[str]) -> str:
    """The query behind ``scan``."""
    named = ", ".join(columns)
    places = ", ".join(f"({shard}, {literal(str(root / path))})" for shard, path in files)
    return (
        f"SELECT {named}, (shard::UBIGINT << {ROW_BITS} | file_row_number::UBIGINT) AS locator"
        f" FROM {parquet([str(root / path) for _, path in files], filename=True, file_row_number=True)}"
        f" JOIN (VALUES {places}) AS shards (shard, filename) USING (filename)"
    )


def parquet(files: Sequence[str], *, more: str = "", **options: bool) -> str:
    """A call that reads Parquet files as they are: names of folders such as ``kind=a`` and ``run [1]`` tell DuckDB nothing.

    Args:
        files: their paths.
        more: a glob that goes on from each of them.
        options: options of DuckDB's ``read_parquet``.
    """
    names = ", ".join(literal(glob.escape(file) + more) for file in files)
    chosen = "".join(f", {name} = {str(value).lower()}" for name, value in options.items())
    return f"read_parquet([{names}], hive_partitioning = false{chosen})"


def present(paths: Sequence[str | None]) -> list[tuple[int, str]]:
    """Number and path of each shard that has a file, as ``scan`` takes them."""
    return [(shard, path) for shard, path in enumerate(paths) if path is not None]


def literal(text: str) -> str:
    """An SQL string literal."""
    return "'" + text.replace("'", "''") + "'"
