"""Reads back what a run recorded, with void steps left out, and starts real trainer processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from train.loop import Trainer
from train.parallel import Ranks
from train.stage import Stage

REPOSITORY = Path(__file__).parents[2]


def table(root: Path, name: str, run: str = "r") -> list[dict[str, Any]]:
    """Every row of a table of the run, void ones too."""
    parts = sorted((root / "runs" / run).glob(f"*/{name}/*.parquet"))
    return pa.concat_tables([pq.read_table(part) for part in parts]).to_pylist() if parts else []


def valid(root: Path, name: str) -> list[dict[str, Any]]:
    """Rows of a table that no later attempt made void."""
    starts = [(e["attempt"], e["step"]) for e in table(root, "events") if e["kind"] in ("started", "resumed", "rewound")]
    return [r for r in table(root, name) if not any(a > r["attempt"] and s <= r["step"] for a, s in starts)]


def losses(root: Path, name: str = "loss") -> dict[int, float]:
    """Metric by step; asserts that no step has two."""
    rows = [r for r in valid(root, "metrics") if r["name"] == name]
    assert len({r["step"] for r in rows}) == len(rows)
    return {r["step"]: r["value"] for r in rows}


class Alone(Ranks):
    """One rank on the CPU."""

    def __init__(self) -> None:
        import torch

        super().__init__(0, 1, torch.device("cpu"))


class Never:
    """An interrupt that never comes."""

    came = False


class After:
    """An interrupt that comes at the n-th time it is asked about."""

    def __init__(self, checks: int) -> None:
        self.left = checks

    @property
    def came(self) -> bool:
        self.left -= 1
        return self.left < 0


def trainer(root: Path, folder: Path, interrupt: Any = None, **options: Any) -> Trainer:
    """A trainer in this process."""
    return Trainer(Stage.open(root, folder.relative_to(root).as_posix()), Alone(), interrupt or Never(), **options)


def start(root: Path, folder: Path, *options: str, ranks: int = 1) -> subprocess.Popen[str]:
    """A trainer process, under torchrun when there are several ranks."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launch, "-m", "train", str(root), folder.relative_to(root).as_posix(), *options]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(holds: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    """Wait for something that a living process does."""
    while not holds():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for a process, check its exit code, and return what it wrote."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, err
    return out + err
