"""Names, lists and brings back snapshots of a lake. Data files are never changed in place, so a snapshot is only a list of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rich.console import Console

from curate.collect import Garbage, collect
from pipelines.progress import Tell, untold
from pipelines.tables import table
from schemas.errors import LakeError
from schemas.manifest import UNPACKED, read_snapshot, write_snapshot
from schemas.store import lock, verify
from schemas.strict import NAME

Json = Any
CURRENT = "current"


def list_snapshots(root: Path) -> list[dict[str, Json]]:
    """Name, id, documents files and rows of every snapshot, the current one first.

    Raises:
        LakeError: there is no lake.
    """
    if not root.is_dir():
        raise LakeError("no such lake", where=str(root), fix="make one with `gristmill run RECIPE`, or name another with --lake")
    names = sorted((path.stem for path in root.glob("snapshots/*.json")), key=lambda name: (name != CURRENT, name))
    found = [(name, read_snapshot(root, name)) for name in names]
    return [
        {"name": name, "id": each.id, "documents": sum(file.rows for file in each.files("documents")), "packed": "lots" in each.steps}
        for name, each in found
    ]


def keep_snapshot(root: Path, name: str) -> None:
    """Give the current snapshot a name of its own.

    Raises:
        LakeError: a bad or taken name, or nothing is curated.
    """
    if not re.fullmatch(NAME, name) or name in (CURRENT, UNPACKED):
        raise LakeError(f"{name!r} is no snapshot name", where="snapshot", fix="small letters, digits, _ and -, a letter first")
    with lock(root / ".lock", "snapshot"):
        if (root / f"snapshots/{name}.json").exists():
            raise LakeError(f"there is a snapshot {name!r} already", where=str(root), fix="choose another name")
        write_snapshot(root, read_snapshot(root), name)


def use_snapshot(root: Path, name: str, tell: Tell = untold) -> None:
    """Make a named snapshot the current one, after checking that all its files are there and whole, and telling how many are checked.

    Raises:
        LakeError: there is no such snapshot, or a file of it is missing or damaged.
    """
    with lock(root / ".lock", "snapshot"):
        snapshot = read_snapshot(root, name)
        files = [file for entries in snapshot.steps.values() for entry in entries for file in entry.files.values()]
        for number, file in enumerate(files):
            tell(number, len(files))
            verify(root, file)
        write_snapshot(root, snapshot)


def collect_garbage(root: Path, days: float, dry_run: bool) -> Garbage:
    """Delete what no snapshot and no run names and is older than some days; with ``dry_run`` only count it.

    Raises:
        LakeError: there is no lake, or it is in use.
    """
    if not (root / "manifests").is_dir():
        raise LakeError("no such lake", where=str(root), fix="name one with --lake")
    with lock(root / ".lock", "collect"):
        return collect(root, days, dry_run=dry_run)


def garbage_line(found: Garbage, days: float, dry_run: bool) -> str:
    """What a collection did, in a sentence."""
    line = f"{found.files:,} files ({found.bytes / 1e6:,.1f} MB) that no snapshot and no run names"
    line += " would be deleted" if dry_run else " were deleted"
    return f"{line}; {found.young_files:,} ({found.young_bytes / 1e6:,.1f} MB) are younger than {days:g} days"


def print_snapshots(found: list[dict[str, Json]], console: Console) -> None:
    """Print snapshots for people."""
    shown = table("Snapshots", ("name", "id"), ("documents",), ("packed",))
    for each in found:
        shown.add_row(each["name"], each["id"], f"{each['documents']:,}", "yes" if each["packed"] else "no")
    console.print(shown)
