"""Streams: how a source's lots follow one another or take turns in a segment, by a stage's order and pacing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from curate.budget import LotState
from curate.mixture import whole
from curate.pacing import opening_times
from schemas.interleave import Interleave
from schemas.segments import Allotment, Stream
from schemas.stages import Stage


def streams_of(stage: Stage, states: Sequence[LotState], span: tuple[int, int]) -> tuple[list[tuple[int, list[str]]], int]:
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


def next_opening(stage: Stage, groups: Iterable[Sequence[LotState]], unit: int, span: tuple[int, int]) -> int:
    """The stage's row, in whole units, at which pacing next opens a bin of any source; its end if none opens."""
    done, rows = span
    if stage.pacing is None:
        return rows
    openings = {-(-row // unit) * unit for group in groups for row in _openings(stage, len(_bins(stage, group)), rows)}
    return min((row for row in openings if done < row < rows), default=rows)


def allot(deal: Sequence[tuple[int, list[str]]], rows: int, most: int, after: dict[str, LotState]) -> tuple[Stream, ...]:
    """Streams of a source, allotted ``rows`` rows, and up to ``most`` should other weights come to use them; ``after`` follows."""
    streams = []
    dealt = Interleave([quota for quota, _ in deal])
    for (quota, lots), count, reach in zip(deal, dealt.counts(rows), dealt.counts(max(rows, most)), strict=True):
        taken: list[Allotment] = []
        for lot in lots:
            mine, after[lot] = after[lot].take(min(int(count) - sum(a.rows for a in taken), after[lot].left))
            taken += mine
        for lot in lots if most > rows else ():
            spare, _ = after[lot].take(min(int(reach) - sum(a.rows for a in taken), after[lot].left))
            after[lot] = after[lot].saw(spare)
            taken += spare
        streams.append(Stream(quota, tuple(taken)))
    return tuple(streams)
