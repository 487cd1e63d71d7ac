"""Looks for what would go wrong: environment, GPU, disk, locks, unfinished stages, damaged files."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from pipelines.tables import table
from pipelines.trainer import live_trainer
from schemas.errors import LakeError
from schemas.manifest import read_snapshot
from schemas.settings import read_outcome
from schemas.store import TEMPORARY, lock, verify

Json = Any
GOOD, NOTE, BAD = "ok", "note", "wrong"
LOW_DISK_BYTES = 2_000_000_000
PACKAGES = ("torch", "numpy", "pyarrow", "duckdb", "prefect", "tokenizers", "numba", "triton")


def examine(root: Path, deep: bool) -> list[dict[str, str]]:
    """Findings, each with what was looked at, ``ok``, ``note`` or ``wrong``, and what to do.

    Args:
        root: the lake; it may be absent.
        deep: also read every file of the current snapshot and compare checksums.
    """
    checks = [*_environment(), _gpu(), _disk(root), *(_lake(root, deep) if root.is_dir() else [("lake", NOTE, f"none at {root}")])]
    return [{"what": what, "state": state, "detail": detail} for what, state, detail in checks]


def _environment() -> Iterator[tuple[str, str, str]]:
    yield "python", GOOD, f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores"
    for name in PACKAGES:
        try:
            yield name, GOOD, version(name)
        except PackageNotFoundError:
            optional = name == "triton"
            yield name, NOTE if optional else BAD, "absent: kernels run in PyTorch" if optional else "absent: pip install gristmill"
    compiler = shutil.which("g++") or shutil.which("c++")
    yield "C++ compiler", GOOD if compiler else NOTE, compiler or "none: training.compile falls back to eager"


def _gpu() -> tuple[str, str, str]:
    if shutil.which("nvidia-smi") is None:
        return "GPU", NOTE, "no NVIDIA driver: training runs on the CPU"
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, timeout=30)
    if listed.returncode:
        return "GPU", BAD, f"nvidia-smi fails: {listed.stdout.strip() or listed.stderr.strip()}"
    return "GPU", GOOD, "; ".join(listed.stdout.strip().splitlines())


def _disk(root: Path) -> tuple[str, str, str]:
    place = next(path for path in (root, *root.parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    return "disk", BAD if free < LOW_DISK_BYTES else GOOD, f"{free / 1e9:,.1f} GB free at {place}"


def _lake(root: Path, deep: bool) -> Iterator[tuple[str, str, str]]:
    try:
        with lock(root / ".lock", "doctor"):
            leftovers = sum(1 for path in root.rglob(f"{TEMPORARY}*") if "runs" not in path.relative_to(root).parts)
        yield "lake lock", GOOD, "free"
        swept = f"{leftovers} files of killed writers: the next `gristmill curate` removes them"
        yield "leftovers", NOTE if leftovers else GOOD, swept if leftovers else "none"
    except LakeError as error:
        yield "lake lock", NOTE, error.what
    yield from _stages(root)
    try:
        snapshot = read_snapshot(root)
    except LakeError as error:
        yield "snapshot", NOTE, str(error.what)
        return
    files = [file for entries in snapshot.steps.values() for entry in entries for file in entry.files.values()]
    damaged = []
    for file in files:
        try:
            if deep:
                verify(root, file)
            elif (root / file.path).stat().st_size != file.bytes:
                damaged.append(f"{file.path} was cut short or changed")
        except (OSError, LakeError) as error:
            damaged.append(f"{file.path}: {error.what if isinstance(error, LakeError) else 'missing'}")
    how = "checksums" if deep else "sizes; --deep compares checksums"
    yield "files", BAD if damaged else GOOD, "; ".join(damaged[:5]) + " -> run again" if damaged else f"{len(files)} are whole ({how})"


def _stages(root: Path) -> Iterator[tuple[str, str, str]]:
    for path in sorted(root.glob("runs/*/*-*/stage.json")):
        folder = path.parent
        name = f"stage {folder.parent.name}/{folder.name}"
        process = live_trainer(folder)
        if process is not None:
            yield name, GOOD, f"training now (process {process})"
        elif read_outcome(folder) is None:
            yield name, NOTE, "planned, not ended, and no trainer is at work: run again to resume it"


def print_findings(found: list[dict[str, str]], console: Console) -> None:
    """Print findings for people."""
    shown = table("", ("what", "state", "detail"), ())
    colours = {GOOD: "green", NOTE: "yellow", BAD: "red"}
    for line in found:
        shown.add_row(line["what"], Text(line["state"], style=colours[line["state"]]), Text(line["detail"]))
    console.print(shown)
