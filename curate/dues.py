"""What the sources of a stage are owed from one segment to the next, and when their rows are due by the weights ahead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from schemas.interleave import Interleave, straddled

Portion = tuple[str, bool]
"""A source, and whether its rows are replayed."""

Quotas = Mapping[Portion, int]
"""Rows of each portion in a period."""


def due_rows(quotas: Quotas, owed: Sequence[Fraction], rows: int, ahead: Sequence[tuple[int, Quotas]]) -> list[int | None]:
    """Of each portion, the row up to which it must have the row that its target is in the middle of when a segment ends.

    Args:
        quotas: of the segment.
        owed: rows that its portions are owed where it begins.
        rows: its length.
        ahead: lengths and quotas of what follows.

    Returns:
        Rows of the segment, counted from 1, most of them beyond its end; None by the portion's own pace, also where nothing follows.
    """
    ahead = [(count, later) for count, later in ahead if count]
    if all(_alike(quotas, later) for _, later in ahead):
        return [None] * len(quotas)
    return [_due(portion, quotas, debt, rows, ahead) for portion, debt in zip(quotas, owed, strict=True)]


def _due(portion: Portion, quotas: Quotas, owed: Fraction, rows: int, ahead: Sequence[tuple[int, Quotas]]) -> int | None:
    row = straddled(quotas[portion], sum(quotas.values()), owed, rows)
    if row is None:
        return None
    at, target = rows, owed + _rise(quotas, portion, rows)
    for count, later in ahead:
        rise = _rise(later, portion, count)
        if rise and target + rise >= row + 1:
            return at + math.ceil((row + 1 - target) * count / rise)
        at, target = at + count, target + rise
    return at + 1


def _rise(quotas: Quotas, portion: Portion, rows: int) -> Fraction:
    return Fraction(rows * quotas.get(portion, 0), sum(quotas.values()))


def _alike(a: Quotas, b: Quotas) -> bool:
    """Whether quotas stand for the same shares."""
    return all(_rise(a, portion, 1) == _rise(b, portion, 1) for portion in {**a, **b})


def rows_needed(slices: Sequence[tuple[int, Quotas]]) -> dict[Portion, int]:
    """Rows that each portion has of slices that follow one another, by their lengths and quotas."""
    needed: dict[Portion, int] = {}
    debts: dict[Portion, Fraction] = {}
    for number, (rows, mine) in enumerate(slices):
        quotas = dict(mine) | {portion: 0 for portion, debt in debts.items() if debt > 0 and not mine.get(portion)}
        owed = [debts.get(portion, Fraction(0)) for portion in quotas]
        dealt = Interleave(list(quotas.values()), owed, due_rows(quotas, owed, rows, slices[number + 1 :]), rows)
        for portion, count in zip(quotas, dealt.counts(rows).tolist(), strict=True):
            needed[portion] = needed.get(portion, 0) + count
        debts |= dict(zip(quotas, dealt.owed_after(rows), strict=True))
    return needed
