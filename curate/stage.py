"""Stages: plans the next stage of a run from how the earlier ones ended, and publishes what the trainer reads.

Failure model. A stage is prepared by three publications, each whole or absent (``schemas.store``): the plan's rows, the run's list of
segments with the stage's appended, then ``stage.json``; the trainer starts from the last. All three are functions of recipe, lots,
earlier segments and earlier outcomes, so that after a kill between them the same call publishes the same bytes again. The list of
segments is only appended to. What was planned is never planned anew: a recipe that would plan it otherwise is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.budget import States, fresh, replay
from curate.choices import choice_sets
from curate.earlier import Earlier, last_shares
from curate.lots import LotTable, read_lots
from curate.mixture import adaptive_settings, left_by_source, starting_shares
from curate.model_size import parameters
from curate.plan import Place, StagePlan, plan_stage, refuse_replay, training_lots
from curate.start import take_in
from curate.tokenizer import Tokenizer, load_tokenizer
from schemas.adaptive import AdaptiveSettings
from schemas.errors import PlanError
from schemas.manifest import Snapshot
from schemas.recipe import Recipe
from schemas.segments import (
    Allotment,
    Segment,
    allotments,
    dealt,
    ends,
    read_segments,
    segment_at,
    segments_hash,
    stage_segments,
    unused,
    used,
    write_segments,
)
from schemas.settings import Outcome, StageSettings, read_outcome, read_stage
from schemas.stages import Stage
from schemas.store import publish, publish_json
from schemas.strict import NAME
from schemas.tables import PLANS


def run_folder(run: str) -> str:
    """A run's folder, relative to the lake."""
    return f"runs/{run}"


def stage_folder(run: str, recipe: Recipe, position: int) -> str:
    """A stage's folder, relative to the lake."""
    return f"{run_folder(run)}/{position}-{recipe.stages[position].name}"


def segments_path(run: str) -> str:
    """A run's list of segments, relative to the lake."""
    return f"{run_folder(run)}/segments.json"


@dataclass(frozen=True)
class Standing:
    """Where a run stands before a stage.

    Attributes:
        past: segments of the earlier stages.
        states: what is left of each lot.
        next_row: position in the run's order of the stage's first row.
        next_step: its first optimizer step.
        earlier: what the stage takes over.
    """

    past: tuple[Segment, ...]
    states: States
    next_row: int
    next_step: int
    earlier: Earlier


def prepare_stage(root: Path, recipe: Recipe, snapshot: Snapshot, run: str, position: int) -> StageSettings:
    """Plan a stage of a run and publish its segments, plan rows and resolved settings; the same again when it was prepared before.

    Args:
        root: the lake.
        recipe: the recipe.
        snapshot: a snapshot with lots.
        run: run name.
        position: place of the stage in the curriculum, from 0.

    Raises:
        PlanError: an earlier stage has not ended, the budgets do not hold what the stage asks for, or the past was changed.
    """
    if not re.fullmatch(NAME, run):
        raise PlanError(f"{run!r} is no run name", where="--run", fix="begin with a small letter; then small letters, digits, _ and -")
    if not 0 <= position < len(recipe.stages):
        raise PlanError(
            f"there is no stage {position}", where=f"recipe {recipe.name!r}", fix=f"it has {len(recipe.stages)}, counted from 0"
        )
    table = read_lots(root, snapshot)
    path = root / stage_folder(run, recipe, position) / "stage.json"
    old = read_stage(path) if path.is_file() else None
    if old is not None:  # what the lake got since then does not change what was planned
        table = table.until(old.generations)
    standing = stand(root, recipe, table, run, position, old)
    tokenizer = load_tokenizer(root / snapshot.steps["tokenizer"][0].files["tokenizer"].path)
    stage = recipe.stages[position]
    plan = plan_stage(stage, standing.states, stage_place(recipe, position, standing, tokenizer.vocabulary), standing.earlier)
    settings = replace(_settings(root, recipe, tokenizer, table, run, position, standing, plan), choices=choice_sets(snapshot))
    every = read_segments(root / segments_path(run))
    mine = every[settings.first_segment :][: len(plan.segments)] if old else every[settings.first_segment :]
    where = f"stage {plan.stage!r} of run {run!r}"
    if old is not None:
        appended = {"segments_hash", "last_segment", "lots"} if old.last_segment > settings.last_segment else set()
        _refuse_change(old, settings, where, appended)
    if mine and mine != list(plan.segments):
        _refuse([f"segments: {segments_hash(mine)[:8]}, now {segments_hash(plan.segments)[:8]}"], where)
    if old is not None and mine:
        return old
    rows = plan_rows(run, position, len(standing.past), plan.segments, plan.before)
    publish(root, f"{settings.folder}/plan.parquet", lambda temporary: pq.write_table(rows, temporary, compression="zstd"), rows.num_rows)
    if not mine:
        write_segments(root, segments_path(run), [*standing.past, *plan.segments])
    publish_json(root, f"{settings.folder}/stage.json", asdict(settings))
    return settings


def stand(root: Path, recipe: Recipe, table: LotTable, run: str, position: int, prepared: StageSettings | None = None) -> Standing:
    """Where a run stands before a stage, from its segments and its earlier stages' outcomes.

    Args:
        root: the lake.
        recipe: the recipe.
        table: the lake's lots.
        run: run name.
        position: the stage's place in the curriculum.
        prepared: its resolved file, where it has been prepared.

    Raises:
        PlanError: an earlier stage has not ended, or the past was changed.
    """
    segments = read_segments(root / segments_path(run))
    _same_curriculum(segments, recipe, run)
    past = segments[: prepared.first_segment] if prepared else _before(segments, recipe.stages[position].name)
    next_row = next_step = 0
    heldout: dict[str, float] = {}
    for earlier in range(position):
        name, folder = recipe.stages[earlier].name, stage_folder(run, recipe, earlier)
        outcome = read_outcome(root / folder)
        if outcome is None:
            raise PlanError(f"stage {name!r} has not ended yet", where=f"run {run!r}", fix="train it first: stages follow one another")
        _same_return(outcome, stage_segments(segments, read_stage(root / folder / "stage.json")), f"{folder}/outcome.json")
        next_row, next_step, heldout = outcome.next_row, outcome.next_step, outcome.heldout
    states = replay(fresh(training_lots(table.lines)), past, next_row)
    return Standing(tuple(past), states, next_row, next_step, taken_over(root, past, next_row, heldout, recipe.stages[position]))


def refuse_replays(root: Path, recipe: Recipe, snapshot: Snapshot, run: str) -> None:
    """Refuse, before more is curated, a replay by the next stage of a run that the lake's lots do not hold.

    What is curated under ``generations: append`` cannot make it possible: the rows to be used again are those of earlier stages, whose
    lots keep their budgets. Otherwise the lots may be others afterwards.

    Raises:
        PlanError: says which source, how much, and what to change.
    """
    ended = [read_outcome(root / stage_folder(run, recipe, position)) is not None for position in range(len(recipe.stages))]
    position = ended.index(False) if False in ended else len(ended)
    if recipe.generations != "append" or position == len(ended) or recipe.stages[position].replay is None or "lots" not in snapshot.steps:
        return
    standing = stand(root, recipe, read_lots(root, snapshot), run, position)
    place = stage_place(recipe, position, standing, snapshot.steps["tokenizer"][0].counts["vocabulary"])
    refuse_replay(recipe.stages[position], standing.states, place, standing.earlier)


def taken_over(root: Path, past: Sequence[Segment], next_row: int, heldout: Mapping[str, float], stage: Stage) -> Earlier:
    """What a stage takes over from the segments before it and the losses at their end.

    Raises:
        PlanError: the run that its adaptive weights are held against has not ended.
    """
    used_by: dict[str, list[Allotment]] = {}
    for segment, end in zip(past, ends(past), strict=True):
        rows = min(max(next_row - segment.first_row, 0), end - segment.first_row)
        used_by.setdefault(segment.stage, []).extend(used(segment, rows))
    last = past[segment_at(past, next_row - 1)] if next_row else None
    reference = stage.adaptive.reference if stage.adaptive else None
    return Earlier(
        last_shares(last) if last else {},
        used_by,
        {name: loss for name, loss in heldout.items() if name != "all"},
        last.decisions if last else (),
        _losses_of(root, reference, stage) if isinstance(reference, str) else {},
    )


def check_references(root: Path, recipe: Recipe) -> None:
    """Refuse adaptive weights that are to be held against a run without losses.

    Raises:
        PlanError: names the stage and the run.
    """
    for stage in recipe.stages:
        if stage.adaptive and isinstance(stage.adaptive.reference, str):
            _losses_of(root, stage.adaptive.reference, stage)


def _losses_of(root: Path, run: str, stage: Stage) -> dict[str, float]:
    """Held-out losses at the end of a run's last stage, by source."""
    ended = [folder for folder in root.glob(f"runs/{run}/*-*") if (folder / "outcome.json").is_file()]
    outcome = read_outcome(max(ended, key=lambda folder: int(folder.name.partition("-")[0]))) if re.fullmatch(NAME, run) and ended else None
    if outcome is None:
        raise PlanError(
            f"run {run!r} has no stage that has ended, so it has no losses",
            where=f"stage {stage.name!r}: adaptive.reference",
            fix="train that run first, for example the same recipe with a fixed mixture and --run",
        )
    return {name: loss for name, loss in outcome.heldout.items() if name != "all"}


def _before(segments: Sequence[Segment], stage: str) -> list[Segment]:
    """Segments before those of a stage that a killed process may have committed last."""
    count = len(segments)
    while count and segments[count - 1].stage == stage:
        count -= 1
    return list(segments[:count])


def _same_curriculum(segments: Sequence[Segment], recipe: Recipe, run: str) -> None:
    """Segments of stages that the recipe has, in its order, under its seed and window."""
    names = [stage.name for stage in recipe.stages]
    planned = list(dict.fromkeys(segment.stage for segment in segments))
    if planned != names[: len(planned)]:
        _refuse([f"stages: planned were {', '.join(planned)}; the recipe has {', '.join(names)}"], f"run {run!r}")
    for segment in segments:
        for name, was, now in (("seed", segment.seed, recipe.seed), ("shuffle_window", segment.window, recipe.shuffle_window)):
            if was != now:
                _refuse([f"{name}: {was}, now {now}"], f"run {run!r}")


def _same_return(outcome: Outcome, segments: Sequence[Segment], where: str) -> None:
    """What the trainer says it returned is what its segments had left."""
    said, due = _uses(Allotment(*a) for a in outcome.returned), _uses(unused(segments, outcome.next_row))
    if said != due:
        raise PlanError(
            f"the stage ended before row {outcome.next_row} and so left {sum(b - a for _, a, b in due):,} rows, "
            f"but it says {sum(b - a for _, a, b in said):,}",
            where=where,
            fix="the file was changed or belongs to another plan: train the stage again under another --run",
        )


def _uses(ranges: Iterator[Allotment] | Sequence[Allotment]) -> list[tuple[str, int, int]]:
    """Ranges in order, touching ones joined."""
    joined: list[tuple[str, int, int]] = []
    for lot, start, stop in sorted((a.lot, a.start, a.stop) for a in ranges):
        if joined and joined[-1][0] == lot and joined[-1][2] == start:
            joined[-1] = (lot, joined[-1][1], stop)
        else:
            joined.append((lot, start, stop))
    return joined


def stage_place(recipe: Recipe, position: int, standing: Standing, vocabulary: int) -> Place:
    """Where a stage begins."""
    batch = recipe.training_of(recipe.stages[position]).batch_rows
    size = parameters(recipe.model, vocabulary, recipe.pack.row_length)
    append = recipe.generations == "append"
    return Place(
        standing.next_row, standing.next_step, batch, recipe.pack.row_length, recipe.seed, recipe.shuffle_window, size, append=append
    )


def _settings(
    root: Path, recipe: Recipe, tokenizer: Tokenizer, table: LotTable, run: str, position: int, standing: Standing, plan: StagePlan
) -> StageSettings:
    named = {a.lot for segment in plan.segments for a in allotments(segment)}
    started = None if recipe.start_from is None or position else take_in(root, Path(recipe.start_from))
    return StageSettings(
        run=run,
        stage=plan.stage,
        position=position,
        folder=stage_folder(run, recipe, position),
        segments=segments_path(run),
        segments_hash=segments_hash([*standing.past, *plan.segments]),
        first_segment=len(standing.past),
        last_segment=len(standing.past) + len(plan.segments) - 1,
        init_from=stage_folder(run, recipe, position - 1) if position else started,
        seed=recipe.seed,
        vocabulary=tokenizer.vocabulary,
        row_length=recipe.pack.row_length,
        model=recipe.model,
        training=recipe.training_of(recipe.stages[position]),
        lots=tuple(table.lots[line["lot"]] for line in table.lines if line["lot"] in named),
        generations=table.generations,
        holdout=tuple(table.lots[line["lot"]] for line in table.lines if line["split"] == "holdout"),
        adaptive=_adaptive(recipe.stages[position], standing, recipe.pack.row_length),
    )


def _adaptive(stage: Stage, standing: Standing, row_length: int) -> AdaptiveSettings | None:
    if stage.adaptive is None:
        return None
    states = {lot: state for lot, state in standing.states.items() if state.lot.row_length == row_length}
    return adaptive_settings(stage, starting_shares(stage, left_by_source(states)), standing.earlier.reference)


def _refuse_change(old: StageSettings, new: StageSettings, where: str, but: Set[str]) -> None:
    before, now = ({name: value for name, value in asdict(settings).items() if name not in but} for settings in (old, new))
    changes = [f"{field}: {a}, now {b}" for field, a, b in _differences(before, now, "")]
    if changes:
        _refuse(changes, where)


def _refuse(changes: Sequence[str], where: str) -> None:
    more = f"\n  and {len(changes) - 5} more" if len(changes) > 5 else ""
    raise PlanError(
        "it was planned already, and the recipe or the lots would now plan it otherwise:\n  " + "\n  ".join(changes[:5]) + more,
        where=where,
        fix="undo the change, or give the run another name with --run",
    )


def _differences(old: Any, new: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Dotted place, old and new value of each difference between two JSON values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _differences(old.get(key), new.get(key), f"{place}.{key}".lstrip("."))
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple):
        if len(old) != len(new):
            yield f"{place} (number)", len(old), len(new)
        for index, (a, b) in enumerate(zip(old, new, strict=False)):
            yield from _differences(a, b, f"{place}[{index}]")
    elif old != new:
        yield place, old, new


def plan_rows(run: str, position: int, first_segment: int, segments: Sequence[Segment], before: States) -> pa.Table:
    """What a stage's segments use when each runs to its end, as rows of the table ``plans``.

    Args:
        run: run name.
        position: the stage's place in the curriculum.
        first_segment: index of the first of the segments.
        segments: the segments.
        before: states of the lots before the stage.
    """
    rows = [
        {
            "run": run,
            "stage": segment.stage,
            "position": position,
            "segment": first_segment + number,
            "source": share.source,
            "replayed": share.replayed,
            "lot": a.lot,
            "start": a.start,
            "stop": a.stop,
            "rows": a.rows,
            "returned": before[a.lot].was_given(a.start),
        }
        for number, segment in enumerate(segments)
        for share in dealt(segment, segment.rows)
        for stream in share.streams
        for a in stream.allotments
    ]
    return pa.Table.from_pylist(rows, schema=PLANS)
