"""``gristmill run`` on Prefect's embedded server: quiet, offline, and the same bytes as without Prefect."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.embedded import settle
from tests.pipelines.tiny import write_project

ROOT = Path(__file__).parent.parent.parent


def gristmill(cache: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=800)


def published(lake: Path) -> dict[str, str]:
    """Digest of every published file of tables and rows."""
    folders = ("documents", "verdicts", "clusters", "shards", "rows", "lots", "snapshots")
    files = [path for folder in folders for path in (lake / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(lake)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.timeout(1800)
def test_flows_print_nothing_of_their_own_and_publish_the_same_bytes(tmp_path: Path) -> None:
    recipe = write_project(tmp_path / "in")
    bare = gristmill(tmp_path, "run", recipe, "--lake", tmp_path / "bare", "--set", "stages=[]", "--no-prefect")
    flows = gristmill(tmp_path, "run", recipe, "--lake", tmp_path / "flows", "--set", "stages=[]")
    assert (bare.returncode, flows.returncode, flows.stderr) == (0, 0, ""), bare.stderr + flows.stderr
    steps = [[line.split()[0] for line in run.stdout.splitlines() if "shard" in line] for run in (bare, flows)]
    assert steps[0] == steps[1] and "signals" in steps[0]
    assert len(flows.stdout.splitlines()) == len(bare.stdout.splitlines())
    assert published(tmp_path / "flows") == published(tmp_path / "bare")
    assert (tmp_path / "gristmill/prefect/prefect.db").is_file()

    (tmp_path / "in/web.jsonl").unlink()
    failed = gristmill(tmp_path, "run", recipe, "--lake", tmp_path / "flows", "--set", "stages=[]")
    assert failed.returncode == 2 and "web.jsonl" in failed.stderr
    assert "Traceback" not in failed.stderr and len(failed.stderr.splitlines()) <= 3


def test_a_server_of_ones_own_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", dict(os.environ) | {"PREFECT_API_URL": "http://127.0.0.1:1/api", "XDG_CACHE_HOME": str(tmp_path)})
    settle()
    assert "PREFECT_HOME" not in os.environ and "PREFECT_SERVER_EPHEMERAL_ENABLED" not in os.environ
    assert os.environ["DO_NOT_TRACK"] == "1"
