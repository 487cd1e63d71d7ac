"""Options that commands share, and how a command reads a recipe and shows a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from cyclopts import Parameter
from rich.console import Console

from pipelines import tables

if TYPE_CHECKING:
    from pipelines.parameters import RunParameters

Lake = Annotated[str, Parameter(name=["--lake"], env_var="GRISTMILL_LAKE", help="The lake: a folder, or s3://BUCKET/PREFIX.")]
Changes = Annotated[
    tuple[str, ...],
    Parameter(
        name=["--set"],
        negative=(),
        consume_multiple=False,
        help="Change a field of the recipe: --set a.b=c (paths are from this folder); may be repeated.",
    ),
]
Workers = Annotated[int, Parameter(name=["--workers"], help="Shards worked on at once; 0 is one for each core.")]
Engine = Annotated[Literal["local", "dask"], Parameter(name=["--engine"], help="Where shards are worked on: here, or on a Dask cluster.")]
Run = Annotated[str | None, Parameter(name=["--run"], help="Name of the training run; the recipe's own name by default.")]
Sample = Annotated[str, Parameter(name=["--sample"], help="Share of the documents to run on, for example 1%.")]
Ranks = Annotated[int, Parameter(name=["--ranks"], help="Training processes; more than one are started by torchrun.")]
Json = Annotated[bool, Parameter(name=["--json"], negative=(), help="Print JSON.")]
Recipe = Annotated[Path, Parameter(help="The recipe's YAML file.")]
T = TypeVar("T")
LAKE = "lake"


def read_parameters(recipe: Path, lake: str, changes: tuple[str, ...], sample: str, **others: object) -> RunParameters:
    """Check what a command was given.

    Raises:
        GristmillError: an option has no sense, named.
    """
    from pydantic import ValidationError

    from pipelines.parameters import RunParameters, share
    from schemas.errors import GristmillError

    values = {"recipe": recipe, "lake": lake, "changes": changes, "sample": share(sample), **others}
    try:
        return RunParameters.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        option = f"--{first['loc'][0]}" if first["loc"][0] != "recipe" else "RECIPE"
        raise GristmillError(first["msg"].removeprefix("Value error, "), where=option, fix="gristmill run --help") from error


def show(value: T, json: bool, draw: Callable[[T, Console], None]) -> None:
    """Print a report as JSON or for people."""
    if json:
        import json as codec

        print(codec.dumps(value, ensure_ascii=False, indent=1, default=str))
    else:
        draw(value, tables.console())
