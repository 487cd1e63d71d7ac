"""The model that a run starts from: a Hugging Face folder, copied into the lake under the hash of what is in it."""

from __future__ import annotations

import shutil
from pathlib import Path

from schemas.errors import RecipeError
from schemas.manifest import fingerprint
from schemas.store import checksum, publish

FOLDER = "models"


def take_in(root: Path, folder: Path) -> str:
    """Copy ``config.json`` and every safetensors file of a folder into the lake, once; returns the copy's place in it.

    Raises:
        RecipeError: there is no such folder, or it has no config or no safetensors.
    """
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    if not files[0].is_file() or len(files) < 2:
        what = "there is no config.json" if not files[0].is_file() else "there are no safetensors files"
        raise RecipeError(what, where=f"start_from: {folder}", fix="name a local folder of a Hugging Face model, weights as safetensors")
    place = f"{FOLDER}/{fingerprint([[file.name, checksum(file)] for file in files])[:32]}"
    for file in reversed(files):  # the config last: with it the copy is whole
        if not (root / place / file.name).is_file():
            publish(root, f"{place}/{file.name}", lambda path, file=file: _copy(file, path))  # type: ignore[misc]
    return place


def _copy(source: Path, path: Path) -> None:
    shutil.copyfile(source, path)
