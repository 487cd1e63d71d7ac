"""Everything from two JSONL files to a trained model by the command line, with the real trainer, then every way to ask about it."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard

from pipelines.cli import COMMANDS, run_command
from tests.pipelines.tiny import write_project
from tests.train.hold import HOLD, hold_file

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}


def gristmill(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]
    return subprocess.run(command, cwd="/", env=ENVIRONMENT, capture_output=True, text=True, check=check)


def ask(lake: Path, query: str) -> Any:
    return json.loads(gristmill("sql", query, "--json", "--lake", lake).stdout)


def heed_ctrl_c() -> None:
    """Commands begun in the background of a script ignore Ctrl-C, and so would everything that the tests start from there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Recipe, lake, and what the run printed after it had been stopped by Ctrl-C in its first stage and run again."""
    folder = tmp_path_factory.mktemp("tiny")
    recipe, lake = write_project(folder / "in"), folder / "lake"
    recipe.write_text(recipe.read_text().replace("threads: 1,", f"threads: 1, callbacks: ['{HOLD}'],"))
    hold_file(lake).write_text("3")
    command = [sys.executable, "-u", "-m", "pipelines.cli", "run", str(recipe), "--lake", str(lake), "--no-prefect"]
    process = subprocess.Popen(
        command, env=ENVIRONMENT, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("first") and "loss" in line:
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate(timeout=600)
    hold_file(lake).unlink()
    assert process.returncode == 130, errors
    assert f"gristmill run {shlex.quote(str(recipe))}" in errors and "Traceback" not in errors
    return recipe, lake, gristmill(*command[4:]).stdout


def test_the_summary_says_what_came_of_everything(done: tuple[Path, Path, str]) -> None:
    _, _, printed = done
    for words in ("near_duplicate", "too_short", "broken_json", "Stage plan", "first stopped early", "A sample of the model", "Try next"):
        assert words in printed, printed
    assert "read            done before" in printed


def test_loss_falls_in_each_stage_and_returned_rows_are_planned_next(done: tuple[Path, Path, str]) -> None:
    _, lake, _ = done
    first, second = ask(lake, "FROM stages ORDER BY position")
    assert first["reason"] == "early_stop" and first["returned_rows"] > 0
    assert first["last_loss"] < first["first_loss"] and second["last_loss"] < second["first_loss"]
    assert ask(lake, "SELECT sum(rows)::INT AS n FROM plans WHERE stage = 'second' AND returned")[0]["n"] > 0


def test_the_interrupted_attempt_stays_in_the_ledger_and_no_use_counts_twice(done: tuple[Path, Path, str]) -> None:
    _, lake, _ = done
    assert ask(lake, "SELECT count(*) AS n FROM events WHERE kind = 'resumed'")[0]["n"] >= 1
    assert ask(lake, "SELECT lot, use FROM ledger WHERE status = 'seen' GROUP BY ALL HAVING count(*) > 1") == []
    seen = ask(lake, "SELECT count(*) AS n, max(index) + 1 AS top FROM ledger WHERE status = 'seen'")[0]
    assert seen["n"] == seen["top"]
    for source in ask(lake, "FROM epochs_by_source()"):
        assert source["most_uses"] <= source["allowed"]


def test_records_add_up(done: tuple[Path, Path, str]) -> None:
    _, lake, _ = done
    wrong = "FROM conservation WHERE records_in <> quarantined + dropped + held_out + kept OR bytes_in <> bytes_out"
    assert ask(lake, wrong) == []
    assert ask(lake, "SELECT sum(records_in)::INT AS n FROM conservation") == [{"n": 120 + 12 + 2 + 60 + 6 + 2}]


def test_why_tells_seen_and_dropped_documents(done: tuple[Path, Path, str]) -> None:
    _, lake, _ = done
    hardest = ask(lake, "SELECT doc_id FROM losses WHERE status = 'seen' ORDER BY loss / tokens DESC LIMIT 1")[0]["doc_id"]
    life = json.loads(gristmill("why", hardest[:16], "--lake", lake, "--json").stdout)
    assert life["verdict"]["state"] == "kept" and life["lots"] and life["stages"]
    assert all(step["loss"] > 0 for step in life["steps"])
    dropped = json.loads(gristmill("why", "web-120", "--lake", lake, "--json").stdout)
    kept = json.loads(gristmill("why", "web-0", "--lake", lake, "--json").stdout)
    pair = {dropped["verdict"]["reason"], kept["verdict"]["reason"]}
    assert "near_duplicate" in pair and max(dropped["verdict"]["similarity"] or 0, kept["verdict"]["similarity"] or 0) > 0.8
    assert "too_short: value" in gristmill("why", "web-132", "--lake", lake).stdout


def test_status_and_plan(done: tuple[Path, Path, str]) -> None:
    recipe, lake, _ = done
    status = json.loads(gristmill("status", "--lake", lake, "--json").stdout)
    assert [stage["state"] for stage in status["stages"]] == ["early_stop", "finished"]
    plan = json.loads(gristmill("plan", recipe, "--lake", lake, "--json").stdout)
    assert set(plan["forecast"]["steps"]) == {"first", "second"} and plan["committed"]
    assert "estimated final loss" in gristmill("plan", recipe, "--lake", lake).stdout


def test_generate_is_repeatable(done: tuple[Path, Path, str]) -> None:
    _, lake, _ = done
    texts = {gristmill("generate", "--prompt", "ab", "--tokens", "8", "--lake", lake).stdout for _ in range(2)}
    assert len(texts) == 1 and texts.pop().startswith("ab")


def test_text_exports_hold_every_kept_document_once(done: tuple[Path, Path, str], tmp_path: Path) -> None:
    _, lake, _ = done
    query = "SELECT doc_id, text FROM documents JOIN verdicts USING (doc_id) WHERE state = 'kept'"
    kept = {row["doc_id"]: row["text"] for row in ask(lake, query)}
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"):
        gristmill("export", tmp_path / name, "--lake", lake)
    table = pq.read_table(tmp_path / "a.parquet")
    assert dict(zip(table["doc_id"].to_pylist(), table["text"].to_pylist(), strict=True)) == kept
    lines = (tmp_path / "a.jsonl").read_bytes()
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()) == lines
    assert zstandard.open(tmp_path / "a.jsonl.zst", "rb").read() == lines
    assert {row["doc_id"]: row["text"] for row in map(json.loads, lines.splitlines())} == kept


def test_the_datasets_folder_loads_with_its_splits(done: tuple[Path, Path, str], tmp_path: Path) -> None:
    _, lake, _ = done
    gristmill("export", tmp_path / "set", "--lake", lake)
    code = f"import datasets; d = datasets.load_dataset({str(tmp_path / 'set')!r}); print({{k: len(v) for k, v in d.items()}})"
    offline = {**ENVIRONMENT, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    loaded = subprocess.run([sys.executable, "-c", code], env=offline, capture_output=True, text=True, check=True).stdout
    counts = {row["state"]: row["n"] for row in ask(lake, "SELECT state, count(*) AS n FROM verdicts GROUP BY ALL")}
    assert loaded.strip() == str({"train": counts["kept"], "heldout": counts["held_out"]})


def test_token_exports_hold_the_packed_rows(done: tuple[Path, Path, str], tmp_path: Path) -> None:
    _, lake, _ = done
    gristmill("export", tmp_path / "npy", "--format", "npy", "--lake", lake)
    gristmill("export", tmp_path / "bin", "--format", "bin", "--lake", lake)
    lots = ask(lake, "FROM lots")
    for lot in lots:
        assert np.load(tmp_path / f"npy/{lot['lot']}.npy").shape == (lot["rows"], 64)
    tokens = np.fromfile(tmp_path / "bin/train.bin", dtype="<u2")
    assert len(tokens) == sum(lot["tokens"] for lot in lots if lot["split"] == "train")
    assert tokens[0] == 256 and json.loads((tmp_path / "bin/lots.json").read_text())["lots"]


def test_an_export_refuses_to_overwrite_unless_told(done: tuple[Path, Path, str], tmp_path: Path) -> None:
    _, lake, _ = done
    for name, there in (("a.jsonl", "old"), ("set", "folder")):
        (tmp_path / name).mkdir() if there == "folder" else (tmp_path / name).write_text("old")
        refused = gristmill("export", tmp_path / name, "--lake", lake, check=False)
        assert refused.returncode == 2 and "--force" in refused.stderr
        gristmill("export", tmp_path / name, "--lake", lake, "--force")
    assert (tmp_path / "set/README.md").is_file() and "doc_id" in (tmp_path / "a.jsonl").read_text()
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "set"]


def test_a_sample_runs_everything_on_fewer_documents_under_its_own_name(done: tuple[Path, Path, str], tmp_path: Path) -> None:
    recipe, _, _ = done
    printed = gristmill("run", recipe, "--lake", tmp_path / "lake", "--sample", "50%", "--no-prefect").stdout
    assert "A sample of the model" in printed
    assert (tmp_path / "lake/runs/tiny-sample/1-second/outcome.json").is_file()
    kept = ask(tmp_path / "lake", "SELECT count(*) AS n FROM verdicts")[0]["n"]
    assert 0.3 * 200 < kept < 0.7 * 200


WRITES = {"stage", "generate", "report", "ui", "init", "schema"}
"""Commands that name the files they write, or write text or pages."""
ELSEWHERE = {"ablate"}
"""Commands whose JSON the tests of their own files read."""


def test_every_command_that_reports_prints_json_and_nothing_else(
    done: tuple[Path, Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, lake, _ = done
    good, bad = (str(tmp_path / f"{name}.jsonl") for name in ("books", "web"))
    for path in (good, bad):  # without the broken line at the end
        Path(path).write_text("".join((recipe.parent / Path(path).name).read_text().splitlines(keepends=True)[:-1]))
    asked = {
        "run": [str(recipe), "--no-prefect"],
        "curate": [str(recipe)],
        "train": [str(recipe), "second"],
        "score": ["-o", str(tmp_path / "losses.parquet")],
        "plan": [str(recipe)],
        "what-if": [str(recipe), "--rule", "n_words < 70"],
        "classify train": [good, bad, "-o", str(tmp_path / "model.safetensors")],
        "status": [],
        "stats": [],
        "why": ["web-0"],
        "steps": ["0..2"],
        "sql": ["FROM funnel()"],
        "diff": ["@current"],
        "forget": ["web-0", "--dry-run"],
        "snapshot": [],
        "export": [str(tmp_path / "a.jsonl")],
        "doctor": [],
    }
    names = {name for _, group in COMMANDS.values() for name in group}
    assert names == {*asked, *WRITES, *ELSEWHERE, "rewind"}, "a new command is one or the other"
    for name, arguments in asked.items():
        place = [] if name == "classify train" else ["--lake", str(lake)]
        assert run_command([*name.split(), *arguments, *place, "--json"]) == 0, name
        assert json.loads(capsys.readouterr().out) is not None, name
    copy = shutil.copytree(lake, tmp_path / "copy")
    step = min(int(path.name.rpartition("s")[2]) for path in copy.glob("runs/tiny/1-second/checkpoints/a*"))
    assert run_command(["rewind", "tiny", "--to", str(step), "--lake", str(copy), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == step
