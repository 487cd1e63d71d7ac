"""Checkpoints that never lie.

Failure model. A checkpoint is a folder. Its files are written in a staging folder beside it, each is fsynced, then ``manifest.json`` with
their sizes and checksums, then the staging folder is renamed and its parent fsynced: a folder under a final name is whole, whenever the
process dies. Older checkpoints are removed only after that, by a rename and then a deletion. Damage from elsewhere is found by the
checksums; the newest checkpoint that passes is used, and none being left where some were is an error, never a fresh start.

Tensors are stored by ``torch.save`` and read with ``weights_only=True``, which runs no code of the file; under sharding each rank writes
a part of its own (``train.sharding``), and whoever loads, on any number of ranks, sees whole tensors.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from schemas.errors import LakeError, StoreError
from schemas.store import TEMPORARY, checksum, folder_here, remove_remote, send_folder, sync_folder

_NAME = re.compile(r"a(\d+)-s(\d+)")
_FOLDER = "checkpoints"
FORMAT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified: its path in the lake, and what the trainer saved as JSON."""

    root: Path
    path: str
    state: dict[str, Any]

    def tensors(self, name: str) -> Any:
        """Load ``model`` or ``optimizer``, whole, however many ranks saved it."""
        folder, parts = self.root / self.path, self.state["parts"]
        if parts == 1:
            return torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=True)
        from train.sharding import join

        files = [folder / f"{name}-{part:05d}.pt" for part in range(parts)]
        return join([torch.load(file, map_location="cpu", weights_only=True, mmap=True) for file in files])


def checkpoint_path(folder: str, attempt: int, step: int) -> str:
    """Where an attempt's checkpoint before a step lies, relative to the lake."""
    return f"{folder}/{_FOLDER}/a{attempt:04d}-s{step:08d}"


def write_part(staging: Path, tensors: dict[str, Any], part: int, parts: int) -> None:
    """Write one rank's tensors into a staging folder durably, then ``part-<n>.json``, which says so.

    Raises:
        LakeError: the disk is full or not writable; the staging folder is gone.
    """
    with _staged(staging):
        staging.mkdir(parents=True, exist_ok=True)
        files = {}
        for name, value in tensors.items():
            file = staging / (f"{name}.pt" if parts == 1 else f"{name}-{part:05d}.pt")
            torch.save(value, file)
            files[file.name] = _entry(file)
        note = staging / f"{TEMPORARY}part-{part:05d}.json"
        note.write_text(json.dumps(files), encoding="utf-8")
        note.rename(staging / f"part-{part:05d}.json")


def publish_parts(staging: Path, final: Path, state: dict[str, Any], parts: int, given_up: Callable[[], bool] = lambda: False) -> None:
    """Wait for all parts, or until ``given_up()``; write the state and the manifest, and give the folder its name.

    Raises:
        LakeError: the disk is full or not writable, or a part is missing; no checkpoint is left under the name.
    """
    with _staged(staging):
        notes = [staging / f"part-{part:05d}.json" for part in range(parts)]
        while not all(note.is_file() for note in notes):
            if not staging.is_dir():
                raise OSError("another rank could not write its part")
            if given_up():
                raise OSError("the run ended before another rank had written its part")
            time.sleep(0.01)
        manifest = {name: entry for note in notes for name, entry in json.loads(note.read_text(encoding="utf-8")).items()}
        text = json.dumps({"format": FORMAT, "parts": parts, **state}, sort_keys=True, indent=1)
        (staging / "state.json").write_text(text, encoding="utf-8")
        manifest["state.json"] = _entry(staging / "state.json")
        (staging / "manifest.json").write_text(json.dumps(manifest, sort_keys=True, indent=1), encoding="utf-8")
        _entry(staging / "manifest.json")
        for note in notes:
            note.unlink()
        sync_folder(staging)
        send_folder(staging, final)
        staging.rename(final)
        sync_folder(final.parent)


def save(root: Path, path: str, tensors: dict[str, Any], state: dict[str, Any]) -> None:
    """Write a checkpoint of whole tensors durably, at once.

    Raises:
        LakeError: the disk is full or not writable; no checkpoint is left under the name.
    """
    staging = (root / path).parent / f"{TEMPORARY}{secrets.token_hex(8)}-{Path(path).name}"
    write_part(staging, tensors, 0, 1)
    publish_parts(staging, root / path, state, 1)


@contextlib.contextmanager
def _staged(staging: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
        shutil.rmtree(staging, ignore_errors=True)
        raise LakeError(
            f"cannot save a checkpoint: {error}", where=str(staging.parent), fix="free space or check permissions, then run again"
        ) from error


def _entry(file: Path) -> dict[str, Any]:
    """Make a file durable; its size and checksum."""
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
    return {"bytes": file.stat().st_size, "checksum": checksum(file)}


def load(root: Path, path: str) -> Checkpoint:
    """Verify and open a checkpoint.

    Raises:
        LakeError: it is missing, damaged, or of another format.
    """
    folder = root / path
    if not folder.is_dir():
        raise LakeError("no such checkpoint", where=str(folder), fix="name one that exists, or train the stage that makes it")
    folder_here(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        for name, file in manifest.items():
            if (folder / name).stat().st_size != file["bytes"] or checksum(folder / name) != file["checksum"]:
                raise LakeError(f"{name} was changed or cut short", where=str(folder), fix="delete this checkpoint")
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LakeError(f"the checkpoint is damaged: {error}", where=str(folder), fix="delete it") from error
    if state["format"] != FORMAT:
        raise LakeError(f"a checkpoint of format {state['format']}, this version reads {FORMAT}", where=str(folder))
    return Checkpoint(root, path, state)


def saved(root: Path, folder: str) -> list[str]:
    """Paths of a stage's checkpoints, the newest first: later attempts before earlier ones, since they went on from them."""
    parent = root / folder / _FOLDER
    names = [path.name for path in parent.iterdir() if _NAME.fullmatch(path.name)] if parent.is_dir() else []
    return [f"{folder}/{_FOLDER}/{name}" for name in sorted(names, reverse=True)]


def newest(root: Path, folder: str) -> tuple[Checkpoint | None, list[LakeError]]:
    """Open a stage's newest whole checkpoint, and say what was wrong with newer ones; None where there never was one.

    Raises:
        LakeError: there are checkpoints, and none can be used; or the lake's object store does not give one.
    """
    faults: list[LakeError] = []
    for path in saved(root, folder):
        try:
            return load(root, path), faults
        except StoreError:
            raise  # it may be whole: an older one is no answer to a network that is down
        except LakeError as error:
            faults.append(error)
    if faults:
        raise LakeError(
            f"none of the stage's {len(faults)} checkpoints can be used; the newest: {faults[0].what}",
            where=str(root / folder / _FOLDER),
            fix="restore one, or delete this folder to train the stage from its start",
        )
    return None, faults


def prune(root: Path, folder: str, keep: set[str], last: int, every: int = 0) -> None:
    """Remove what killed writers left and all checkpoints of a stage but the newest ``last``, those in ``keep``, and those before steps
    that are multiples of ``every``.
    """
    for path in saved(root, folder)[last:]:
        if path not in keep and not (every and int(path[-8:]) % every == 0):
            gone = root / path
            remove_remote(gone)
            with contextlib.suppress(OSError):
                gone = gone.rename(gone.parent / f"{TEMPORARY}{secrets.token_hex(8)}-{gone.name}")
            shutil.rmtree(gone, ignore_errors=True)
    parent = root / folder / _FOLDER
    for leftover in parent.glob(f"{TEMPORARY}*") if parent.is_dir() else ():
        shutil.rmtree(leftover, ignore_errors=True)
