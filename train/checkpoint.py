"""Checkpoints that never lie.

Failure model. A checkpoint is a folder. Its files are written in a staging folder beside it, each is fsynced, then ``manifest.json`` with
their sizes and checksums, then the staging folder is renamed and its parent fsynced: a folder under a final name is whole, whenever the
process dies. Older checkpoints are removed only after that, by a rename and then a deletion. Damage from elsewhere is found by the
checksums; the newest checkpoint that passes is used, and none being left where some were is an error, never a fresh start.

Tensors are stored by ``torch.save`` and read with ``weights_only=True``, which runs no code of the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from schemas.errors import LakeError
from schemas.store import TEMPORARY, checksum, sync_folder

_NAME = re.compile(r"a(\d+)-s(\d+)")
_FOLDER = "checkpoints"
FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified: its path in the lake, and what the trainer saved as JSON."""

    root: Path
    path: str
    state: dict[str, Any]

    def tensors(self, name: str) -> Any:
        """Load ``model`` or ``optimizer``."""
        return torch.load(self.root / self.path / f"{name}.pt", map_location="cpu", weights_only=True)


def checkpoint_path(folder: str, attempt: int, step: int) -> str:
    """Where an attempt's checkpoint before a step lies, relative to the lake."""
    return f"{folder}/{_FOLDER}/a{attempt:04d}-s{step:08d}"


def save(root: Path, path: str, tensors: dict[str, Any], state: dict[str, Any]) -> None:
    """Write a checkpoint durably.

    Raises:
        LakeError: the disk is full or not writable; no checkpoint is left under the name.
    """
    final = root / path
    staging = final.parent / f"{TEMPORARY}{secrets.token_hex(8)}-{final.name}"
    try:
        staging.mkdir(parents=True)
        for name, value in tensors.items():
            torch.save(value, staging / f"{name}.pt")
        (staging / "state.json").write_text(json.dumps({"format": FORMAT, **state}, sort_keys=True, indent=1), encoding="utf-8")
        files = sorted(staging.iterdir())
        manifest = {file.name: {"bytes": file.stat().st_size, "checksum": checksum(file)} for file in files}
        (staging / "manifest.json").write_text(json.dumps(manifest, sort_keys=True, indent=1), encoding="utf-8")
        for file in [*files, staging / "manifest.json"]:
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        sync_folder(staging)
        staging.rename(final)
        sync_folder(final.parent)
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
        shutil.rmtree(staging, ignore_errors=True)
        raise LakeError(
            f"cannot save a checkpoint: {error}", where=str(final), fix="free space or check permissions, then run again"
        ) from error


def load(root: Path, path: str) -> Checkpoint:
    """Verify and open a checkpoint.

    Raises:
        LakeError: it is missing, damaged, or of another format.
    """
    folder = root / path
    if not folder.is_dir():
        raise LakeError("no such checkpoint", where=str(folder), fix="name one that exists, or train the stage that makes it")
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
        LakeError: there are checkpoints, and none can be used.
    """
    faults: list[LakeError] = []
    for path in saved(root, folder):
        try:
            return load(root, path), faults
        except LakeError as error:
            faults.append(error)
    if faults:
        raise LakeError(
            f"none of the stage's {len(faults)} checkpoints can be used; the newest: {faults[0].what}",
            where=str(root / folder / _FOLDER),
            fix="restore one, or delete this folder to train the stage from its start",
        )
    return None, faults


def prune(root: Path, folder: str, keep: set[str], last: int) -> None:
    """Remove all checkpoints of a stage but the newest ``last`` and those in ``keep``, and what killed writers left."""
    for path in saved(root, folder)[last:]:
        if path not in keep:
            gone = root / path
            with contextlib.suppress(OSError):
                gone = gone.rename(gone.parent / f"{TEMPORARY}{secrets.token_hex(8)}-{gone.name}")
            shutil.rmtree(gone, ignore_errors=True)
    parent = root / folder / _FOLDER
    for leftover in parent.glob(f"{TEMPORARY}*") if parent.is_dir() else ():
        shutil.rmtree(leftover, ignore_errors=True)
