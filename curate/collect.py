"""Garbage: files of a lake that no snapshot and no run names, left by other recipes, earlier code, samples and killed writers.

Kept are the entries of every snapshot, so that a lake which grows by generations can grow on; every entry a file of which a run's stage
names, with the rest of that entry (rows beside shards); the index of held-out documents, which later generations are compared with; and
tokenizers, which models need. What a step made on its way to such an entry goes: it is made again if it is ever needed. Of a lake in an
object store a checkpoint whose upload was cut off goes too.

Failure model. The caller holds the lake's lock, so nothing is being curated or planned; trainers read only what their stages name. An
entry's files go before the entry: killed between, the entry names missing files, which is a shard to be done, and the next collection
ends it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas import objects
from schemas.manifest import Entry, entry_from_json, read_snapshot
from schemas.store import read_json, remove
from schemas.working_copy import copy_of

KEPT_STEPS = frozenset(("holdout_index", "tokenizer"))
DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Garbage:
    """What a collection found.

    Attributes:
        shards: manifest entries that nothing names.
        files: files that nothing names, theirs among them.
        bytes: size of those files.
        young_files: files left because they, or their entry, are newer than the days asked for.
        young_bytes: size of those.
    """

    shards: int
    files: int
    bytes: int
    young_files: int
    young_bytes: int


def collect(root: Path, days: float, *, dry_run: bool = False) -> Garbage:
    """Delete what no snapshot and no run names; under the lake's lock.

    Args:
        root: the lake.
        days: what was written in this time stays: an unfinished curation goes on from it.
        dry_run: only count.

    Raises:
        LakeError: a snapshot, an entry or a stage cannot be read; nothing is deleted.
    """
    entries = {place: entry_from_json(read_json(place)) for place in sorted(root.glob("manifests/*/*/*.json"))}
    named, steps = _named(root)
    live = set(named)
    dead: dict[Path, Entry] = {}
    for place, entry in entries.items():
        paths = {file.path for file in entry.files.values()}
        if (entry.step, entry.key) in steps or entry.step in KEPT_STEPS or paths & named:
            live |= paths
        else:
            dead[place] = entry
    limit = time.time() - days * DAY_SECONDS
    old = {place: entry for place, entry in dead.items() if place.stat().st_mtime <= limit}
    held = {file.path for place, entry in dead.items() if place not in old for file in entry.files.values()} - live
    folders = {path.partition("/")[0] for entry in entries.values() for path in (file.path for file in entry.files.values())}
    gone: list[Path] = []
    young: list[Path] = []
    for path in _files(root, folders):
        relative = path.relative_to(root).as_posix()
        if relative not in live:
            (young if relative in held or path.stat().st_mtime > limit else gone).append(path)
    copy = copy_of(root)
    torn = [stored for stored in copy.torn() if stored.seconds <= limit] if copy else []
    size = _size(gone) + sum(stored.bytes for stored in torn)
    found = Garbage(len(old), len(gone) + len(torn), size, len(young), _size(young))
    if not dry_run:
        for stored in torn:
            objects.delete(stored.key)
        for path in [*gone, *old]:
            remove(path)
        _remove_empty(root, {*folders, "manifests"})
    return found


def _named(root: Path) -> tuple[set[str], set[tuple[str, str]]]:
    """Paths and entries that snapshots name, and paths that runs do."""
    paths: set[str] = set()
    steps: set[tuple[str, str]] = set()
    for place in sorted(root.glob("snapshots/*.json")):
        for step, entries in read_snapshot(root, place.stem).steps.items():
            steps |= {(step, entry.key) for entry in entries}
            paths |= {file.path for entry in entries for file in entry.files.values()}
    for place in sorted(root.glob("runs/*/*/stage*.json")):
        paths |= set(_paths(read_json(place)))
    return paths, steps


def _paths(value: Any) -> Iterator[str]:
    """Values of ``path`` anywhere in JSON."""
    if isinstance(value, Mapping):
        if isinstance(value.get("path"), str):
            yield value["path"]
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _paths(part)


def _files(root: Path, folders: Iterable[str]) -> Iterator[Path]:
    for folder in sorted(folders):
        yield from (path for path in sorted((root / folder).rglob("*")) if path.is_file())


def _size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _remove_empty(root: Path, folders: Iterable[str]) -> None:
    for folder in sorted(folders):
        for path in sorted((root / folder).rglob("*"), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
