"""What a run is asked to do: one typed model behind the command line's options and the form in Prefect's page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from schemas.errors import GristmillError, RecipeError, nearest
from schemas.recipe import Recipe
from schemas.recipe_file import load_recipe
from schemas.stages import Stage
from schemas.store import open_lake, spelled
from schemas.strict import NAME

Lake = Annotated[str, BeforeValidator(spelled), Field(min_length=1)]


class RunParameters(BaseModel):
    """Which recipe, in which lake, with what changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    recipe: Path
    """The recipe's YAML file."""
    lake: Lake = "lake"
    """The lake's folder, made when absent; or `s3://bucket/prefix`."""
    changes: tuple[str, ...] = ()
    """Changes to the recipe, each `dotted.field=value`."""
    workers: int = Field(default=0, ge=0, le=4096)
    """Shards worked on at once; 0 is one for each core."""
    engine: Literal["local", "dask"] = "local"
    """Where shards are worked on: here, or on the Dask cluster of DASK_SCHEDULER_ADDRESS, whose workers must see the lake."""
    run: str | None = Field(default=None, pattern=NAME)
    """Name of the training run; the recipe's own name by default. Runs on one lake have budgets of their own."""
    sample: float = Field(default=1.0, gt=0, le=1)
    """Share of documents to run on, drawn by hash of doc_id; token budgets of stages shrink alike."""
    ranks: int = Field(default=1, ge=1, le=4096)
    """Training processes; more than one are started by torchrun."""

    @field_validator("recipe")
    @classmethod
    def _is_file(cls, recipe: Path) -> Path:
        return _existing(recipe)

    @property
    def root(self) -> Path:
        """The folder in which the lake is read and written."""
        return open_lake(self.lake)

    def load(self) -> Recipe:
        """Read the recipe with its changes, stages cut down to the sample.

        Raises:
            RecipeError: the recipe cannot be used.
        """
        recipe = load_recipe(self.recipe, self.changes)
        if self.sample < 1:
            stages = [_sampled(stage, self.sample, recipe) for stage in recipe.stages]
            recipe = recipe.model_copy(update={"stages": stages})
        return recipe

    def run_name(self, recipe: Recipe) -> str:
        """Folder of the run under ``runs/``."""
        return self.run or (recipe.name if self.sample == 1 else f"{recipe.name}-sample")

    def command(self, name: str, *words: str) -> str:
        """A command line for the same recipe and lake (and run, of commands that have one), to be copied from a message."""
        lake = [] if self.lake == "lake" else ["--lake", self.lake]
        run = ["--run", self.run] if self.run and name != "curate" else []
        sample = [] if self.sample == 1 else ["--sample", repr(self.sample)]
        changes = [word for change in self.changes for word in ("--set", change)]
        return shlex.join(["gristmill", name, str(self.recipe), *words, *changes, *sample, *lake, *run])


class StageParameters(RunParameters):
    """A run's parameters and one of its stages."""

    stage: str = Field(pattern=NAME)
    """Stage name; every earlier stage must have ended."""


class AblateParameters(BaseModel):
    """Two recipes to compare, and a third whose held-out documents belong to neither."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    first: Path
    """The recipe's YAML file; the raw one, whose tokenizer both get."""
    second: Path
    """The recipe to compare it with."""
    neutral: Path
    """A recipe whose held-out documents belong to neither."""
    lake: Lake = "ablation"
    """A lake of the comparison's own."""
    changes: tuple[str, ...] = ()
    """Changes to the first two recipes, each `dotted.field=value`."""
    seeds: int = Field(default=3, ge=3)
    """Trainings of each recipe."""
    tokens: int | None = Field(default=None, gt=0)
    """Train each on so many, sources in proportion, instead of by the recipes' own stages."""
    workers: int = Field(default=0, ge=0, le=4096)
    """Shards worked on at once; 0 is one for each core."""

    @field_validator("first", "second", "neutral")
    @classmethod
    def _are_files(cls, recipe: Path) -> Path:
        return _existing(recipe)

    def arms(self) -> tuple[RunParameters, RunParameters, RunParameters]:
        """The parameters of the first recipe, of the second, and of the neutral one."""
        first, second = (
            RunParameters(recipe=recipe, lake=self.lake, changes=self.changes, workers=self.workers) for recipe in (self.first, self.second)
        )
        return first, second, RunParameters(recipe=self.neutral, lake=self.lake, workers=self.workers)


class ReportParameters(BaseModel):
    """A lake and the report's file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    lake: Lake = "lake"
    """The lake's folder, or `s3://bucket/prefix`."""
    target: Path = Path("report.html")
    """The file to write; one that is there is replaced."""


class CleanupParameters(BaseModel):
    """A lake and what of its garbage goes."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    lake: Lake = "lake"
    """The lake's folder, or `s3://bucket/prefix`."""
    days: float = Field(default=7, ge=0)
    """What was written in so many days stays: an interrupted curation goes on from it."""
    dry_run: bool = False
    """Delete nothing; only count."""


def _existing(recipe: Path) -> Path:
    if not recipe.is_file():
        raise ValueError(f"no such recipe: {recipe.absolute()}")
    return recipe


def share(text: str) -> float:
    """Read a share such as 1% or 0.01.

    Raises:
        GristmillError: not a number above 0 and at most 1.
    """
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise GristmillError(f"{text!r} is not a share such as 1% or 0.01", where="--sample", fix="give more than 0 and at most 100%")
    return value


def stage_position(recipe: Recipe, name: str) -> int:
    """Place of a stage in the curriculum.

    Raises:
        RecipeError: the recipe has no such stage.
    """
    names = [stage.name for stage in recipe.stages]
    if name not in names:
        raise RecipeError(f"no stage {name!r}{nearest(name, names)}" if names else "the recipe has no stages", where=recipe.name)
    return names.index(name)


def _sampled(stage: Stage, share: float, recipe: Recipe) -> Stage:
    if isinstance(stage.tokens, str):
        return stage.model_copy(update={"tokens": "rest", "replay": None, "length_warmup": {}})  # shares of a number of tokens
    least = recipe.training.batch_rows * recipe.pack.row_length
    return stage.model_copy(update={"tokens": min(stage.tokens, max(least, round(stage.tokens * share)))})
