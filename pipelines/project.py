"""Starts a project: a folder with a recipe and those to compare it with, ``prefect.yaml`` and a README that run as they are."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from schemas.errors import GristmillError

TEMPLATES = ("recipe.yaml", "raw.yaml", "neutral.yaml", "prefect.yaml", "automations.yaml", "README.md")


def init_project(folder: Path) -> list[Path]:
    """Write the project's files.

    Raises:
        GristmillError: one of them exists already, or the folder is a lake; nothing is written.
    """
    if (folder / "manifests").is_dir() or (folder / "snapshots").is_dir():
        raise GristmillError("this is a lake", where=str(folder), fix="choose a folder of the project's own")
    targets = [folder / name for name in TEMPLATES]
    for target in targets:
        if target.exists():
            raise GristmillError("exists already", where=str(target), fix="init writes new files only: choose an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in zip(TEMPLATES, targets, strict=True):
        target.write_text(files("pipelines").joinpath("templates", name).read_text(encoding="utf-8"), encoding="utf-8")
    return targets
