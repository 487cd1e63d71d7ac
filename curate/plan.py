"""Plans: which uses of which lots each stage gets, as segments; pure, from lots, recipe and earlier stages alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from curate.budget import LotBudget, States, fresh
from curate.dues import Portion, Quotas, due_rows, rows_needed
from curate.earlier import Earlier, last_shares
from curate.mixture import follows_budgets, left_by_source, source_quotas, starting_weights, whole
from curate.model_size import CHINCHILLA, parameters
from curate.replays import first_rows, replayable, reserve
from curate.slices import Part, Slice, part_slices, stage_parts
from curate.streams import allot, next_opening, streams_of
from schemas.errors import PlanError
from schemas.interleave import Interleave
from schemas.ranges import Range
from schemas.recipe import Recipe
from schemas.segments import Allotment, Decision, Segment, SourceShare, Stream, used
from schemas.sources import MOST_EPOCHS
from schemas.stages import Stage

SPARE = 64
"""Rows set apart to be replayed beyond their share, since each segment rounds its own."""


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
        window: shards shuffled together; with the seed it fixes each epoch's order, so it is the same in all segments of a run.
        parameters: parameters of the model, for stages of ``chinchilla`` tokens.
        done: rows of the stage that lie before, where it is planned again from its middle.
        rows: rows of the whole stage, where it is planned again; as many of them as the budgets hold.
        append: documents of earlier generations keep their budgets: raising them means curating the lake anew.
    """

    first_row: int
    first_step: int
    batch: int
    row_length: int
    seed: int
    window: int
    parameters: int = 0
    done: int = 0
    rows: int | None = None
    append: bool = False


def plan_stage(stage: Stage, states: States, place: Place, earlier: Earlier | None = None) -> StagePlan:
    """Plan a stage, or the rest of it.

    Args:
        stage: the recipe's stage.
        states: what is left of each lot.
        place: where the stage begins.
        earlier: what it takes over from the run before it.

    Returns:
        Segments whose allotments were left, and are disjoint. One, unless the batch, the row length, a blend or pacing changes on the
        way, or a lot is used up to where its share of its source's rows, a ratio of whole numbers, cannot follow. Each is allotted what
        it uses; adaptive ones as much as they may come to use.

    Raises:
        PlanError: the budgets do not hold what the stage asks for; says which source, how much, and what to change.
    """
    return _Planner(stage, states, place, earlier or Earlier()).plan()


class _Planner:
    """Plans one stage; as segments are made ``now`` is what is left, ``pools`` what is set apart to be replayed, ``owed`` what is due."""

    def __init__(self, stage: Stage, states: States, place: Place, earlier: Earlier) -> None:
        self.stage, self.before, self.place, self.earlier = stage, states, place, earlier
        self.now: States = states
        self.pools: dict[str, list[Allotment]] = {}
        self.replays: dict[str, Fraction] = {}
        self.decisions: tuple[Decision, ...] = ()
        self.owed: dict[Portion, Fraction] = {}
        self.segments: list[Segment] = []

    def plan(self) -> StagePlan:
        place, again = self.place, self.place.rows is not None
        wanted = place.rows if again else _rows_wanted(self.stage, place)
        skip = place.done
        if self.stage.replay is not None:
            self.set_apart(int((wanted or 0) - skip * (not again)))
        for part in stage_parts(self.stage, place.row_length, place.batch, wanted):
            done = min(skip, part.rows or skip)
            skip -= done
            if part.rows is None or done < part.rows:
                self._plan_part(part, done)
        given_back: dict[str, list[Range]] = {}
        for a in (a for pool in self.pools.values() for a in pool):
            given_back.setdefault(a.lot, []).append((a.start, a.stop))
        after = {lot: state.give_back(given_back.get(lot, ())) for lot, state in self.now.items()}
        return StagePlan(self.stage.name, tuple(self.segments), self.before, after)

    def set_apart(self, rows: int) -> None:
        """Take the rows to be replayed out of what is left, a few more than their share comes to.

        Raises:
            PlanError: the budgets do not hold them.
        """
        replay = self.stage.replay
        assert replay is not None
        where = f"stage {self.stage.name!r}: replay"
        spent = [a for name in replay.stages for a in self.earlier.used.get(name, ())]
        full = {lot: state for lot, state in self.now.items() if state.lot.row_length == self.place.row_length}
        found = replayable(full, spent)
        total = sum(mine.rows for mine in found.values())
        if not total:
            fix = "name a stage that trained on rows of this length"
            raise PlanError(f"{', '.join(replay.stages)} used nothing that could be replayed", where=where, fix=fix)
        for name, mine in found.items():
            share = Fraction(repr(replay.share)) * mine.rows / total
            need = math.ceil(share * rows)
            if need > mine.left:
                raise PlanError(
                    f"source {name!r}: asked {need * self.place.row_length:,} tokens to be used again, the budgets hold "
                    f"{mine.left * self.place.row_length:,} (only epochs of its lots that are wholly unused can give rows again)",
                    where=where,
                    fix=_less(replay.share * mine.left / need) + f", or raise sources.{name}.max_epochs" + _anew(self.place),
                )
            self.replays[name] = share
            self.pools[name], _ = first_rows(mine.allotments, need + SPARE)
        self.now = reserve(self.now, self.pools)

    def _plan_part(self, part: Part, done: int) -> None:
        """Append the segments of a part from its row ``done`` on."""
        stage = self.stage
        self.owed = dict(self.earlier.owed) if done and not follows_budgets(stage) else {}
        if stage.adaptive is not None:
            self.decisions = self._decide(part)
        own = source_quotas(stage, self._mine(part), part.rows, {d.source: d.after for d in self.decisions} or None)
        left = left_by_source(self._mine(part))
        rows = part.rows
        if rows is None:
            rows = sum(left[name] for name in own) if follows_budgets(stage) else Interleave(list(own.values())).longest(_of(left, own))
        slices = part_slices(stage, part, rows, self.place.batch)
        if self.place.rows is None:
            self._refuse_impossible(part, rows, own, slices)
        why = "rewind" if self.place.rows is not None and not self.segments else ""
        for number, cut in enumerate(slices):
            at = max(cut.start, done)
            why = why or cut.why
            while at < cut.stop:
                if follows_budgets(stage) and self.segments and not self._lasts(part, own, rows - at):
                    own, self.owed = source_quotas(stage, self._mine(part), rows - at), {}
                ahead = [(each.stop - each.start, self._quotas(part, own, each, rows)) for each in slices[number + 1 :]]
                made = self._segment(part, cut, (at, rows), self._quotas(part, own, cut, rows), why, ahead)
                if not made.rows:
                    return
                at, why = (at + made.rows, "pacing" if stage.pacing else "spent") if stage.adaptive is None else (rows, "")
            why = ""

    def _mine(self, part: Part) -> States:
        """What is left of the lots that a part can use."""
        return {lot: state for lot, state in self.now.items() if state.lot.row_length == part.row_length}

    def _decide(self, part: Part) -> tuple[Decision, ...]:
        """Weights of an adaptive stage where it begins, or goes on."""
        if self.place.rows is not None:
            return tuple(Decision(d.source, d.after, d.after) for d in self.earlier.decisions)
        left = left_by_source(self._mine(part))
        return starting_weights(self.stage, left, part.rows or sum(left.values()), self.earlier)

    def _quotas(self, part: Part, own: Mapping[str, int], cut: Slice, rows: int) -> Quotas:
        """Rows of each portion in a period: the stage's own mixture, blended with that before, and what is replayed."""
        before = {name: share for name, share in self.earlier.shares.items() if left_by_source(self._mine(part)).get(name)}
        own_share = cut.own if before else Fraction(1)
        if own_share == 1 and not self.replays:
            return {(name, False): quota for name, quota in own.items()}
        fresh_share = 1 - sum(self.replays.values(), Fraction(0))
        weights: dict[Portion, Fraction] = {}
        for name, quota in own.items():
            weights[name, False] = fresh_share * own_share * quota / sum(own.values())
        total = sum(before.values())
        for name, share in before.items() if own_share < 1 else ():
            blended = fresh_share * (1 - own_share) * Fraction(share / total).limit_denominator(10**6)
            weights[name, False] = weights.get((name, False), Fraction(0)) + blended
        weights |= {(name, True): share for name, share in self.replays.items()}
        return dict(zip(weights, whole(list(weights.values()), rows), strict=True))

    def _lasts(self, part: Part, own: Mapping[str, int], rows: int) -> bool:
        """Whether what is left goes on in the shares that it has for so many rows."""
        left, period = left_by_source(self._mine(part)), sum(own.values())
        return all(self.owed.get((name, False), 0) + Fraction(rows * quota, period) <= left.get(name, 0) for name, quota in own.items())

    def _segment(
        self, part: Part, cut: Slice, span: tuple[int, int], quotas: Quotas, why: str, ahead: Sequence[tuple[int, Quotas]]
    ) -> Segment:
        """Append the longest segment from row ``span[0]`` of a part of ``span[1]`` rows to the end of a slice.

        Where more must follow in the slice it ends with whole steps and, if it is long enough, whole periods. It goes on from what the
        segments before it owe, and deals so that the slices ahead can go on from what it owes.
        """
        stage, (at, rows) = self.stage, span
        left = left_by_source(self._mine(part))
        quotas = dict(quotas) | {p: 0 for p, debt in self.owed.items() if debt > 0 and not quotas.get(p) and not p[1] and left.get(p[0])}
        owed = [self.owed.get(portion, Fraction(0)) for portion in quotas]
        groups = {name: [state for state in self._mine(part).values() if state.lot.source == name] for name, _ in quotas}
        dealt = Interleave(list(quotas.values()), owed)
        unit = math.lcm(dealt.period, cut.batch)
        opening = next_opening(stage, groups.values(), unit if unit * 8 <= rows else cut.batch, span)
        deals = {name: streams_of(stage, groups[name], span) for name, replayed in quotas if not replayed}
        have = [sum(a.rows for a in self.pools[name]) if replayed else deals[name][1] for name, replayed in quotas]
        size = min(opening - at, cut.stop - at, dealt.longest(have))
        if stage.adaptive is not None and size < rows - at:  # one segment, so that later weights can take its place: lot after lot
            deals = {name: ([(1, [state.lot.lot for state in groups[name]])], sum(state.left for state in groups[name])) for name in deals}
            have = [sum(a.rows for a in self.pools[name]) if replayed else deals[name][1] for name, replayed in quotas]
            size = min(cut.stop - at, dealt.longest(have))
        if size < cut.stop - at:
            unit = unit if unit <= size else cut.batch
            size = size // unit * unit or size
        after = dict(self.now)
        due = due_rows(quotas, owed, size, [(cut.stop - at - size, quotas), *ahead]) if stage.adaptive is None else []
        if size:
            planned = Interleave(list(quotas.values()), owed, due, size)
            if all(planned.counts(size) <= have):
                dealt = planned
            else:
                due = []
        late = dict(zip(quotas, due, strict=True)) if due else {}
        shares = []
        for (portion, quota), debt, count in zip(quotas.items(), owed, dealt.counts(size), strict=True):
            name, replayed = portion
            if replayed:
                taken, self.pools[name] = first_rows(self.pools[name], int(count))
                streams: tuple[Stream, ...] = (Stream(1, tuple(taken)),)
            else:
                spare = min(have[list(quotas).index(portion)], rows) if stage.adaptive is not None else int(count)
                streams = allot(deals[name][0], int(count), spare, after)
            if quota or count:
                shares.append(SourceShare(name, quota, streams, replayed, debt, late.get(portion)))
        place = self.place
        made = Segment(
            stage.name,
            place.first_row,
            size,
            place.first_step,
            cut.batch,
            place.seed,
            place.window,
            tuple(shares),
            why,
            self.decisions,
        )
        if size:
            self.now = after
            self.owed |= dict(zip(quotas, dealt.owed_after(size), strict=True))
            self.segments.append(made)
            self.place = replace(place, first_row=place.first_row + made.rows, first_step=place.first_step + made.steps)
        return made

    def _refuse_impossible(self, part: Part, rows: int, own: Mapping[str, int], slices: Sequence[Slice]) -> None:
        """Refuse what the budgets do not hold."""
        stage, place, states = self.stage, self.place, self._mine(part)
        left, need = left_by_source(states), dict.fromkeys(own, 0)
        plain = len({cut.own for cut in slices}) == 1 and not self.replays
        cuts = [Slice(0, rows, place.batch, slices[0].own, "")] if plain and slices else slices
        for (name, replayed), count in rows_needed([(cut.stop - cut.start, self._quotas(part, own, cut, rows)) for cut in cuts]).items():
            if not replayed:
                need[name] = count
        short = [name for name in need if need[name] > left.get(name, 0)]
        if not short or stage.tokens == "rest" or (follows_budgets(stage) and rows <= sum(left[name] for name in own)):
            return
        lines, fixes = [], []
        for name in short:
            lots = [state.lot for state in states.values() if state.lot.source == name]
            once = sum(lot.rows for lot in lots)
            used = sum(lot.uses for lot in lots) - left[name]
            epochs = -(-(used + need[name]) // once)
            lines.append(
                f"source {name!r}: asked {need[name] * part.row_length:,} tokens, available {left[name] * part.row_length:,} "
                f"({used / once:.2f} of {max(lot.repeats for lot in lots)} epochs are used before; {epochs} epochs would be needed)"
            )
            if epochs <= MOST_EPOCHS:
                by = "max_epochs" if len({lot.repeats for lot in lots}) == 1 else "max_epochs (or repeats)"
                fixes.append(f"sources.{name}.{by} to {epochs}" + (" with allow_many_epochs: true" if epochs > 7 else ""))
        most = int(rows * min(left[name] / need[name] for name in short))
        if plain:
            most = sum(left.values()) if follows_budgets(stage) else Interleave(list(own.values())).longest(_of(left, own))
        most = most // part.batch * part.batch * part.row_length
        lower = "" if follows_budgets(stage) or len(need) == 1 else f", lower the weight of {_some(short)}"
        raised = f", or raise {_some(fixes)}" if fixes else ""
        of = "" if part.row_length == place.row_length else f" in rows of {part.row_length} tokens"
        raise PlanError(
            f"the budgets hold less than it asks for{of}\n  " + "\n  ".join(lines),
            where=f"stage {stage.name!r}",
            fix=f"raise the share of pack.lengths.{part.row_length}, or lower that of length_warmup"
            if of
            else f"lower its tokens to {most:,} (or `rest`){lower}{raised}{_anew(place)}",
        )


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


def refuse_replay(stage: Stage, states: States, place: Place, earlier: Earlier) -> None:
    """Refuse a replay that the budgets do not hold, whatever is added to the lake: what it gives again is used already.

    Raises:
        PlanError: says which source, how much, and what to change.
    """
    if stage.replay is not None:
        _Planner(stage, states, place, earlier).set_apart(int(_rows_wanted(stage, place) or 0))


def _less(share: float) -> str:
    """What to do with a replay of which the budgets hold only a share."""
    return f"lower replay.share to {int(share * 1000) / 1000:g}" if share >= 0.001 else "leave out the replay"


def _anew(place: Place) -> str:
    """What raising a budget takes in a lake that is added to."""
    return " with `generations: one`: documents of earlier generations keep the budgets that they have" if place.append else ""


def _of(left: Mapping[str, int], names: Iterable[str]) -> list[int]:
    return [left[name] for name in names]


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
    earlier = Earlier()
    size = parameters(recipe.model, vocabulary or recipe.tokenizer.vocabulary, recipe.pack.row_length)
    for stage in recipe.stages:
        batch, append = recipe.training_of(stage).batch_rows, recipe.generations == "append"
        place = Place(row, step, batch, recipe.pack.row_length, recipe.seed, recipe.shuffle_window, size, append=append)
        plan = plan_stage(stage, states, place, earlier)
        plans.append(plan)
        states, row, step = plan.after, row + plan.rows, step + plan.steps
        spent = [a for segment in plan.segments for a in used(segment, segment.rows)]
        earlier = Earlier(last_shares(plan.segments[-1]), {**earlier.used, stage.name: spent})
    return plans
