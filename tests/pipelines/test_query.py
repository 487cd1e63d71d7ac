from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipelines.cli import run_command
from pipelines.query import QueryError, run_query, save_query


def run(lake: Path, query: str, form: str) -> str:
    out = io.StringIO()
    run_query(lake, query, form, out)  # type: ignore[arg-type]
    return out.getvalue()


def test_rows_go_to_whatever_standard_output_is(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["sql", "SELECT 1 AS one", "--json", "--lake", str(lake)]) == 0
    assert json.loads(capsys.readouterr().out) == [{"one": 1}]


def test_csv_and_json_hold_every_row(lake: Path) -> None:
    query = "SELECT record, text, failures FROM documents JOIN verdicts USING (doc_id) ORDER BY record"
    rows = list(csv.DictReader(io.StringIO(run(lake, query, "csv"))))
    assert [row["record"] for row in rows] == list("01234")
    assert json.loads(rows[1]["failures"]) == [{"rule": "too_dull", "value": 0.9, "threshold": 0.5}]
    values = json.loads(run(lake, query, "json"))
    assert values[3] == {"record": 3, "text": "a fourth text, kept", "failures": []}
    assert json.loads(run(lake, query.replace("ORDER BY", "WHERE false ORDER BY"), "json")) == []


def test_a_table_shows_markup_in_documents_as_text(lake: Path) -> None:
    assert "[red]x[/red]" in run(lake, "SELECT '[red]x[/red]' AS v", "table")


def test_a_table_says_when_rows_were_left_out(lake: Path) -> None:
    assert "first 200 rows" in run(lake, "SELECT * FROM range(201)", "table")
    assert "first 200 rows" not in run(lake, "SELECT * FROM range(200)", "table")


@pytest.mark.parametrize(
    "query",
    ["DROP VIEW documents", "COPY (SELECT 1) TO '{lake}/x.csv'", "SELECT 1; SELECT 2", "", "CREATE TABLE t (a INT)", "SET threads = 1"]
    + [f"{how} COPY (SELECT 1) TO '{{lake}}/x.csv'" for how in ("EXPLAIN", "explain analyze", "/**/ EXPLAIN (ANALYZE, FORMAT json)")],
)
def test_only_one_reading_statement_is_run(lake: Path, query: str) -> None:
    with pytest.raises(QueryError):
        run(lake, query.format(lake=lake), "json")
    assert not (lake / "x.csv").exists()


def test_a_wrong_name_suggests_the_nearest(lake: Path) -> None:
    with pytest.raises(QueryError, match="documents"):
        run(lake, "SELECT * FROM document", "json")


@pytest.mark.parametrize(
    "query",
    ["DESCRIBE documents", "SHOW TABLES", "EXPLAIN SELECT 1", "explain analyze FROM verdicts", "FROM funnel()", "SUMMARIZE verdicts"],
)
def test_asking_about_the_lake_is_reading(lake: Path, query: str) -> None:
    assert json.loads(run(lake, query, "json"))


@pytest.mark.parametrize("name", ["found.csv", "found.json", "found.parquet"])
def test_a_file_holds_every_row_and_replaces_the_one_before(lake: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    target.write_text("before")
    assert save_query(lake, "SELECT record, reason FROM documents JOIN verdicts USING (doc_id) ORDER BY record", target) == 5
    rows = {
        ".csv": lambda: list(csv.DictReader(target.open())),
        ".json": lambda: json.loads(target.read_text()),
        ".parquet": lambda: pq.read_table(target).to_pylist(),
    }[target.suffix]()
    assert [int(row["record"]) for row in rows] == [0, 1, 2, 3, 4] and rows[1]["reason"] == "too_dull"
    with pytest.raises(QueryError):
        save_query(lake, "SELECT error(text) FROM documents", target)
    assert {path.name for path in tmp_path.iterdir()} == {name, lake.name}


def test_the_prompt_goes_on_after_a_mistake(lake: Path) -> None:
    """At a real terminal: two lines make a statement, a wrong one is told, Ctrl-D leaves."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "pipelines.cli", "sql", "--lake", str(lake)]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    for typed in (b"FROM nowhere;\n", b"SELECT count(*) * 11 AS found\n", b"FROM documents;\n", b"\x04"):
        while not shown.endswith((b"lake> ", b"...> ")):
            shown += os.read(leader, 1)
        shown += b"\n"
        os.write(leader, typed)
    with suppress(OSError):  # the terminal is gone with the process
        while piece := os.read(leader, 4096):
            shown += piece
    os.close(leader)
    assert process.wait(600) == 0
    assert b"nowhere" in shown and b"55" in shown
