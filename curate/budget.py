"""Budgets: what is left of each lot, from the uses given out and those returned.

A lot of ``rows`` rows and repeat class ``repeats`` has uses 0 to ``repeats * rows``. Free is what no row in force used and no rewind
excluded; a stage takes free uses in ascending order, so what stopped stages returned comes before what was never given out, and a use is
given out again only if it was never used: budgets hold by construction. Nothing of this is stored; it is replayed from the run's segments
and the position at which its last stage ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from schemas.errors import PlanError
from schemas.ranges import Range, Ranges, both, minus, size, union
from schemas.segments import Allotment, Segment, allotments, spent


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
        row_length: tokens of a row.
    """

    lot: str
    source: str
    bin: int
    repeats: int
    rows: int
    tokens: int
    documents: int
    row_length: int

    @property
    def uses(self) -> int:
        """Uses it has over the whole run."""
        return self.repeats * self.rows


@dataclass(frozen=True)
class LotState:
    """What is left of a lot.

    Attributes:
        lot: the lot.
        free: uses that can be given out.
        given: uses that a stage was planned with before, whether it came to use them or not.
        orders: epochs whose rows come in the order of another, for they give its rows once more: (epoch, that one), ascending.
    """

    lot: LotBudget
    free: Ranges
    given: Ranges = ()
    orders: tuple[tuple[int, int], ...] = ()

    @property
    def left(self) -> int:
        """Number of uses that can be given out."""
        return size(self.free)

    @property
    def returned(self) -> Ranges:
        """Free uses that were given out before and not used."""
        return both(self.free, self.given)

    def was_given(self, use: int) -> bool:
        """Whether a stage was planned with a use before."""
        return any(start <= use < stop for start, stop in self.given)

    def take(self, rows: int) -> tuple[list[Allotment], LotState]:
        """The next ``rows`` uses, returned ones first, and the state after."""
        if rows > self.left:
            raise ValueError(f"{rows} uses more than lot {self.lot.lot} has left")
        taken: list[Allotment] = []
        for start, stop in self.free:
            while rows and start < stop:
                end, order = self._piece(start, min(stop, start + rows))
                taken.append(Allotment(self.lot.lot, start, end, order))
                rows -= end - start
                start = end
        return taken, self.give(taken)

    def _piece(self, start: int, stop: int) -> tuple[int, int | None]:
        """Up to where uses from ``start`` on can be one allotment, and its order: all or none given before, and of one order."""
        orders = dict(self.orders)
        epoch = start // self.lot.rows
        stop = min([stop, *(edge for span in self.given for edge in span if edge > start)])
        if epoch in orders:
            return min(stop, (epoch + 1) * self.lot.rows), orders[epoch]
        ahead = [other * self.lot.rows for other in orders if other > epoch]
        return min([stop, *ahead]), None

    def give(self, given: Sequence[Allotment]) -> LotState:
        """The state after allotments of it were given out.

        Raises:
            PlanError: one is not free.
        """
        spans = [(a.start, a.stop) for a in given]
        left = minus(self.free, spans)
        if size(self.free) - size(left) != sum(stop - start for start, stop in spans):
            raise PlanError(
                f"uses {spans[0][0]} to {spans[-1][1]} of lot {self.lot.lot} were planned, but are not among those left",
                where="segments.json",
                fix="the run's past was changed: give the run another name with --run",
            )
        return replace(self, free=left).saw(given)

    def saw(self, given: Sequence[Allotment]) -> LotState:
        """The state once allotments are known to have been planned, whether they were used or not."""
        orders = dict(self.orders) | {a.start // self.lot.rows: a.order for a in given if a.order is not None}
        return replace(self, given=union([*self.given, *((a.start, a.stop) for a in given)]), orders=tuple(sorted(orders.items())))

    def give_back(self, unused: Iterable[Range]) -> LotState:
        """The state after ranges of uses that were given out are free again."""
        return replace(self, free=union([*self.free, *unused]))

    def exclude(self, gone: Iterable[Range]) -> LotState:
        """The state without some uses, which are never to be given out."""
        return replace(self, free=minus(self.free, gone))


States = Mapping[str, LotState]


def fresh(lots: Iterable[LotBudget]) -> dict[str, LotState]:
    """States of lots of which nothing was used, by lot id."""
    return {lot.lot: LotState(lot, ((0, lot.uses),)) for lot in lots}


def replay(states: States, segments: Sequence[Segment], next_row: int) -> dict[str, LotState]:
    """States after stages that were planned as ``segments`` and of which the rows before position ``next_row`` were used.

    Raises:
        PlanError: a segment names a lot that is gone, or a use was used twice.
    """
    after = dict(states)
    for segment in segments:
        for lot, given in _by_lot(allotments(segment)).items():
            if lot not in after:
                raise PlanError(
                    f"lot {lot} was used by stage {segment.stage!r}, but the lake no longer has it",
                    where="segments.json",
                    fix="sources, rules or packing were changed since: give the run another name with --run",
                )
            after[lot] = after[lot].saw(given)
    for lot, given in _by_lot(spent(segments, next_row)).items():
        after[lot] = after[lot].give(given)
    for lot, gone in _by_lot(a for segment in segments for a in segment.excluded).items():
        after[lot] = after[lot].exclude((a.start, a.stop) for a in gone)
    return after


def _by_lot(given: Iterable[Allotment]) -> dict[str, list[Allotment]]:
    found: dict[str, list[Allotment]] = {}
    for a in given:
        found.setdefault(a.lot, []).append(a)
    return found
