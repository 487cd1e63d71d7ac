"""The main path, top to bottom: curate, pack into lots, then for each stage plan it, commit it, and train it to its end.

Flows and the command line call these same functions. Whoever runs them again goes on where they stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from curate.curate import curate
from curate.curation import Curation
from curate.engine import Executor
from curate.lots import build_lots, read_lots
from curate.plan import plan_curriculum, training_lots
from curate.stage import check_references, prepare_stage, refuse_replays, stage_folder
from curate.step import Progress
from pipelines.engines import engine
from pipelines.parameters import RunParameters, stage_position
from pipelines.rewind import rewind
from pipelines.trainer import TrainerError, run_trainer
from schemas.errors import PlanError
from schemas.manifest import Snapshot, read_snapshot
from schemas.recipe import Recipe
from schemas.settings import Outcome, StageSettings, read_outcome, read_stage
from schemas.store import TEMPORARY, lock, publish_json, remove, remove_temporary
from schemas.working_copy import copy_of
from train.skips import ASKED, Asked, asked_back

LEFTOVER_SECONDS = 3600
"""A temporary file in the lake's own folder that is older is no living process's."""

Say = Callable[[str], None]
Kind = TypeVar("Kind", bound=Curation)


def run_curriculum(parameters: RunParameters, progress: Progress, say: Say) -> list[Outcome]:
    """Everything: from raw text to the end of the last stage.

    Args:
        parameters: what to run.
        progress: where steps of curation report.
        say: gets lines for people, the trainer's output among them.

    Raises:
        GristmillError: whatever the user can act on; running again goes on where it stopped.
    """
    recipe = parameters.load()
    with lock(run_folder(parameters, recipe) / ".lock", "run"):
        check_replays(parameters, recipe)
        check_plan(parameters, recipe, curate_lake(parameters, recipe, progress))
        outcomes = []
        for position in range(len(recipe.stages)):
            settings = plan_stage(parameters, recipe, position)
            outcomes.append(train_stage(parameters, settings, say))
        return outcomes


def run_folder(parameters: RunParameters, recipe: Recipe) -> Path:
    """The folder of the run in the lake."""
    return parameters.root / "runs" / parameters.run_name(recipe)


def curate_lake(parameters: RunParameters, recipe: Recipe, progress: Progress) -> Snapshot:
    """Curate, tokenise and pack; what the lake already holds is not done again."""
    with lock(parameters.root / ".lock", "curate"):
        sweep(parameters.root)
        with engine(parameters.engine, parameters.workers) as executor:
            state = curation(parameters, recipe, executor, progress, Curation)
            return pack_lots(state, curate(state))


def check_replays(parameters: RunParameters, recipe: Recipe) -> None:
    """Refuse, before anything is curated, what no data that is added could make possible.

    Raises:
        PlanError: the next stage's replay is beyond the budgets.
    """
    if (parameters.root / "snapshots/current.json").is_file():
        refuse_replays(parameters.root, recipe, read_snapshot(parameters.root), parameters.run_name(recipe))


def check_plan(parameters: RunParameters, recipe: Recipe, snapshot: Snapshot) -> None:
    """Refuse stages that the budgets do not hold, before the first of them is trained.

    Raises:
        PlanError: says which stage and source, what was asked and what there is.
    """
    check_references(parameters.root, recipe)
    vocabulary = snapshot.steps["tokenizer"][0].counts["vocabulary"]
    plan_curriculum(recipe, training_lots(read_lots(parameters.root, snapshot).lines), vocabulary)


def sweep(root: Path) -> None:
    """Remove what killed writers left; under the lake's lock. Trainers write to ``runs/`` without it and sweep for themselves.

    Beside the folders lies what builders of the catalogue leave, who need no lock either: a young file may be a living one's.
    """
    for folder in root.iterdir():
        if folder.is_dir() and folder.name != "runs":
            remove_temporary(folder)
        elif folder.name.startswith(TEMPORARY) and folder.stat().st_mtime < time.time() - LEFTOVER_SECONDS:
            folder.unlink()


def curation(parameters: RunParameters, recipe: Recipe, executor: Executor, progress: Progress, kind: type[Kind]) -> Kind:
    """The curation that the parameters ask for."""
    memory = recipe.memory_bytes or psutil.virtual_memory().total // 2
    return kind(parameters.root, recipe, executor, progress, parameters.sample, memory_bytes=memory)


def pack_lots(state: Curation, snapshot: Snapshot) -> Snapshot:
    """Tokenise and pack a curated snapshot and name it the current one."""
    return build_lots(state.root, state.recipe, snapshot, state.executor, state.progress)


def plan_stage(parameters: RunParameters, recipe: Recipe, position: int) -> StageSettings:
    """Commit a stage's part of the run's order and write its resolved file; a stage that has one keeps it.

    Raises:
        PlanError: an earlier stage has not ended, or the budgets do not hold what it asks for.
        LakeError: nothing is curated yet.
    """
    name, stage = parameters.run_name(recipe), recipe.stages[position].name
    for before in range(position):
        if read_outcome(parameters.root / stage_folder(name, recipe, before)) is None:
            fix = f"train it first: {parameters.command('train', recipe.stages[before].name)}"
            raise PlanError(
                f"stage {recipe.stages[before].name!r} before it has not ended", where=f"stage {stage!r} of run {name!r}", fix=fix
            )
    with lock(parameters.root / ".lock", "plan"):
        snapshot = read_snapshot(parameters.root)
        record = {"recipe": recipe.model_dump(mode="json"), "sample": parameters.sample, "snapshot": snapshot.id}
        settings = prepare_stage(parameters.root, recipe, snapshot, name, position)
        publish_json(parameters.root, f"runs/{name}/recipe.json", record)  # of a recipe that was not refused
    if copy_of(parameters.root) is not None and settings.adaptive is None and read_outcome(parameters.root / settings.folder) is None:
        lay_out(parameters.root, settings)
    return settings


def lay_out(root: Path, settings: StageSettings) -> int:
    """Write a planned stage's rows in the order in which they are trained on, unless they are; returns how many there are.

    In an object store this is done for every stage whose order does not change as it goes: its trainer reads each shard once, in sequence.
    """
    from train.stage import Stage
    from train.written import laid_out, write_rows

    stage = Stage(root, settings)
    try:
        return laid_out(stage) or write_rows(stage)
    finally:
        stage.close()


def train_stage(parameters: RunParameters, settings: StageSettings, say: Say) -> Outcome:
    """Train a prepared stage to its end, rewinding where it asks for that after a spike; one that has ended is not trained again."""
    folder = parameters.root / settings.folder
    while True:
        if (asked := asked_back(folder)) is not None:
            settings = _went_back(parameters.root, settings, asked, say)
        try:
            return run_trainer(parameters.root, settings, say, parameters.ranks)
        except TrainerError:
            if asked_back(folder) is None:
                raise


def _went_back(root: Path, settings: StageSettings, asked: Asked, say: Say) -> StageSettings:
    """The stage as it goes on after a spike: rewound, or where that leaves nothing to train on, as it was."""
    try:
        done = rewind(root, settings.run, asked.to, [(asked.to, asked.spike)])
    except PlanError as error:
        remove(root / settings.folder / ASKED)
        say(f"a spike at step {asked.spike} is not rewound: {error.what}")
        return settings
    say(f"a spike at step {asked.spike}: back to step {asked.to}, and on without {done.excluded_rows:,} rows")
    return read_stage(root / settings.folder / "stage.json")


def prepared_stage(parameters: RunParameters, recipe: Recipe, stage: str) -> StageSettings:
    """The resolved file of a stage that has been planned.

    Raises:
        RecipeError: the recipe has no such stage, or it has not been planned.
    """
    position = stage_position(recipe, stage)
    return read_stage(parameters.root / stage_folder(parameters.run_name(recipe), recipe, position) / "stage.json")
