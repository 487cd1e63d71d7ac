"""The Prefect flows: thin over the functions that the command line calls; one task a step, the manifest the only truth.

Flows run from a deployment show themselves in Prefect's page; run by ``gristmill run`` they show themselves on its terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from prefect import flow, tags, task
from prefect.cache_policies import NO_CACHE

from curate.curate import deduplicate, filter_documents, publish, read
from curate.curation import Curation
from curate.step import Shard, Step
from pipelines import page
from pipelines import run as plain
from pipelines.engines import engine
from pipelines.parameters import AblateParameters, CleanupParameters, ReportParameters, RunParameters, StageParameters, stage_position
from pipelines.snapshots import collect_garbage, garbage_line
from pipelines.surroundings import surroundings
from schemas.errors import InUse
from schemas.manifest import Entry, Snapshot, current_id, read_snapshot
from schemas.recipe import Recipe
from schemas.settings import Outcome
from schemas.store import lock, open_lake

WAIT_SECONDS = 10.0

T = TypeVar("T")


def _when_free(work: Callable[[], T]) -> T:
    """Do what begins with taking the lake's lock; on Prefect's page wait while another run has it, as a night's run meets a curriculum."""
    around = surroundings()
    while True:
        try:
            return work()
        except InUse as error:
            if not around.on_page:
                raise
            around.say(f"{error.where} is {error.what}: waiting until it is free")
            time.sleep(WAIT_SECONDS)


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


Json = Any

TAG = "gristmill"
"""On every run, those inside others too: automations.yaml looks for it, and a killed run leaves none of them Running."""

_CURATION: ContextVar[FlowCuration | None] = ContextVar("curation", default=None)
_INSIDE: ContextVar[str] = ContextVar("inside", default="curate")


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
    """Read, filter, deduplicate, hold out, tokenise and pack; returns the id of the lake's snapshot."""
    root = settings.root
    with ExitStack() as held:
        _when_free(lambda: held.enter_context(lock(root / ".lock", "curate")))
        plain.sweep(root)
        before = current_id(root)
        with _curation(settings) as state, tags(TAG, "curation"):
            filter_flow(settings)
            dedup_flow(settings)
            try:
                curated = publish(state)
            finally:
                page.tell_alarms(state)
            snapshot = _packed(state, curated)
    page.show_curated(settings, snapshot)
    if snapshot.id != before:
        page.tell_published(settings, snapshot, _INSIDE.get())
    return snapshot.id


@flow(name="ingest", flow_run_name="ingest {settings.recipe.stem}")
def ingest(settings: RunParameters) -> str:
    """Add files that the lake has not seen as a generation of their own; returns the snapshot's id, the same when there are none."""
    with tags(TAG, "curation"):
        return curate(settings.model_copy(update={"changes": (*settings.changes, "generations=append")}))


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
    planned = _when_free(lambda: plain.plan_stage(settings, recipe, stage_position(recipe, settings.stage)))
    page.show_plan(settings.root, planned.run)
    return planned.folder


@flow(name="train-stage", flow_run_name="train {settings.stage}")
def train_stage(settings: StageParameters) -> str:
    """Train one planned stage to its end in a process of its own; returns how it ended."""
    recipe = settings.load()
    planned = plain.prepared_stage(settings, recipe, settings.stage)
    ended: list[Outcome] = []

    @task(name="train", task_run_name=f"train {settings.stage}", cache_policy=NO_CACHE)
    def work() -> None:
        say = surroundings().trainer(page.key("progress-train", planned.run, planned.stage))
        ended.append(plain.train_stage(settings, planned, say))

    work()
    page.show_stage(settings.root, planned, ended[0])
    return f"{ended[0].reason}: {ended[0].detail}"


@flow(name="curriculum", flow_run_name="{settings.recipe.stem}")
def curriculum(settings: RunParameters) -> dict[str, str]:
    """Everything: curate, then plan and train each stage in order; returns how each ended."""
    recipe: Recipe = settings.load()
    with lock(plain.run_folder(settings, recipe) / ".lock", "run"):
        plain.check_replays(settings, recipe)
        token = _INSIDE.set("curriculum")
        try:
            with tags(TAG, "curation"):
                curate(settings)
        finally:
            _INSIDE.reset(token)
        plain.check_plan(settings, recipe, read_snapshot(settings.root))
        ended = {}
        for each in recipe.stages:
            parameters = StageParameters(**settings.model_dump(), stage=each.name)
            with tags(TAG, "training"):
                stage(parameters)
                ended[each.name] = train_stage(parameters)
    if surroundings().on_page:
        page.link_report(settings.root, surroundings().say)
    return ended


@flow(name="ablate", flow_run_name="ablate {settings.first.stem} {settings.second.stem}")
def ablate(settings: AblateParameters) -> dict[str, str]:
    """Compare two recipes at equal compute; returns what each held-out set shows."""
    from pipelines.ablation import ablate as compare

    first, second, neutral = settings.arms()
    found: list[dict[str, Json]] = []

    @task(name="ablate", cache_policy=NO_CACHE)
    def work() -> None:
        around = surroundings()
        found.append(compare((first, second), neutral, settings.seeds, settings.tokens, around.progress, around.say))

    work()
    page.show_ablation(open_lake(settings.lake), found[0])
    return {line["dataset"]: line["words"] for line in found[0]["differences"]}


@flow(name="report", flow_run_name="report {settings.lake}")
def report(settings: ReportParameters) -> str:
    """Write what the lake and its runs came to as one HTML file; returns its path."""
    from pipelines.report import write_report

    target = write_report(open_lake(settings.lake), settings.target.absolute())
    page.show_report(target)
    return str(target)


@flow(name="cleanup", flow_run_name="cleanup {settings.lake}")
def cleanup(settings: CleanupParameters) -> str:
    """Delete files that no snapshot and no run names; returns what was deleted, in words."""
    garbage = _when_free(lambda: collect_garbage(open_lake(settings.lake), settings.days, settings.dry_run))
    line = garbage_line(garbage, settings.days, settings.dry_run)
    surroundings().say(line)
    return line
