"""Looks for what would go wrong: environment, GPU, disk, locks, unfinished steps and stages, damaged files."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from pipelines.progress import Tell, untold
from pipelines.tables import table
from pipelines.trainer import live_trainer, lock_holder
from schemas.errors import InUse, LakeError
from schemas.manifest import read_snapshot
from schemas.settings import read_outcome
from schemas.store import TEMPORARY, lock, verify
from schemas.working_copy import cache_bound, copy_of

Json = Any
GOOD, NOTE, BAD = "ok", "note", "wrong"
LOW_DISK_BYTES = 2_000_000_000
PACKAGES = ("torch", "numpy", "pyarrow", "duckdb", "prefect", "tokenizers", "numba", "triton")


def examine(root: Path, deep: bool, tell: Tell = untold) -> list[dict[str, str]]:
    """Findings, each with what was looked at, ``ok``, ``note`` or ``wrong``, and what to do.

    Args:
        root: the lake; it may be absent.
        deep: also read every file of the current snapshot and compare checksums.
        tell: called with the files that were looked at, and how many there are.
    """
    lake = _lake(root, deep, tell) if root.is_dir() else [("lake", NOTE, f"none at {root}")]
    checks = [*_environment(), *_gpu(), _disk(root), *_prefect(), *lake]
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


def _gpu() -> Iterator[tuple[str, str, str]]:
    if shutil.which("nvidia-smi") is None:
        yield "GPU", NOTE, "no NVIDIA driver: training runs on the CPU"
        return
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, timeout=30)
    if listed.returncode:
        yield "GPU", BAD, f"nvidia-smi fails: {listed.stdout.strip() or listed.stderr.strip()}"
        return
    yield "GPU", GOOD, "; ".join(listed.stdout.strip().splitlines())
    for path in sorted(Path(tempfile.gettempdir()).glob("gristmill-gpu-*.lock")):
        holder = lock_holder(path)
        if holder is not None:
            yield "GPU lock", NOTE, f"{path.stem.removeprefix('gristmill-gpu-')} is used by the trainer of process {holder}"


def _disk(root: Path) -> tuple[str, str, str]:
    place = next(path for path in (root, *root.parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    return "disk", BAD if free < LOW_DISK_BYTES else GOOD, f"{free / 1e9:,.1f} GB free at {place}"


def _prefect() -> Iterator[tuple[str, str, str]]:
    """Runs that a Prefect server takes for alive; whether their processes are, it does not know."""
    address = os.environ.get("PREFECT_API_URL")
    if address is None:
        return
    query = {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "CANCELLING"]}}, "tags": {"all_": ["gristmill"]}}}
    request = urllib.request.Request(f"{address}/flow_runs/filter", json.dumps(query).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            names = sorted(run["name"] for run in json.load(answer))
    except (OSError, ValueError) as error:
        yield "Prefect server", BAD, f"{address} does not answer: {error}; start it, or unset PREFECT_API_URL"
        return
    alive = f"says that these run: {', '.join(names)}; one whose process was killed is marked Crashed by automations.yaml, or by hand"
    yield "Prefect server", NOTE if names else GOOD, alive if names else "no run is going on"


def _lake(root: Path, deep: bool, tell: Tell) -> Iterator[tuple[str, str, str]]:
    if copy := copy_of(root):
        room = f"{copy.used() / 1e9:,.2f} GB of at most {cache_bound() / 1e9:,.2f} are in the working copy {root}"
        yield "object store", GOOD, f"{copy.address} answers; {room}"
    try:
        with lock(root / ".lock", "doctor"):
            leftovers = sum(1 for path in root.rglob(f"{TEMPORARY}*") if "runs" not in path.relative_to(root).parts)
        yield "lake lock", GOOD, "free"
        swept = f"{leftovers} files of killed writers: the next `gristmill curate` removes them"
        yield "leftovers", NOTE if leftovers else GOOD, swept if leftovers else "none"
    except LakeError as error:
        yield "lake lock", NOTE, error.what
    yield from _runs(root)
    yield from _stages(root)
    yield from _steps(root)
    try:
        snapshot = read_snapshot(root)
    except LakeError as error:
        yield "snapshot", NOTE, str(error.what)
        return
    files = [file for entries in snapshot.steps.values() for entry in entries for file in entry.files.values()]
    damaged = []
    for number, file in enumerate(files):
        tell(number, len(files))
        try:
            if deep:
                verify(root, file)
            elif (root / file.path).stat().st_size != file.bytes:
                damaged.append(f"{file.path} was cut short or changed")
        except (OSError, LakeError) as error:
            damaged.append(f"{file.path}: {error.what if isinstance(error, LakeError) else 'missing'}")
    how = "checksums" if deep else "sizes; --deep compares checksums"
    yield "files", BAD if damaged else GOOD, "; ".join(damaged[:5]) + " -> run again" if damaged else f"{len(files)} are whole ({how})"


def _runs(root: Path) -> Iterator[tuple[str, str, str]]:
    for path in sorted(root.glob("runs/*/.lock")):
        try:
            with lock(path, "doctor"):
                continue
        except LakeError as error:
            yield f"run {path.parent.name}", GOOD if isinstance(error, InUse) else NOTE, error.what


def _steps(root: Path) -> Iterator[tuple[str, str, str]]:
    """Shards that are done and that no snapshot has taken: of a curation that was stopped, or of other recipes."""
    snapshots = [read_snapshot(root, path.stem) for path in root.glob("snapshots/*.json")]
    named = {entry.key for snapshot in snapshots for entries in snapshot.steps.values() for entry in entries}
    done = [path for path in root.glob("manifests/*/*/*.json") if path.stem not in named]
    steps = Counter(path.parent.parent.name for path in sorted(done, key=lambda path: path.stat().st_mtime))
    counted = ", ".join(f"{step} {count:,}" for step, count in steps.items())
    unfinished = f"shards that no snapshot holds: {counted}; an interrupted curation goes on from them when it is run again,"
    detail = f"{unfinished} what is left over goes with `gristmill snapshot --collect`"
    yield "unfinished steps", NOTE if done else GOOD, detail if done else "none"


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
