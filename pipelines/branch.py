"""A run's branch: the rest of a stage planned again from a step on, without the rows that are excluded; pure but for reading the lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from curate.budget import LotState, States, fresh, replay
from curate.earlier import owed_at
from curate.lots import LotTable
from curate.plan import Place, plan_stage, training_lots
from curate.stage import taken_over
from schemas.errors import PlanError
from schemas.ranges import union
from schemas.recipe import Recipe
from schemas.segments import Allotment, Segment, segment_at, stage_segments
from schemas.settings import StageSettings
from train.order import lot_uses

Rows = Mapping[str, Sequence[int]]
"""Row numbers by lot."""


def branch(
    root: Path, recipe: Recipe, table: LotTable, settings: StageSettings, every: Sequence[Segment], to: int, excluded: Rows
) -> tuple[list[Segment], list[Segment], States]:
    """The segments before a branch, those of the branch, and the states of the lots where it begins.

    Args:
        root: the lake.
        recipe: the run's recipe.
        table: its lots.
        settings: the stage that the step lies in.
        every: the run's segments; where they end with this branch already, it is not planned a second time.
        to: step that the branch begins with.
        excluded: rows that it leaves out.

    Raises:
        PlanError: nothing is left to train on.
    """
    for index in reversed(range(settings.first_segment + 1, len(every))):
        if every[index].why == "rewind" and every[index].first_step == to:
            planned, states = _planned(root, recipe, table, settings, every[:index], to, excluded)
            if planned == every[index:]:
                return list(every[:index]), planned, states
    planned, states = _planned(root, recipe, table, settings, every, to, excluded)
    return list(every), planned, states


def _planned(
    root: Path, recipe: Recipe, table: LotTable, settings: StageSettings, every: Sequence[Segment], to: int, excluded: Rows
) -> tuple[list[Segment], States]:
    mine = stage_segments(every, settings)
    begun = next(segment for segment in reversed(mine) if segment.first_step <= to)
    row = min(begun.first_row + (to - begun.first_step) * begun.batch, begun.first_row + begun.rows)
    states = replay(fresh(training_lots(table.lines)), every, row)
    gone = [a for lot, rows in excluded.items() if lot in states for a in _uses(states[lot], table, recipe, rows)]
    left = dict(states)
    for a in gone:
        left[a.lot] = left[a.lot].exclude([(a.start, a.stop)])
    stage = recipe.stages[settings.position]
    past = every[: settings.first_segment]
    first_row = mine[0].first_row
    earlier = taken_over(root, past, first_row, {}, stage)
    if row > first_row:
        before = mine[segment_at(mine, row - 1)]
        earlier = replace(earlier, decisions=before.decisions, owed=owed_at(before, row - before.first_row))
    place = Place(
        row,
        to,
        settings.training.batch_rows,
        settings.row_length,
        recipe.seed,
        recipe.shuffle_window,
        done=row - first_row,
        rows=max(segment.first_row + segment.rows for segment in mine if segment.stage == settings.stage) - first_row,
        append=recipe.generations == "append",
    )
    plan = plan_stage(stage, left, place, earlier)
    if not plan.segments:
        raise PlanError("nothing is left of it without what is excluded", where=f"stage {stage.name!r}", fix="exclude less")
    first, *others = plan.segments
    return [replace(first, excluded=tuple(gone)), *others], states


def _uses(state: LotState, table: LotTable, recipe: Recipe, rows: Sequence[int]) -> list[Allotment]:
    """Every use of some rows of a lot, in all its epochs, as ranges."""
    shards = [shard.rows for shard in table.lots[state.lot.lot].shards]
    orders = dict(state.orders)
    found = [
        lot_uses(state.lot.lot, shards, recipe.seed, recipe.shuffle_window, epoch, np.array(rows, dtype=np.int64), orders.get(epoch))
        for epoch in range(state.lot.repeats)
    ]
    return [Allotment(state.lot.lot, *span) for span in union((int(use), int(use) + 1) for uses in found for use in uses)]
