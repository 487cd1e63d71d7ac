"""Manifests: which shards a step has finished, with what, and with which result.

Failure model. A shard's entry is one JSON file published after all of its data files (``schemas.store.publish``), so an entry that
exists names only complete files. Entries are keyed by everything the shard depends on (step, step version, settings, inputs): a
changed recipe or input has other keys, a rerun skips the keys that are there, and two runs can share a lake. A worker killed between
data and entry leaves unreferenced files that the rerun overwrites with the same bytes. Entries of one key written twice are equal.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from schemas.errors import LakeError, nearest
from schemas.store import Published, publish_json, read_json

Json = Any


def fingerprint(*parts: Json) -> str:
    """BLAKE2b-128 (hex) of the canonical JSON of the parts; the same in every process and on every machine."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Entry:
    """A finished shard of a step.

    Attributes:
        key: fingerprint of step, version, settings and inputs.
        step: step name.
        label: readable name that says the shard's place, for example ``docs/00003``.
        files: published files by table name.
        counts: integers that the step counted itself (rows in, rows out, bytes, ...).
    """

    key: str
    step: str
    label: str
    files: Mapping[str, Published]
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """Fingerprint of what it published. Later steps depend on this, not on the key: a touched file is read again, and no more."""
        return fingerprint(sorted((table, file.checksum) for table, file in self.files.items()))


def entry_path(step: str, key: str) -> str:
    """Where the entry of a shard lies, relative to the lake."""
    return f"manifests/{step}/{key[:2]}/{key}.json"


def commit(root: Path, entry: Entry) -> None:
    """Publish an entry; the shard is finished from here on."""
    publish_json(root, entry_path(entry.step, entry.key), asdict(entry))


def find(root: Path, step: str, key: str) -> Entry | None:
    """Return the entry of a finished shard whose files all have their recorded length, else None (the shard is to be done)."""
    path = root / entry_path(step, key)
    if not path.is_file():
        return None
    try:
        entry = entry_from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise LakeError(f"not a manifest entry: {error}", where=str(path), fix="delete this file and run again") from error
    for file in entry.files.values():
        data = root / file.path
        if not data.is_file() or data.stat().st_size != file.bytes:
            return None
    return entry


def entry_from_json(value: Mapping[str, Json]) -> Entry:
    """Rebuild an entry from its JSON form."""
    files = {table: Published(**file) for table, file in value["files"].items()}
    return Entry(value["key"], value["step"], value["label"], files, value["counts"])


@dataclass(frozen=True)
class Snapshot:
    """What a lake holds at one moment: the entries of each step in shard order.

    The position of a documents shard in ``steps["read"]`` is the shard number of locators: ``locator = shard << 32 | row``.
    """

    recipe: str
    steps: Mapping[str, Sequence[Entry]]

    @property
    def id(self) -> str:
        """Fingerprint of the snapshot: plans pin it."""
        return fingerprint(self.recipe, {step: [entry.content for entry in entries] for step, entries in self.steps.items()})

    @property
    def generations(self) -> list[int]:
        """Documents shards at the end of each generation; the shards of generation g begin where those of g - 1 end."""
        counts = [entry.counts["shards"] for entry in self.steps.get("generation", ())]
        return list(itertools.accumulate(counts)) or [len(self.steps["read"])]

    def files(self, table: str) -> list[Published]:
        """Files of a table over all steps, in shard order."""
        return [entry.files[table] for entries in self.steps.values() for entry in entries if table in entry.files]

    def tables(self) -> list[str]:
        """Names of the tables that have files."""
        return sorted({table for entries in self.steps.values() for entry in entries for table in entry.files})


UNPACKED = "unpacked"
"""Name of a curated snapshot whose lots are still to be built, where the lake has an earlier one that has them."""


def write_snapshot(root: Path, snapshot: Snapshot, name: str = "current") -> None:
    """Publish a snapshot under a name, replacing what had it."""
    steps = {step: [asdict(entry) for entry in entries] for step, entries in snapshot.steps.items()}
    publish_json(root, f"snapshots/{name}.json", {"id": snapshot.id, "recipe": snapshot.recipe, "steps": steps})


def read_snapshot(root: Path, name: str = "current") -> Snapshot:
    """Read a named snapshot.

    Raises:
        LakeError: the lake has no such snapshot, or it is damaged.
    """
    path = root / f"snapshots/{name}.json"
    if not path.is_file():
        names = [each.stem for each in root.glob("snapshots/*.json")]
        fix = "run `gristmill curate RECIPE` first, or name another --lake"
        raise LakeError(f"no snapshot {name!r}{nearest(name, names) if names else ''}", where=str(root), fix="" if names else fix)
    value = read_json(path)
    try:
        steps = {step: [entry_from_json(entry) for entry in entries] for step, entries in value["steps"].items()}
        return Snapshot(value["recipe"], steps)
    except (KeyError, TypeError, AttributeError) as error:
        raise LakeError("damaged: it is no snapshot", where=str(path), fix="restore the file, or delete it and run again") from error


def current_id(root: Path) -> str | None:
    """Id of the lake's current snapshot, None before there is one."""
    path = root / "snapshots/current.json"
    return str(read_json(path)["id"]) if path.is_file() else None
