"""Budgets: what is left of each lot, from the uses given out and those returned.

A lot of ``rows`` rows and repeat class ``repeats`` has uses 0 to ``repeats * rows``. What is left of it is a cursor, before which
everything was given out, and the ranges that stopped stages returned. A stage takes returned ranges first and then from the cursor, so
a use is given out again only if it was never used: budgets hold by construction. Nothing of this is stored; it is replayed from the
run's segments and the positions at which its stages ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from schemas.errors import PlanError
from schemas.segments import Allotment, Segment, leftover


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
