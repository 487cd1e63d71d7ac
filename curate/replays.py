"""Replay: documents of earlier stages once more, within their budgets.

A stage's documents are the rows it used, ranges of places of an epoch's order. To use them again takes uses of another epoch of the lot.
An epoch none of whose uses was given out may take over that order: then the same places of it give the same rows, as ranges too, and
budgets count them as any other use. From then on the epoch has that order for whoever uses what is left of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from curate.budget import LotState, States
from schemas.ranges import Range, both, minus
from schemas.segments import Allotment


@dataclass(frozen=True)
class Replayable:
    """What a source has to replay.

    Attributes:
        rows: rows that the earlier stages used of it.
        allotments: uses left that give some of them again.
    """

    rows: int
    allotments: tuple[Allotment, ...]

    @property
    def left(self) -> int:
        """Rows that can be given again."""
        return sum(a.rows for a in self.allotments)


def replayable(states: States, spent: Iterable[Allotment]) -> dict[str, Replayable]:
    """What earlier stages used, and what the budgets hold to give it again, by source.

    Args:
        states: what is left of each lot.
        spent: what the earlier stages used.
    """
    found: dict[str, Replayable] = {}
    now = dict(states)
    for used in spent:
        if used.lot not in now:
            continue
        state = now[used.lot]
        again, now[used.lot] = _again(state, used)
        mine = found.get(state.lot.source, Replayable(0, ()))
        found[state.lot.source] = Replayable(mine.rows + used.rows, (*mine.allotments, *again))
    return found


def _again(state: LotState, used: Allotment) -> tuple[list[Allotment], LotState]:
    """Uses that give the rows of some uses again, from the last epoch backwards, and the state after they were given out."""
    found: list[Allotment] = []
    rows = state.lot.rows
    for epoch in range(used.start // rows, -(-used.stop // rows)):
        places: tuple[Range, ...] = both([(used.start, used.stop)], [(epoch * rows, (epoch + 1) * rows)])
        places = tuple((start - epoch * rows, stop - epoch * rows) for start, stop in places)
        order = dict(state.orders).get(epoch, epoch)
        for other in reversed(range(state.lot.repeats)):
            first = other * rows
            own = [(first, first + rows)]
            untouched = not both(own, state.given) and not minus(own, state.free)
            if not places or other == epoch or dict(state.orders).get(other, order if untouched else -1) != order:
                continue
            spans = both(state.free, [(first + start, first + stop) for start, stop in places])
            mine = [Allotment(state.lot.lot, start, stop, order) for start, stop in spans]
            places = minus(places, [(a.start - first, a.stop - first) for a in mine])
            found += mine
            # Only the order is noted: what was given before is what earlier stages were planned with.
            state = replace(state.give(mine), given=state.given)
    return found, state


def reserve(states: States, given: Mapping[str, Iterable[Allotment]]) -> dict[str, LotState]:
    """The states after allotments by source were given out, with their orders, and with what was given before as it was."""
    after = dict(states)
    for allotments in given.values():
        for a in allotments:
            after[a.lot] = replace(after[a.lot].give([a]), given=after[a.lot].given)
    return after


def first_rows(allotments: Iterable[Allotment], rows: int) -> tuple[list[Allotment], list[Allotment]]:
    """The first ``rows`` rows of some allotments, and the others."""
    taken, others = [], []
    for a in allotments:
        cut = min(a.stop, a.start + rows)
        taken += [Allotment(a.lot, a.start, cut, a.order)] if cut > a.start else []
        others += [Allotment(a.lot, cut, a.stop, a.order)] if cut < a.stop else []
        rows -= cut - a.start
    return taken, others
