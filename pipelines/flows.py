"""The Prefect flows: thin over the functions that the command line calls; one task a step, the manifest the only truth.

Flows run from a deployment show themselves in Prefect's page; run by ``gristmill run`` they show themselves on its terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from curate.curate import deduplicate, filter_documents, publish, read
from curate.curation import Curation
from curate.step import Shard, Step
from pipelines import run as plain
from pipelines.engines import engine
from pipelines.parameters import RunParameters, StageParameters, stage_position
from pipelines.plan_view import plan_markdown
from pipelines.state import lake_status
from pipelines.surroundings import surroundings
from schemas.manifest import Entry, Snapshot, read_snapshot
from schemas.recipe import Recipe
from schemas.settings import Outcome
from schemas.store import lock


@dataclass
class FlowCuration(Curation):
    """A curation each of whose steps is a Prefect task."""

    def run(self, step: Step, shards: Sequence[Shard]) -> list[Entry]:
        """See ``Curation.run``."""
        entries: list[Entry] = []

        @task(name=step.name, task_run_name=f"{step.name} ({len(shards)} shards)", cache_policy=NO_CACHE)
        def work() -> None:
            entries.extend(Curation.run(self, step, shards))

        work()
        return entries


_CURATION: ContextVar[FlowCuration | None] = ContextVar("curation", default=None)


@contextmanager
def _curation(settings: RunParameters) -> Iterator[FlowCuration]:
    """The curation of the flow around this one, or one that has found again what is read."""
    around = _CURATION.get()
    if around is not None:
        yield around
        return
    with engine(settings.engine, settings.workers) as executor:
        state = plain.curation(settings, settings.load(), executor, surroundings().progress, FlowCuration)
        read(state)
        token = _CURATION.set(state)
        try:
            yield state
        finally:
            _CURATION.reset(token)


@flow(name="filter", flow_run_name="filter {settings.recipe.stem}")
def filter_flow(settings: RunParameters) -> None:
    """Signals of every document, and the rules that each fails."""
    with _curation(settings) as state:
        filter_documents(state)


@flow(name="dedup", flow_run_name="dedup {settings.recipe.stem}")
def dedup_flow(settings: RunParameters) -> None:
    """Exact and near duplicates among the documents that pass the rules."""
    with _curation(settings) as state:
        if "rules" not in state.steps:
            filter_documents(state)
        deduplicate(state)


@flow(name="curate", flow_run_name="curate {settings.recipe.stem}")
def curate(settings: RunParameters) -> str:
    """Read, filter, deduplicate, hold out, tokenise and pack; returns the id of the lake's new snapshot."""
    root = settings.root
    with lock(root / ".lock", "curate"):
        plain.sweep(root)
        with _curation(settings) as state:
            filter_flow(settings)
            dedup_flow(settings)
            snapshot = _packed(state, publish(state))
    create_table_artifact(lake_status(root)["sources"], key="funnel", description=f"Documents by source, snapshot {snapshot.id}")
    emit_event("dataset.published", resource={"prefect.resource.id": f"gristmill.snapshot.{snapshot.id}"}, payload={"lake": str(root)})
    return snapshot.id


def _packed(state: FlowCuration, snapshot: Snapshot) -> Snapshot:
    packed: list[Snapshot] = []

    @task(name="pack", cache_policy=NO_CACHE)
    def work() -> None:
        packed.append(plain.pack_lots(state, snapshot))

    work()
    return packed[0]


@flow(name="stage", flow_run_name="plan {settings.stage}")
def stage(settings: StageParameters) -> str:
    """Plan one stage within the budgets; returns its folder in the lake."""
    recipe = settings.load()
    planned = plain.plan_stage(settings, recipe, stage_position(recipe, settings.stage))
    key = f"plan-{planned.run}-{planned.stage}".replace("_", "-")
    create_markdown_artifact(plan_markdown(settings.root, planned.run), key=key, description="The run's plan so far")
    return planned.folder


@flow(name="train-stage", flow_run_name="train {settings.stage}")
def train_stage(settings: StageParameters) -> str:
    """Train one planned stage to its end in a process of its own; returns how it ended."""
    recipe = settings.load()
    planned = plain.prepared_stage(settings, recipe, settings.stage)
    ended: list[Outcome] = []

    @task(name="train", task_run_name=f"train {settings.stage}", cache_policy=NO_CACHE)
    def work() -> None:
        ended.append(plain.train_stage(settings, planned, surroundings().say))

    work()
    kind = "stage.stopped-early" if ended[0].reason == "early_stop" else "stage.finished"
    resource = {"prefect.resource.id": f"gristmill.stage.{planned.run}.{planned.stage}"}
    emit_event(kind, resource=resource, payload={"reason": ended[0].detail, "loss": ended[0].last_loss})
    return f"{ended[0].reason}: {ended[0].detail}"


@flow(name="curriculum", flow_run_name="{settings.recipe.stem}")
def curriculum(settings: RunParameters) -> dict[str, str]:
    """Everything: curate, then plan and train each stage in order; returns how each ended."""
    recipe: Recipe = settings.load()
    with lock(plain.run_folder(settings, recipe) / ".lock", "run"):
        curate(settings)
        plain.check_plan(settings, recipe, read_snapshot(settings.root))
        ended = {}
        for each in recipe.stages:
            parameters = StageParameters(**settings.model_dump(), stage=each.name)
            stage(parameters)
            ended[each.name] = train_stage(parameters)
    return ended
