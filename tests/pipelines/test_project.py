"""The files that `gristmill init` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.cli import run_command
from pipelines.project import TEMPLATES, init_project
from schemas.errors import GristmillError
from schemas.recipe_file import load_recipe

ROOT = Path(__file__).parent.parent.parent


def test_a_project_has_the_repositorys_deployments_for_its_own_recipe(tmp_path: Path) -> None:
    assert run_command(["init", str(tmp_path / "new")]) == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(TEMPLATES)
    ours = (ROOT / "prefect.yaml").read_text(encoding="utf-8")
    written = (tmp_path / "new/prefect.yaml").read_text(encoding="utf-8")
    assert written == ours.replace("recipes/python.yaml", "recipe.yaml").replace("recipes/", "")
    names = {stage.name for stage in load_recipe(tmp_path / "new/recipe.yaml").stages}
    assert "code" in names & {stage.name for stage in load_recipe(ROOT / "recipes/python.yaml").stages}, "deployments name this stage"


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "automations.yaml").write_text("mine")
    with pytest.raises(GristmillError, match="exists already"):
        init_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["automations.yaml"]


def test_a_lake_is_no_project(lake: Path) -> None:
    with pytest.raises(GristmillError, match="this is a lake"):
        init_project(lake)
