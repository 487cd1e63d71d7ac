"""Two recipes compared on the real command line: killed and gone on with, equal to an uninterrupted one, and fair."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.ablation import FOLDER, read_ablation
from pipelines.cli import run_command
from schemas.manifest import read_snapshot
from schemas.settings import read_stage
from tests.pipelines.tiny import write_project

MODEL = "model: {layers: 1, width: 32, heads: 2}\n"
NEUTRAL = "name: neutral\nsources:\n  other: {reader: jsonl, paths: [other.jsonl], id_field: id}\nholdout: {share: 0.5}\n"
DIES_IN_THE_SECOND_TRAINING = """
import os, signal, sys
from pipelines import ablation
from pipelines.cli import run_command
train = ablation.run_trainer
def dying(root, settings, say):
    first = not list(root.glob("ablation/runs/*.json"))
    return train(root, settings, say if first else lambda line: os.kill(os.getpid(), signal.SIGKILL))
ablation.run_trainer = dying
sys.exit(run_command(sys.argv[1:]))
"""
"""The trainer at work outlives it."""


def project(folder: Path) -> list[str]:
    """Write a raw, a curated and a neutral recipe, and return the command that compares them."""
    write_project(folder)
    lines = (folder / "books.jsonl").read_text().splitlines()[:12]
    other = [{"id": f"other-{n}", "text": " ".join(json.loads(line)["text"].split()[::-1])} for n, line in enumerate(lines)]
    (folder / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in other))
    (folder / "neutral.yaml").write_text(NEUTRAL)
    (folder / "good.yaml").write_text("extends: recipe.yaml\nname: good\n" + MODEL)
    (folder / "raw.yaml").write_text("extends: good.yaml\nname: raw\nrules: []\ndedup: {exact: false, near: null}\n")
    names = [str(folder / name) for name in ("raw.yaml", "good.yaml")]
    return ["ablate", *names, "--neutral", str(folder / "neutral.yaml"), "--tokens", "2000", "--lake", str(folder / "lake")]


@pytest.mark.timeout(1800)  # seven trainers are started, and each imports torch
def test_a_killed_comparison_goes_on_and_is_fair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, root = project(tmp_path), tmp_path / "lake"
    killed = subprocess.run([sys.executable, "-c", DIES_IN_THE_SECOND_TRAINING, *command], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    finished = {path: path.stat().st_mtime_ns for path in root.glob(f"{FOLDER}/runs/*.json")}
    assert len(finished) == 1 and read_ablation(root) is None

    assert run_command(command) == 0
    said = capsys.readouterr().out
    assert "min left" in said and "6 of 6" in said and "3 paired seeds" in said
    assert all(path.stat().st_mtime_ns == changed for path, changed in finished.items())
    found = read_ablation(root)
    assert found is not None and found["recipes"] == ["raw", "good"]
    assert {row["dataset"] for row in found["runs"]} == {"raw", "good", "neutral"} and len(found["runs"]) == 18
    assert (root / FOLDER / "results.svg").read_text().count("<circle") == 18 + 3
    stages = [read_stage(path) for path in sorted(root.glob("runs/*/0-all/stage.json"))]
    assert len(stages) == 6 and len({stage.vocabulary for stage in stages}) == 1
    assert {seed: sum(stage.seed == seed for stage in stages) for seed in (0, 1, 2)} == {0: 2, 1: 2, 2: 2}
    held = set("".join(path.read_text() for path in root.glob(f"{FOLDER}/held-out/*.ids")).split())
    assert held and not held & _kept(root, capsys)
    assert read_snapshot(root).steps["decontaminate"]

    assert run_command([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def _kept(root: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Documents that the second recipe's models were trained on."""
    assert run_command(["sql", "SELECT doc_id FROM verdicts WHERE state = 'kept'", "--lake", str(root), "--json"]) == 0
    return {row["doc_id"] for row in json.loads(capsys.readouterr().out)}


def test_what_is_no_fair_comparison_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = project(tmp_path)
    assert run_command([*command, "--seeds", "2"]) == 2 and "at least 3" in capsys.readouterr().err
    (tmp_path / "good.yaml").write_text("extends: recipe.yaml\nname: good\n")
    (tmp_path / "raw.yaml").write_text("extends: recipe.yaml\nname: raw\nmodel: {layers: 1}\n")
    assert run_command(command) == 2 and "no equal compute" in capsys.readouterr().err
