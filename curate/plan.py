"""Plans: which uses of which lots each stage gets, as segments; pure, from lots, recipe and earlier stages alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from curate.budget import LotBudget, LotState, States, fresh
from curate.mixture import follows_budgets, left_by_source, source_quotas, whole
from curate.model_size import CHINCHILLA, parameters
from curate.pacing import opening_times
from schemas.errors import PlanError
from schemas.interleave import Interleave
from schemas.recipe import Recipe, Stage
from schemas.segments import Allotment, Segment, SourceShare, Stream

WINDOW = 8
"""Shards shuffled together; with the seed it fixes each epoch's order, so it is the same in all segments of a run."""


def training_lots(lines: Iterable[Mapping[str, Any]]) -> list[LotBudget]:
    """Budgets of the training lots among the lines of the table ``lots``, by source, then bin."""
    names = LotBudget.__dataclass_fields__
    lots = [LotBudget(**{name: line[name] for name in names}) for line in lines if line["split"] == "train"]
    return sorted(lots, key=lambda lot: (lot.source, lot.bin, lot.lot))


@dataclass(frozen=True)
class StagePlan:
    """A stage's segments, and what is left of each lot before and after them."""

    stage: str
    segments: tuple[Segment, ...]
    before: States
    after: States

    @property
    def rows(self) -> int:
        """Rows of the stage."""
        return sum(segment.rows for segment in self.segments)

    @property
    def steps(self) -> int:
        """Optimizer steps of the stage."""
        return sum(segment.steps for segment in self.segments)


@dataclass(frozen=True)
class Place:
    """Where a stage begins and what it is measured in.

    Attributes:
        first_row: position in the run's order.
        first_step: optimizer step.
        batch: rows of an optimizer step.
        row_length: tokens of a row.
        seed: seed of the permutations.
        parameters: parameters of the model, for stages of ``chinchilla`` tokens.
    """

    first_row: int
    first_step: int
    batch: int
    row_length: int
    seed: int
    parameters: int = 0


def plan_stage(stage: Stage, states: States, place: Place) -> StagePlan:
    """Plan a stage.

    Args:
        stage: the recipe's stage.
        states: what is left of each lot.
        place: where the stage begins.

    Returns:
        Segments whose allotments are disjoint, were left, and add up to their rows. One, unless pacing opens bins on the way, or a lot
        is used up to where its share of its source's rows, a ratio of whole numbers, cannot follow.

    Raises:
        PlanError: the budgets do not hold what the stage asks for; says which source, how much, and what to change.
    """
    rows = _rows_wanted(stage, place)
    quotas = source_quotas(stage, states, rows)
    left = left_by_source(states)
    if rows is None:
        have = [left[name] for name in quotas]
        rows = sum(have) if follows_budgets(stage) else Interleave(list(quotas.values())).longest(have)
    _refuse_impossible(stage, states, place, rows, quotas)
    segments: list[Segment] = []
    now, done = dict(states), 0
    while done < rows:
        if follows_budgets(stage) and segments:
            quotas = source_quotas(stage, now, rows - done)
        segment, now = _segment(stage, now, place, (done, rows), quotas)
        if not segment.rows:
            break
        segments.append(segment)
        done += segment.rows
        place = replace(place, first_row=place.first_row + segment.rows, first_step=place.first_step + segment.steps)
    return StagePlan(stage.name, tuple(segments), states, now)


def _rows_wanted(stage: Stage, place: Place) -> int | None:
    """Rows in whole steps, at most the tokens asked for; None for all that is left."""
    if stage.tokens == "rest":
        return None
    tokens = CHINCHILLA * place.parameters if stage.tokens == "chinchilla" else stage.tokens
    steps = tokens // (place.row_length * place.batch)
    if not steps:
        raise PlanError(
            f"{tokens:,} tokens are less than one step of {place.batch} rows of {place.row_length} tokens",
            where=f"stage {stage.name!r}",
            fix=f"ask for at least {place.row_length * place.batch:,} tokens, or lower training.batch_rows",
        )
    return steps * place.batch


def _segment(
    stage: Stage, states: States, place: Place, span: tuple[int, int], quotas: Mapping[str, int]
) -> tuple[Segment, dict[str, LotState]]:
    """The longest segment from row ``span[0]`` of a stage of ``span[1]`` rows, and the states after it.

    Where more must follow it ends with whole steps and, if it is long enough, whole periods.
    """
    groups = {name: [state for state in states.values() if state.lot.source == name] for name in quotas}
    dealt = Interleave(list(quotas.values()))
    unit = math.lcm(dealt.period, place.batch)
    opening = _next_opening(stage, groups.values(), unit if unit * 8 <= span[1] else place.batch, span)
    deals = {name: _streams(stage, group, span) for name, group in groups.items()}
    size = min(opening - span[0], dealt.longest([longest for _, longest in deals.values()]))
    if size < span[1] - span[0]:
        unit = unit if unit <= size else place.batch
        size = size // unit * unit or size
    after = dict(states)
    shares = []
    for (name, quota), count in zip(quotas.items(), dealt.counts(size), strict=True):
        streams = []
        deal = deals[name][0]
        for (stream_quota, lots), stream_rows in zip(deal, Interleave([q for q, _ in deal]).counts(int(count)), strict=True):
            taken: list[Allotment] = []
            for lot in lots:
                mine, after[lot] = after[lot].take(min(int(stream_rows) - sum(a.rows for a in taken), after[lot].left))
                taken += mine
            streams.append(Stream(stream_quota, tuple(taken)))
        shares.append(SourceShare(name, quota, tuple(streams)))
    return Segment(stage.name, place.first_row, size, place.first_step, place.batch, place.seed, WINDOW, tuple(shares)), after


def _streams(stage: Stage, states: Sequence[LotState], span: tuple[int, int]) -> tuple[list[tuple[int, list[str]]], int]:
    """Streams of a source as (quota, lots one after another), and the rows at which the first of them ends."""
    bins = _bins(stage, states)
    if stage.pacing is not None:
        number = sum(opening <= span[0] for opening in _openings(stage, len(bins), span[1]))
        while number < len(bins) and not any(state.left for level in bins[:number] for state in level):
            number += 1
        bins = bins[:number]
    usable = [state for level in bins for state in level if state.left]
    if not usable:
        return [(1, [])], 0
    left = [state.left for state in usable]
    if stage.order != "shuffled" and stage.pacing is None:
        return [(1, [state.lot.lot for state in usable])], sum(left)
    quotas = whole([Fraction(rows) for rows in left], sum(left))
    return [(quota, [state.lot.lot]) for quota, state in zip(quotas, usable, strict=True)], Interleave(quotas).longest(left)


def _bins(stage: Stage, states: Iterable[LotState]) -> list[list[LotState]]:
    """A source's lots by difficulty bin, in the stage's order."""
    bins: dict[int, list[LotState]] = {}
    for state in states:
        bins.setdefault(state.lot.bin, []).append(state)
    return [bins[level] for level in sorted(bins, reverse=stage.order == "hard_to_easy")]


def _openings(stage: Stage, bins: int, rows: int) -> list[int]:
    """The stage's row from which each bin is open."""
    return [math.ceil(time * rows) for time in opening_times(stage, bins)]


def _next_opening(stage: Stage, groups: Iterable[Sequence[LotState]], unit: int, span: tuple[int, int]) -> int:
    """The stage's row, in whole units, at which pacing next opens a bin of any source; its end if none opens."""
    done, rows = span
    if stage.pacing is None:
        return rows
    openings = {-(-row // unit) * unit for group in groups for row in _openings(stage, len(_bins(stage, group)), rows)}
    return min((row for row in openings if done < row < rows), default=rows)


def _refuse_impossible(stage: Stage, states: States, place: Place, rows: int, quotas: Mapping[str, int]) -> None:
    left = left_by_source(states)
    interleave = Interleave(list(quotas.values()))
    need = {name: int(count) for name, count in zip(quotas, interleave.counts(rows), strict=True)}
    short = [name for name in quotas if need[name] > left[name]]
    if not short or (follows_budgets(stage) and rows <= sum(left[name] for name in quotas)):
        return
    lines, fixes = [], []
    for name in short:
        lots = [state.lot for state in states.values() if state.lot.source == name]
        once = sum(lot.rows for lot in lots)
        used = sum(lot.uses for lot in lots) - left[name]
        epochs = -(-(used + need[name]) // once)
        lines.append(
            f"source {name!r}: asked {need[name] * place.row_length:,} tokens, available {left[name] * place.row_length:,} "
            f"({used / once:.2f} of {max(lot.repeats for lot in lots)} epochs are used before; {epochs} epochs would be needed)"
        )
        fixes.append(f"sources.{name}.max_epochs to {epochs}" + (" with allow_many_epochs: true" if epochs > 7 else ""))
    have = [left[name] for name in quotas]
    most = (sum(have) if follows_budgets(stage) else interleave.longest(have)) // place.batch * place.batch * place.row_length
    lower = "" if follows_budgets(stage) else f"lower the weight of {_some(short)}, "
    raise PlanError(
        "the budgets hold less than it asks for\n  " + "\n  ".join(lines),
        where=f"stage {stage.name!r}",
        fix=f"lower its tokens to {most:,} (or `rest`), {lower}or raise {_some(fixes)}",
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and so on ({len(names)})" if len(names) > 3 else "")


def plan_curriculum(recipe: Recipe, lots: Sequence[LotBudget], vocabulary: int = 0) -> list[StagePlan]:
    """Plan every stage of a recipe from the start, each as if none stopped early.

    Args:
        recipe: the recipe.
        lots: its training lots.
        vocabulary: words of the tokenizer, for stages of ``chinchilla`` tokens; by default as many as the recipe asks for.

    Raises:
        PlanError: a stage asks for more than the budgets hold.
    """
    states: States = fresh(lots)
    plans: list[StagePlan] = []
    row = step = 0
    size = parameters(recipe.model, vocabulary or recipe.tokenizer.vocabulary)
    for stage in recipe.stages:
        place = Place(row, step, recipe.training_of(stage).batch_rows, recipe.pack.row_length, recipe.seed, size)
        plans.append(plan_stage(stage, states, place))
        states, row, step = plans[-1].after, row + plans[-1].rows, step + plans[-1].steps
    return plans
