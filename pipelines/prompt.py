"""An interactive SQL prompt over a lake, read-only: a statement ends with a semicolon, Tab completes names, Ctrl-D leaves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from pipelines.catalog import Connection, open_catalog
from pipelines.query import QueryError, execute, print_result
from pipelines.tables import console

NAMES = """
SELECT table_name FROM information_schema.tables UNION SELECT column_name FROM information_schema.columns
UNION SELECT function_name || '(' FROM duckdb_functions() WHERE NOT internal ORDER BY ALL
"""


def prompt(root: Path) -> None:
    """Read statements and print what they return until the input ends; a wrong one is told and forgotten."""
    with open_catalog(root) as db:
        _complete(db)
        print("SQL over the lake, read-only. End a statement with a semicolon; SHOW TABLES; lists tables, Ctrl-D leaves.")
        for statement in _statements():
            try:
                print_result(execute(db, statement), console())
            except QueryError as error:
                print(error.what, file=sys.stderr)
            except KeyboardInterrupt:
                db.interrupt()
                print("interrupted", file=sys.stderr)


def _statements() -> Iterator[str]:
    lines: list[str] = []
    while True:
        try:
            line = input("   ...> " if lines else "lake> ")
        except KeyboardInterrupt:
            lines = []
            print()
            continue
        except EOFError:
            print()
            return
        if line.strip() or lines:
            lines.append(line)
        if line.rstrip().endswith(";"):
            yield "\n".join(lines)
            lines = []


def _complete(db: Connection) -> None:
    try:
        import readline
    except ImportError:  # built without it: the prompt works, without history and completion
        return
    names = [row[0] for row in db.execute(NAMES).fetchall()]

    def complete(beginning: str, state: int) -> str | None:
        found = [name for name in names if name.startswith(beginning)]
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()=<>;")
    readline.parse_and_bind("tab: complete")
