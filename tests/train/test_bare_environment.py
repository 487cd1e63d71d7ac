"""``train`` needs torch, numpy, pyarrow, what those need, and nothing else: one stage, interrupted and resumed."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys

from tests.train.run_tables import REPOSITORY
from tests.train.tiny_lake import build

STOP_AT_FIVE = """
import os, runpy, signal
import train.loop
step = train.loop.Trainer._step
def interrupted(self):
    step(self)
    if self.step == 5:
        os.kill(os.getpid(), signal.SIGTERM)
train.loop.Trainer._step = interrupted
runpy.run_module("train", run_name="__main__", alter_sys=True)
"""
ABSENT = """
import importlib.util
names = ("pydantic", "prefect", "duckdb", "pytest", "triton", "pip", "yaml", "curate", "pipelines")
print([n for n in names if importlib.util.find_spec(n)])
"""


def link_packages(folder) -> None:
    """Link to all that torch, numpy and pyarrow install and require (without extras and triton), as an environment of its own."""
    seen, waiting = set(), ["torch", "numpy", "pyarrow"]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # required elsewhere only, on another system or Python
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
        needed = [line for line in distribution.requires or () if "extra ==" not in line and not line.startswith("triton")]
        waiting += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in needed]
    for package in ("train", "schemas"):
        (folder / package).symlink_to(REPOSITORY / package)


def test_a_stage_and_a_resume_without_any_other_package(tmp_path):
    build(tmp_path)
    (tmp_path / "site").mkdir()
    link_packages(tmp_path / "site")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "site")}

    def run(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-S", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, done.stderr
        return done.stdout

    assert run("-c", ABSENT).strip() == "[]"
    run("-c", STOP_AT_FIVE, str(tmp_path), "runs/r/0-first", code=75)
    run("-m", "train", str(tmp_path), "runs/r/0-first")
    assert json.loads((tmp_path / "runs/r/0-first/outcome.json").read_text())["reason"] == "finished"
    assert len(list((tmp_path / "runs/r/0-first/events").glob("a0001-*"))) >= 1, "the second process resumed"
