"""What goes to the store of a lake in an object store: written, copied and deleted under the lake's key, in the order of its commits."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from schemas import objects
from schemas.copy_room import WHOLE, Room
from schemas.errors import LakeError
from schemas.objects import SCHEME, Stored

LOCAL = frozenset(("catalog.duckdb",))
"""Published files that are this machine's alone: they hold absolute paths."""
TORN_SECONDS = 3600
CHECKPOINT = re.compile(r"(runs/[^/]+/[^/]+/checkpoints[^/]*/[^/]+)/")


class Outward(Room):
    """A folder whose published files go to the store.

    Attributes:
        root: the folder.
        key: bucket and prefix of the lake.
        held: by name, the moment of the monotonic clock until which a lease of this process surely holds.
    """

    def __init__(self, root: Path, key: str) -> None:
        super().__init__(root)
        self.key = key
        self.held: dict[str, float] = {}

    @property
    def address(self) -> str:
        """The lake's address."""
        return f"{SCHEME}{self.key}"

    def send(self, relative: str, file: Path) -> None:
        """Write a file to the store under its path in the lake, and mark it as being there; its local name is given after.

        Raises:
            LakeError: the store does not take it, or this process has lost a lease.
        """
        if relative in LOCAL:
            return
        self.check_leases()
        stored = objects.put(f"{self.key}/{relative}", file)
        file.chmod(WHOLE)
        os.utime(file, (time.time(), stored.seconds))
        self.count(stored.bytes)

    def share(self, name: str, file: Path) -> None:
        """Write a file to the store that no working copy takes from it: it is for other readers."""
        objects.put(f"{self.key}/{name}", file)

    def torn(self) -> list[Stored]:
        """Objects of checkpoints that a trainer which was killed left without their ``manifest.json``, none of them written in an hour."""
        parts: dict[str, list[Stored]] = {}
        for stored in objects.listed(f"{self.key}/runs"):
            if inside := CHECKPOINT.match(stored.key.removeprefix(f"{self.key}/")):
                parts.setdefault(inside[1], []).append(stored)
        old = [each for each in parts.values() if max(stored.seconds for stored in each) < time.time() - TORN_SECONDS]
        return [stored for each in old if not any(stored.key.endswith("/manifest.json") for stored in each) for stored in each]

    def send_folder(self, staging: Path, final: Path) -> None:
        """Write a folder's files under the name that it will get, ``manifest.json`` last."""
        target = final.relative_to(self.root).as_posix()
        for file in sorted(staging.iterdir(), key=lambda file: file.name == "manifest.json"):
            self.send(f"{target}/{file.name}", file)

    def remove(self, path: Path) -> None:
        """Delete a file, or a folder with all in it, from the store (first what says that it is whole)."""
        self.check_leases()
        relative = path.relative_to(self.root).as_posix()
        inside = [f"{self.key}/{relative}/{file.relative_to(path).as_posix()}" for file in path.rglob("*") if file.is_file()]
        for key in sorted(inside, key=lambda key: not key.endswith("/manifest.json")) if path.is_dir() else [f"{self.key}/{relative}"]:
            objects.delete(key)

    def duplicate(self, path: Path, new: Path) -> None:
        """Give a file or folder a second name in the store."""
        self.check_leases()
        inner = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()] if path.is_dir() else [""]
        old, target = (place.relative_to(self.root).as_posix() for place in (path, new))
        for name in sorted(inner, key=lambda name: name == "manifest.json"):
            objects.copy(f"{self.key}/{old}/{name}".rstrip("/"), f"{self.key}/{target}/{name}".rstrip("/"))

    def check_leases(self) -> None:
        """Refuse to write when a lease of this process may have passed to another.

        Raises:
            LakeError: it was stopped, or cut off from the store, for too long.
        """
        if late := [name for name, until in self.held.items() if time.monotonic() > until]:
            raise LakeError(
                f"the lease {late[0]!r} was not renewed in time: another process may have taken it",
                where=self.address,
                fix="run again: finished shards are kept",
            )
