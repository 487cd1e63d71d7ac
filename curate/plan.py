"""Plans: which uses of which lots each stage gets, as segments; pure, from lots, recipe and earlier stages alone.

A lot of ``rows`` rows and repeat class ``repeats`` has uses 0 to ``repeats * rows``. What is left of it is a cursor, before which
everything was given out, and the ranges that stopped stages returned. A stage takes returned ranges first and then from the cursor, so
a use is given out again only if it was never used: budgets hold by construction. Nothing of this is stored; it is replayed from the
run's segments and the positions at which its stages ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any

from schemas.errors import PlanError
from schemas.interleave import MAX_PERIOD, Interleave, hamilton, whole_quotas
from schemas.recipe import Recipe, Stage
from schemas.segments import Allotment, Segment, SourceShare, Stream, leftover
from schemas.settings import TrainSettings, build

WINDOW = 8
"""Shards shuffled together; with the seed it fixes each epoch's order, so it is the same in all segments of a run."""


@dataclass(frozen=True)
class LotBudget:
    """A training lot as planning sees it.

    Attributes:
        lot: lot id.
        source: its source.
        bin: its difficulty bin, 0 the easiest.
        repeats: uses of each row over the whole run.
        rows: its rows.
        tokens: tokens in them, padding not counted.
        documents: documents in them.
    """

    lot: str
    source: str
    bin: int
    repeats: int
    rows: int
    tokens: int
    documents: int

    @property
    def uses(self) -> int:
        """Uses it has over the whole run."""
        return self.repeats * self.rows


def training_lots(lines: Iterable[Mapping[str, Any]]) -> list[LotBudget]:
    """Budgets of the training lots among the lines of the table ``lots``, by source, then bin."""
    names = LotBudget.__dataclass_fields__
    lots = [LotBudget(**{name: line[name] for name in names}) for line in lines if line["split"] == "train"]
    return sorted(lots, key=lambda lot: (lot.source, lot.bin, lot.lot))


@dataclass(frozen=True)
class LotState:
    """What is left of a lot.

    Attributes:
        lot: the lot.
        cursor: uses from here on were never given out.
        returned: disjoint ascending ranges of uses before the cursor that were given out and not used.
    """

    lot: LotBudget
    cursor: int = 0
    returned: tuple[tuple[int, int], ...] = ()

    @property
    def left(self) -> int:
        """Uses that can still be given out."""
        return self.lot.uses - self.cursor + sum(stop - start for start, stop in self.returned)

    def take(self, rows: int) -> tuple[list[Allotment], LotState]:
        """The next ``rows`` uses, returned ones first, and the state after."""
        taken: list[Allotment] = []
        queue = list(self.returned)
        while rows and queue:
            start, stop = queue.pop(0)
            size = min(rows, stop - start)
            taken.append(Allotment(self.lot.lot, start, start + size))
            rows -= size
            if start + size < stop:
                queue.insert(0, (start + size, stop))
        if rows:
            taken.append(Allotment(self.lot.lot, self.cursor, self.cursor + rows))
        if self.cursor + rows > self.lot.uses:
            raise ValueError(f"{rows} uses more than lot {self.lot.lot} has left")
        return taken, replace(self, cursor=self.cursor + rows, returned=tuple(queue))

    def spend(self, used: Allotment) -> LotState:
        """The state after an allotment that an earlier plan took.

        Raises:
            PlanError: it is not among what was left.
        """
        if used.start == self.cursor and used.stop <= self.lot.uses:
            return replace(self, cursor=used.stop)
        for index, (start, stop) in enumerate(self.returned):
            if start <= used.start and used.stop <= stop:
                rest = [span for span in ((start, used.start), (used.stop, stop)) if span[0] < span[1]]
                return replace(self, returned=(*self.returned[:index], *rest, *self.returned[index + 1 :]))
        raise PlanError(
            f"uses {used.start} to {used.stop} of lot {used.lot} were planned, but are not among those left",
            where="segments.json",
            fix="the run's past was changed: give the run another name with --run",
        )

    def give_back(self, unused: Iterable[Allotment]) -> LotState:
        """The state after a stopped stage returned ranges; touching ranges become one."""
        spans: list[tuple[int, int]] = []
        for start, stop in sorted([*self.returned, *((a.start, a.stop) for a in unused)]):
            if spans and spans[-1][1] == start:
                spans[-1] = (spans[-1][0], stop)
            else:
                spans.append((start, stop))
        return replace(self, returned=tuple(spans))


States = Mapping[str, LotState]


def fresh(lots: Iterable[LotBudget]) -> dict[str, LotState]:
    """States of lots of which nothing was used, by lot id."""
    return {lot.lot: LotState(lot) for lot in lots}


def replay(states: States, segments: Sequence[Segment], next_row: int) -> dict[str, LotState]:
    """States after a stage that was planned as ``segments`` and ended before position ``next_row`` of the run's order.

    Raises:
        PlanError: a segment names a lot that is gone, or uses that were not left.
    """
    after = dict(states)
    for segment in segments:
        for allotment in allotments(segment):
            if allotment.lot not in after:
                raise PlanError(
                    f"lot {allotment.lot} was used by stage {segment.stage!r}, but the lake no longer has it",
                    where="segments.json",
                    fix="sources, rules or packing were changed since: give the run another name with --run",
                )
            after[allotment.lot] = after[allotment.lot].spend(allotment)
    for allotment in unused(segments, next_row):
        after[allotment.lot] = after[allotment.lot].give_back([allotment])
    return after


def allotments(segment: Segment) -> list[Allotment]:
    """All allotments of a segment, by source, then stream."""
    return [a for share in segment.sources for stream in share.streams for a in stream.allotments]


def unused(segments: Sequence[Segment], next_row: int) -> list[Allotment]:
    """What a stage planned as ``segments`` left when it ended before position ``next_row``."""
    return [a for s in segments for a in leftover(s, min(max(next_row - s.first_row, 0), s.rows))]


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
    """Where a stage begins in the run: position, optimizer step; and what does not change: rows per step, tokens per row, seed."""

    first_row: int
    first_step: int
    batch: int
    row_length: int
    seed: int


def plan_stage(stage: Stage, states: States, place: Place) -> StagePlan:
    """Plan a stage.

    Args:
        stage: the recipe's stage.
        states: what is left of each lot.
        place: where the stage begins.

    Returns:
        Segments whose allotments are disjoint, were left, and add up to their rows. One, unless a lot is used up to where its share
        of its source's rows, a ratio of whole numbers, cannot follow.

    Raises:
        PlanError: the budgets do not hold what the stage asks for; says which source, how much, and what to change.
    """
    left = _left_by_source(states)
    names, weights = _weights(stage, left)
    rows = _rows_wanted(stage, place)
    quotas = _quotas(weights, rows or sum(left.values()), stage if isinstance(stage.mixture, dict) else None)
    have = [left[name] for name in names]
    if rows is None:
        rows = sum(have) if stage.mixture == "proportional" else Interleave(quotas).longest(have)
    _refuse_impossible(stage, states, place, rows, dict(zip(names, quotas, strict=True)))
    segments: list[Segment] = []
    now = dict(states)
    while rows:
        if stage.mixture == "proportional" and segments:
            names, weights = _weights(stage, _left_by_source(now))
            quotas = _quotas(weights, rows)
        segment, now = _segment(stage, now, place, rows, dict(zip(names, quotas, strict=True)))
        if not segment.rows:
            break
        segments.append(segment)
        rows -= segment.rows
        place = replace(place, first_row=place.first_row + segment.rows, first_step=place.first_step + segment.steps)
    return StagePlan(stage.name, tuple(segments), states, now)


def _left_by_source(states: States) -> dict[str, int]:
    left: dict[str, int] = {}
    for state in states.values():
        left[state.lot.source] = left.get(state.lot.source, 0) + state.left
    return left


def _weights(stage: Stage, left: Mapping[str, int]) -> tuple[list[str], list[Fraction]]:
    """Sources and their weights; weights written as decimals are taken as exactly those."""
    if stage.mixture == "proportional":
        names = [name for name, rows in left.items() if rows]
        if not names:
            raise PlanError(
                "no source has anything left", where=f"stage {stage.name!r}", fix="drop the stage, or raise max_epochs of a source"
            )
        return names, [Fraction(left[name]) for name in names]
    for name in stage.mixture:
        if not left.get(name):
            why = "its budget is used up by earlier stages" if name in left else "no document of it was kept"
            raise PlanError(
                f"source {name!r} has no rows left: {why}",
                where=f"stage {stage.name!r}",
                fix=f"take {name!r} out of the mixture, raise its max_epochs, or loosen its rules",
            )
    return list(stage.mixture), [Fraction(repr(weight)) for weight in stage.mixture.values()]


def _rows_wanted(stage: Stage, place: Place) -> int | None:
    """Rows in whole steps, at most the tokens asked for; None for all that is left."""
    if stage.tokens == "rest":
        return None
    steps = stage.tokens // (place.row_length * place.batch)
    if not steps:
        raise PlanError(
            f"{stage.tokens:,} tokens are less than one step of {place.batch} rows of {place.row_length} tokens",
            where=f"stage {stage.name!r}",
            fix=f"ask for at least {place.row_length * place.batch:,} tokens, or lower training.batch_rows",
        )
    return steps * place.batch


def _quotas(weights: Sequence[Fraction], rows: int, stage: Stage | None = None) -> list[int]:
    """Whole numbers in the ratio of the weights: exactly where a short enough period has it, else by row where the segment is short.

    Else within 0.1 %. What is too small for the longest period gets one row of it, and so is used up sooner, unless the weights
    are those of a ``stage``.
    """
    scale = reduce(math.lcm, (weight.denominator for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    divisor = reduce(math.gcd, whole)
    if sum(whole) // divisor <= MAX_PERIOD:
        return [value // divisor for value in whole]
    shares = [float(weight) for weight in weights]
    if rows <= MAX_PERIOD and all(quotas := hamilton(shares, rows)):
        return quotas
    try:
        return whole_quotas(shares, tolerance=0.001)
    except ValueError as error:
        if stage is not None:
            raise PlanError(str(error), where=f"stage {stage.name!r}", fix="leave the smallest source out, or raise its weight") from error
        return [max(1, quota) for quota in hamilton(shares, MAX_PERIOD - len(shares))]


def _segment(stage: Stage, states: States, place: Place, rows: int, quotas: Mapping[str, int]) -> tuple[Segment, dict[str, LotState]]:
    """The longest segment of at most ``rows`` rows, in whole steps and periods where more must follow, and the states after it."""
    groups = {name: _streams(stage, [state for state in states.values() if state.lot.source == name and state.left]) for name in quotas}
    dealt = Interleave(list(quotas.values()))
    size = min(rows, dealt.longest([longest for _, longest in groups.values()]))
    if size < rows:
        unit = math.lcm(dealt.period, place.batch)
        unit = unit if unit <= size else place.batch
        size = size // unit * unit or size
    after = dict(states)
    shares = []
    for (name, quota), count in zip(quotas.items(), dealt.counts(size), strict=True):
        streams = []
        deals = groups[name][0]
        for (stream_quota, lots), stream_rows in zip(deals, Interleave([q for q, _ in deals]).counts(int(count)), strict=True):
            taken: list[Allotment] = []
            for lot in lots:
                mine, after[lot] = after[lot].take(min(int(stream_rows) - sum(a.rows for a in taken), after[lot].left))
                taken += mine
            streams.append(Stream(stream_quota, tuple(taken)))
        shares.append(SourceShare(name, quota, tuple(streams)))
    return Segment(stage.name, place.first_row, size, place.first_step, place.batch, place.seed, WINDOW, tuple(shares)), after


def _streams(stage: Stage, states: Sequence[LotState]) -> tuple[list[tuple[int, list[str]]], int]:
    """Streams of a source as (quota, lots one after another), and the rows at which the first of them ends."""
    if not states:
        return [(1, [])], 0
    left = [state.left for state in states]
    if stage.order == "shuffled":
        quotas = _quotas([Fraction(rows) for rows in left], sum(left))
        return [(quota, [state.lot.lot]) for quota, state in zip(quotas, states, strict=True)], Interleave(quotas).longest(left)
    ordered = sorted(states, key=lambda state: state.lot.bin, reverse=stage.order == "hard_to_easy")
    return [(1, [state.lot.lot for state in ordered])], sum(left)


def _refuse_impossible(stage: Stage, states: States, place: Place, rows: int, quotas: Mapping[str, int]) -> None:
    left = _left_by_source(states)
    interleave = Interleave(list(quotas.values()))
    need = {name: int(count) for name, count in zip(quotas, interleave.counts(rows), strict=True)}
    short = [name for name in quotas if need[name] > left[name]]
    if not short or (stage.mixture == "proportional" and rows <= sum(left.values())):
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
        fixes.append(f"raise sources.{name}.max_epochs to {epochs}" + (" with allow_many_epochs: true" if epochs > 7 else ""))
    most = interleave.longest([left[name] for name in quotas]) // place.batch * place.batch * place.row_length
    raise PlanError(
        "the budgets hold less than it asks for\n  " + "\n  ".join(lines),
        where=f"stage {stage.name!r}",
        fix=f"lower its tokens to {most:,} (or `rest`), lower the weight of {' and '.join(short)}, or {' and '.join(fixes)}",
    )


def stage_training(recipe: Recipe, stage: Stage) -> TrainSettings:
    """A stage's training settings: the recipe's, changed by the stage's.

    Raises:
        RecipeError: a change that names no setting or has the wrong type.
    """
    merged = _merge(asdict(recipe.training), stage.training)
    settings: TrainSettings = build(TrainSettings, merged, f"stages.{stage.name}.training")
    return settings


def _merge(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: _merge(base[key], value) if key in base else value for key, value in over.items()}}
    return over


def plan_curriculum(recipe: Recipe, lots: Sequence[LotBudget]) -> list[StagePlan]:
    """Plan every stage of a recipe from the start, each as if none stopped early.

    Raises:
        PlanError: a stage asks for more than the budgets hold.
    """
    states: States = fresh(lots)
    plans: list[StagePlan] = []
    row = step = 0
    for stage in recipe.stages:
        place = Place(row, step, stage_training(recipe, stage).batch_rows, recipe.pack.row_length, recipe.seed)
        plans.append(plan_stage(stage, states, place))
        states, row, step = plans[-1].after, row + plans[-1].rows, step + plans[-1].steps
    return plans
