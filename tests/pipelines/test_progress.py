"""Bars of long commands: on a terminal alone, with rate and time left, and never where JSON is asked for."""

from __future__ import annotations

import json
import time
from pathlib import Path

import duckdb
import pytest

from pipelines import progress
from pipelines.catalog import follow
from pipelines.cli import run_command
from pipelines.progress import asking, counted


def classify(folder: Path) -> list[str]:
    for name, word in (("good", "clear"), ("bad", "spam")):
        rows = [json.dumps({"text": f"{word} text number {n} " * 5}) for n in range(60)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    return ["classify", "train", *(str(folder / f"{name}.jsonl") for name in ("good", "bad")), "-o", str(folder / "m.safetensors")]


def test_a_bar_has_title_counts_rate_and_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "200")
    with counted("count", "things") as tell:
        for done in (5, 10, 15, 20):
            tell(done, 40)
            time.sleep(0.01)
    shown = capsys.readouterr()
    assert shown.out == "" and all(word in shown.err for word in ("count", "20/40", "things", "/s", "left"))


@pytest.mark.parametrize("command", ["report", "classify", "sql", "diff"])
def test_a_long_command_is_silent_but_for_its_answer(
    lake: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--lake", str(lake)]
    words = {
        "report": ["report", "-o", str(tmp_path / "r.html"), *place],
        "classify": classify(tmp_path),
        "sql": ["sql", "SELECT 1 AS one", *place],
        "diff": ["diff", "@current", *place],
    }[command]
    assert run_command(words) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "MOMENT_SECONDS", 0.0)
    json_too = [] if command == "report" else ["--json"]
    assert run_command([*words, *json_too]) == 0
    shown = capsys.readouterr()
    if command == "report":
        assert "sections" in shown.err and shown.out == f"{tmp_path / 'r.html'}\n"
    else:
        json.loads(shown.out)
    if command == "classify":
        assert shown.err == ""
        assert run_command(words) == 0 and "texts" in capsys.readouterr().err


def test_a_query_that_takes_long_is_followed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "MOMENT_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.01)
    with duckdb.connect() as db:
        follow(db)
        with asking(db):
            while "%" not in capsys.readouterr().err:
                db.execute("SELECT count(DISTINCT hash(i)) FROM range(200000) AS t (i)").fetchall()
