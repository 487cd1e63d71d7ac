"""Where a shard is worked on: in the lake's folder, or wherever the lake in an object store has a working copy, on any machine.

A shard's task names every file of the lake that its function reads; they are brought before the function runs, and stay until it ends.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.manifest import Entry, entry_from_json, entry_path
from schemas.store import Published, read_json, using, verify
from schemas.working_copy import cache_folder, copy_of, open_address

Json = Any


@dataclass(frozen=True)
class Workplace:
    """A lake as a step's coordinator tells it to workers.

    Attributes:
        root: the lake's folder on the coordinator's machine.
        address: of a lake in an object store; None for a folder, which all workers see under the same path.
        machine: name of the coordinator's machine.
    """

    root: Path
    address: str | None
    machine: str

    @classmethod
    def of(cls, root: Path) -> Workplace:
        """The workplace of a lake."""
        copy = copy_of(root)
        return cls(root, None if copy is None else copy.address, socket.gethostname())

    def files(self, task: Json) -> list[Published]:
        """The files of a lake in an object store that a task names."""
        copy = copy_of(self.root)
        if copy is None:
            return []
        if copy.known is None:
            copy.known = _published(self.root)
        return [copy.known[name] for name in dict.fromkeys(_strings(task)) if name in copy.known]

    def learn(self, entry: Entry) -> None:
        """Note what a worker, perhaps on another machine, has published, and keep the working copy within its bound."""
        copy = copy_of(self.root)
        if copy is None:
            return
        for file in entry.files.values():
            copy.expect(file.path, file.bytes)
            if copy.known is not None:
                copy.known[file.path] = file
        copy.expect(entry_path(entry.step, entry.key), 0)
        copy.shrink()

    @contextlib.contextmanager
    def with_files(self, files: Sequence[Published]) -> Iterator[Path]:
        """The lake's folder on the machine at hand, with these files in it until the block ends."""
        root = open_address(self.address).root if self.address is not None and self._elsewhere() else self.root
        with using(root, files):
            yield root
        if copy := copy_of(root):  # in worker processes too: each counts what it has fetched itself
            copy.shrink()

    def _elsewhere(self) -> bool:
        """Whether this is another machine than the coordinator's, or a process with another cache."""
        return socket.gethostname() != self.machine or not self.root.is_relative_to(cache_folder())


def verify_files(root: Path, task: Json) -> None:
    """Check the lake's files that a task names.

    Raises:
        LakeError: one is missing, cut short, or changed.
    """
    published = _published(root)
    for name in filter(published.__contains__, _strings(task)):
        verify(root, published[name])


def _published(root: Path) -> dict[str, Published]:
    """Every file that the lake's manifests name, by path."""
    entries = [entry_from_json(read_json(place)) for place in root.glob("manifests/*/*/*.json")]
    return {file.path: file for entry in entries for file in entry.files.values()}


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
