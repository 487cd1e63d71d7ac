"""Commands for a new project or machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pipelines.commands.options import LAKE, Json, Lake, show
from schemas.store import open_lake


def init(folder: Annotated[Path, Parameter(help="The project's folder.")] = Path(), /) -> None:
    """Start a project: a recipe, deployments, an automation and a README that run as they are."""
    from pipelines.project import init_project

    for path in init_project(folder):
        print(path)


def schema(path: Annotated[Path, Parameter(help="File to write.")] = Path("schemas/recipe.schema.json"), /) -> None:
    """Write the JSON Schema of recipes, for editors."""
    import json

    from schemas.recipe_file import json_schema

    path.write_text(json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def doctor(
    *,
    deep: Annotated[bool, Parameter(negative=(), help="Read every file of the snapshot and compare checksums.")] = False,
    lake: Lake = LAKE,
    json: Json = False,
) -> None:
    """Check environment, GPU, disk, locks, unfinished steps and stages, and the lake's files; exit code 2 when something is wrong."""
    from pipelines.doctor import BAD, examine, print_findings
    from pipelines.progress import counted
    from schemas.errors import GristmillError

    with counted("checksums" if deep else "sizes", "files", json) as tell:
        found = examine(open_lake(lake), deep, tell)
    show(found, json, print_findings)
    if wrong := [line["what"] for line in found if line["state"] == BAD]:
        raise GristmillError(f"something is wrong with: {', '.join(wrong)}", where="doctor")
