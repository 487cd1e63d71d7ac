"""A calibration measures real steps and leaves the lake as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.cli import run_command
from tests.pipelines.tiny import write_project


def test_a_calibrated_plan_tells_time_by_measured_steps_and_leaves_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, lake = str(write_project(tmp_path)), str(tmp_path / "lake")
    assert run_command(["curate", recipe, "--lake", lake]) == 0
    capsys.readouterr()
    assert run_command(["plan", recipe, "--lake", lake, "--calibrate", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    rate, tokens = plan["estimates"]["rates"]["tokens_per_second"], plan["forecast"]["tokens"]
    assert 0 < rate < 1e7
    assert plan["estimates"]["cost"]["gpu_hours"] == pytest.approx(tokens / rate / 3600)
    assert plan["committed"] == [] and not list((tmp_path / "lake/runs").glob("*"))
    assert run_command(["plan", recipe, "--lake", lake, "--rate", "10"]) == 0
    assert "time on one: " in capsys.readouterr().out
