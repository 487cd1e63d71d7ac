"""Looks for what would go wrong: environment, GPU, disk, locks, unfinished steps and stages, damaged files."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import urllib.error
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from pipelines.progress import Tell, untold
from pipelines.tables import table
from pipelines.trainer import live_trainer, lock_holder
from schemas.copy_room import cache_bound
from schemas.errors import LakeError
from schemas.lease import living
from schemas.manifest import UNPACKED, Snapshot, read_snapshot
from schemas.settings import read_outcome
from schemas.store import TEMPORARY, holder, using, verify
from schemas.working_copy import copy_of

Json = Any
GOOD, NOTE, BAD = "ok", "note", "wrong"
Finding = tuple[str, str, str]
"""What was looked at, its state, and words."""
CURRENT = "current"
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


def _environment() -> Iterator[Finding]:
    yield "python", GOOD, f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores"
    for name in PACKAGES:
        try:
            yield name, GOOD, version(name)
        except PackageNotFoundError:
            optional = name == "triton"
            yield name, NOTE if optional else BAD, "absent: kernels run in PyTorch" if optional else "absent: pip install gristmill"
    compiler = shutil.which("g++") or shutil.which("c++")
    yield "C++ compiler", GOOD if compiler else NOTE, compiler or "none: training.compile falls back to eager"


def _gpu() -> Iterator[Finding]:
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


def _disk(root: Path) -> Finding:
    place = next(path for path in (root, *root.parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    return "disk", BAD if free < LOW_DISK_BYTES else GOOD, f"{free / 1e9:,.1f} GB free at {place}"


def _prefect() -> Iterator[Finding]:
    """Runs that a Prefect server takes for alive; whether their processes are, it does not know."""
    address = os.environ.get("PREFECT_API_URL")
    if not address:
        return
    from pipelines.prefect_api import ask_server

    query = {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "CANCELLING"]}}, "tags": {"all_": ["gristmill"]}}}
    try:
        names = sorted(run["name"] for run in ask_server("flow_runs/filter", query))
    except urllib.error.HTTPError as error:
        refused = error.code in (401, 403)
        fix = "set PREFECT_API_KEY or PREFECT_API_AUTH_STRING as its other clients do" if refused else "look at its log"
        yield "Prefect server", NOTE if refused else BAD, f"{address} answers {error.code} {error.reason}: {fix}"
        return
    except (OSError, ValueError, LookupError, TypeError) as error:
        yield "Prefect server", BAD, f"{address} does not answer: {error}; start it, or unset PREFECT_API_URL"
        return
    alive = f"says that these run: {', '.join(names)}; one whose process was killed is marked Crashed by automations.yaml, or by hand"
    yield "Prefect server", NOTE if names else GOOD, alive if names else "no run is going on"


def _lake(root: Path, deep: bool, tell: Tell) -> Iterator[Finding]:
    if copy := copy_of(root):
        room = f"{copy.used() / 1e9:,.2f} GB of at most {cache_bound() / 1e9:,.2f} are in the working copy {root}"
        yield "object store", GOOD, f"{copy.address} answers; {room}"
    elsewhere = living(copy) if copy else {}
    user = holder(root / ".lock") or elsewhere.get("lock")
    yield "lake lock", NOTE if user else GOOD, f"in use by {user}" if user else "free"
    if not user:
        leftovers = sum(1 for path in root.rglob(f"{TEMPORARY}*") if "runs" not in path.relative_to(root).parts)
        swept = f"{leftovers} files of killed writers: the next `gristmill curate` removes them"
        yield "leftovers", NOTE if leftovers else GOOD, swept if leftovers else "none"
    yield from _runs(root, elsewhere)
    yield from _readable("stages", _stages(root, elsewhere))
    snapshots, unreadable = _snapshots(root)
    for name, error in unreadable.items():
        anew = "`gristmill curate RECIPE` writes it anew" if name == CURRENT else "restore or delete the file"
        yield f"snapshot {name}", BAD, f"{error.where}: {error.what}; {anew}"
    if not unreadable:
        yield from _readable("unfinished steps", _steps(root, snapshots))
    if CURRENT in snapshots:
        yield from _files(root, snapshots[CURRENT], deep, tell)
    elif CURRENT not in unreadable:
        yield "snapshot", NOTE, "nothing is curated yet"


def _readable(what: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Findings, ended by one of what could not be read."""
    try:
        yield from findings
    except LakeError as error:
        yield what, BAD, f"{error.where}: {error.what}; {error.fix}"


def _snapshots(root: Path) -> tuple[dict[str, Snapshot], dict[str, LakeError]]:
    """The snapshots that can be read, and why others cannot, by name."""
    read: dict[str, Snapshot] = {}
    unreadable: dict[str, LakeError] = {}
    for path in sorted(root.glob("snapshots/*.json")):
        try:
            read[path.stem] = read_snapshot(root, path.stem)
        except LakeError as error:
            unreadable[path.stem] = error
    return read, unreadable


def _files(root: Path, snapshot: Snapshot, deep: bool, tell: Tell) -> Iterator[Finding]:
    files = [file for entries in snapshot.steps.values() for entry in entries for file in entry.files.values()]
    damaged = []
    for number, file in enumerate(files):
        tell(number, len(files))
        try:
            if deep:
                with using(root):
                    verify(root, file)
            elif (root / file.path).stat().st_size != file.bytes:
                damaged.append(f"{file.path} was cut short or changed")
        except (OSError, LakeError) as error:
            damaged.append(f"{file.path}: {error.what if isinstance(error, LakeError) else 'missing'}")
    how = "checksums" if deep else "sizes; --deep compares checksums"
    yield (
        "files",
        BAD if damaged else GOOD,
        "; ".join(damaged[:5]) + " -> delete what was changed, and run again" if damaged else f"{len(files)} are whole ({how})",
    )


def _runs(root: Path, elsewhere: Mapping[str, str]) -> Iterator[Finding]:
    there = {name.split("/")[1] for name in elsewhere if name.startswith("runs/")}
    for name in sorted(there.union(path.parent.name for path in root.glob("runs/*/.lock"))):
        user = holder(root / f"runs/{name}/.lock") or elsewhere.get(f"runs/{name}/.lock")
        if user:
            yield f"run {name}", GOOD, f"in use by {user}"


def _steps(root: Path, snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Shards that are done and that no snapshot has taken: of a curation that was stopped, or what finished ones needed on their way."""
    named = {entry.key for snapshot in snapshots.values() for entries in snapshot.steps.values() for entry in entries}
    finished = max((path.stat().st_mtime_ns for name in (CURRENT, UNPACKED) for path in root.glob(f"snapshots/{name}.json")), default=0)
    times = {path: path.stat().st_mtime_ns for path in root.glob("manifests/*/*/*.json") if path.stem not in named}
    done = sorted((path for path, written in times.items() if written > finished), key=lambda path: times[path])
    counted = ", ".join(f"{step} {count:,}" for step, count in Counter(path.parent.parent.name for path in done).items())
    unfinished = f"shards later than the current snapshot: {counted}; an interrupted curation goes on from them when it is run again,"
    detail = f"{unfinished} what is left over goes with `gristmill snapshot --collect`"
    yield "unfinished steps", NOTE if done else GOOD, detail if done else "none"
    if spare := len(times) - len(done):
        yield (
            "spare shards",
            GOOD,
            f"{spare:,} of finished curations, in no snapshot; `gristmill snapshot --collect` deletes what is not needed",
        )


def _stages(root: Path, elsewhere: Mapping[str, str]) -> Iterator[Finding]:
    for path in sorted(root.glob("runs/*/*-*/stage.json")):
        folder = path.parent
        name = f"stage {folder.parent.name}/{folder.name}"
        process = live_trainer(folder)
        if process is not None:
            yield name, GOOD, f"training now (process {process})"
        elif read_outcome(folder) is None and (user := elsewhere.get(f"runs/{folder.parent.name}/.lock")):
            yield name, GOOD, f"not ended; {user} sees to it"
        elif read_outcome(folder) is None:
            yield name, NOTE, "planned, not ended, and no trainer is at work: run again to resume it"


def print_findings(found: list[dict[str, str]], console: Console) -> None:
    """Print findings for people."""
    shown = table("", ("what", "state", "detail"), ())
    colours = {GOOD: "green", NOTE: "yellow", BAD: "red"}
    for line in found:
        shown.add_row(line["what"], Text(line["state"], style=colours[line["state"]]), Text(line["detail"]))
    console.print(shown)
