"""How the streams of a segment take turns: a pure function from position to stream, in constant time.

A segment gives each stream a whole number of rows (its quota) per period. Inside the period rows are dealt by earliest deadline among
the released (the chairman assignment: Tijdeman 1980, "The chairman assignment problem"; the pfair schedule of Baruah et al. 1996), so
that after any number of rows ``i`` each stream has had ``i * quota / period`` rows to within less than one. The period then repeats,
which leaves the bound as it is, since every period gives each stream exactly its quota.

Segments that follow one another go on where the one before left off: a stream begins with what it is owed (its target less what it
had), and may have a row due earlier or later than its own pace says, because it has another weight afterwards. A target that rises by any
weights, known beforehand, has rows dealt to within less than one at every prefix (Tijdeman's theorem: row j may be dealt while the target
goes from j to j + 1, which shares out each position among the rows, and shares that can be had in fractions can be had whole), and the
earliest deadline finds them. Where weights change unforeseen there may be no such order; deadlines are then put off by quarters of a row.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MAX_PERIOD = 1 << 16
_SHORT = 5
"""Periods up to which the turns of streams that begin with debts are all written down."""
_ENDLESS = 1 << 62


class Interleave:
    """The order in which streams take turns.

    Args:
        quotas: rows of each stream per period, each at least 0, at least one above 0; their sum (the period) at most 65,536.
        owed: rows that each stream is owed at the beginning, above -1; adding up to 0 if no stream was left out.
        due: number of rows dealt by which each stream must have had the row that its target is in the middle of at the end; None by its
            own pace.
        rows: the length; may be left out where nothing is due.
    """

    def __init__(
        self, quotas: Sequence[int], owed: Sequence[Fraction] = (), due: Sequence[int | None] = (), rows: int | None = None
    ) -> None:
        self.period = sum(int(q) for q in quotas)
        self.quotas = np.asarray(quotas, dtype=np.int64)
        self.owed = tuple(owed) or (Fraction(0),) * len(quotas)
        key = tuple(int(q) for q in quotas)
        if not any(self.owed) and all(at is None for at in due):
            made = _pattern(key)
        else:
            due = tuple(due) or (None,) * len(quotas)
            made = _debts(key, self.owed, due, rows if rows is not None and rows > 0 else None)
        self._head, self._turns, self._stream, self._rank, self._slots = made
        self._in_head = np.bincount(self._stream[: self._head], minlength=len(self.quotas))
        self._every = np.bincount(self._stream, minlength=len(self.quotas))
        self._first_slot = np.concatenate([[0], np.cumsum(self._every)[:-1]])

    def at(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for each position, its stream and how many rows that stream had before it."""
        turn = np.clip((positions - self._head) // self.period, 0, self._turns - 1)
        slot = positions - turn * self.period
        stream = self._stream[slot].astype(np.int64)
        return stream, turn * self.quotas[stream] + self._rank[slot]

    def position(self, stream: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
        """The inverse of ``at``: where a stream's row number ``index`` stands; far behind the end where there is no such row."""
        quota = self.quotas[stream]
        later = index - self._in_head[stream]
        turn = np.clip(np.where(quota > 0, later // np.maximum(quota, 1), np.where(later < 0, 0, self._turns)), 0, self._turns - 1)
        rank = index - turn * quota
        there = rank < self._every[stream]
        slots = turn * self.period + self._slots[np.where(there, self._first_slot[stream] + rank, 0)]
        return np.where(there, slots, _ENDLESS)

    def counts(self, length: int) -> NDArray[np.int64]:
        """Rows that each stream has among the first ``length`` positions."""
        turn = min(max((int(length) - self._head) // self.period, 0), self._turns - 1)
        rest = int(length) - turn * self.period
        return turn * self.quotas + np.bincount(self._stream[:rest], minlength=len(self.quotas))

    def owed_after(self, length: int) -> tuple[Fraction, ...]:
        """Rows that each stream is owed after the first ``length`` positions: its target less what it had."""
        had = self.counts(length).tolist()
        return tuple(
            owed + Fraction(int(length) * int(quota), self.period) - count
            for owed, quota, count in zip(self.owed, self.quotas, had, strict=True)
        )

    def longest(self, available: Sequence[int]) -> int:
        """The largest length at which no stream needs more rows than it has available; of a deal without a length of its own."""
        ends = [int(self.position(np.array([s]), np.array([have]))[0]) for s, have in enumerate(available) if self.quotas[s] > 0]
        return min(ends)


_Turns = tuple[int, int, NDArray[np.uint16], NDArray[np.int32], NDArray[np.int64]]
"""Slots before the period that repeats and how often it does, then, of all slots with one period: stream, its rank in its stream, and the
slots of each stream one after another."""


@lru_cache(maxsize=256)
def _pattern(quotas: tuple[int, ...]) -> _Turns:
    """Turns of streams that are owed nothing."""
    period = _period(quotas)
    # Row j of a stream with quota q may stand in slots floor(j P / q) to ceil((j + 1) P / q) - 1: then its count stays within one.
    stream, _ = _deal(quotas, (Fraction(0),) * len(quotas), [0] * len(quotas), (0, period), {}, Fraction(0))
    return 0, _ENDLESS, stream, *_places(stream, len(quotas))


@lru_cache(maxsize=32)
def _debts(quotas: tuple[int, ...], owed: tuple[Fraction, ...], due: tuple[int | None, ...], rows: int | None) -> _Turns:
    """Turns of streams that are owed something, or have a row due."""
    if rows is not None and any(at is not None for at in due):
        made = _turns(quotas, owed, _straddling(quotas, owed, due, rows), rows, Fraction(0))
        if made is not None:
            return made
    late = Fraction(0)  # what is due after the end gives way first; then a row is put off by as little as some order allows
    while (made := _turns(quotas, owed, {}, rows, late)) is None:
        late += Fraction(1, 4)
    return made


def _turns(
    quotas: tuple[int, ...], owed: tuple[Fraction, ...], last: dict[tuple[int, int], int], rows: int | None, late: Fraction
) -> _Turns | None:
    """Turns that keep every deadline (see ``_deal``); None where there are none."""
    period, streams = _period(quotas), len(quotas)
    if rows is not None and rows <= _SHORT * period:
        stream, in_time = _deal(quotas, owed, [0] * streams, (0, rows), last, late)
        return (rows, 1, stream, *_places(stream, streams)) if in_time else None
    stream, in_time = _settled(quotas, owed, late)
    head, turns = len(stream) - period, _ENDLESS
    if in_time and last and rows is not None:
        turns = (rows - head) // period - 1
        had = (np.bincount(stream[:head], minlength=streams) + turns * np.array(quotas)).tolist()
        tail, in_time = _deal(quotas, owed, had, (head + turns * period, rows), last, late)
        stream = np.concatenate([stream, tail])
    return (head, turns, stream, *_places(stream, streams)) if in_time else None


def _settled(quotas: tuple[int, ...], owed: tuple[Fraction, ...], late: Fraction) -> tuple[NDArray[np.uint16], bool]:
    """Slots up to the end of the first period in which each stream has its quota, which then repeats; and whether deadlines were kept.

    It is the third period at the latest (Leung & Merrill 1980: turns repeat from a period after the latest beginning on).
    """
    period, had, in_time = sum(quotas), np.zeros(len(quotas), dtype=np.int64), True
    blocks: list[NDArray[np.uint16]] = []
    counts = had
    while not blocks or counts.tolist() != list(quotas):
        had = had + counts
        begin = len(blocks) * period
        block, kept = _deal(quotas, owed, had.tolist(), (begin, begin + period), {}, late)
        in_time, counts = in_time and kept, np.bincount(block, minlength=len(quotas))
        blocks.append(block)
    return np.concatenate(blocks), in_time


def _period(quotas: tuple[int, ...]) -> int:
    period = sum(quotas)
    if period < 1 or min(quotas) < 0 or period > MAX_PERIOD:
        raise ValueError(f"quotas must be whole numbers of at least 0 that add up to 1 to {MAX_PERIOD}, not {quotas}")
    return period


def straddled(quota: int, period: int, owed: Fraction, rows: int) -> int | None:
    """The row that a stream's target is in the middle of after ``rows`` positions; None where it is between two."""
    target = owed + Fraction(rows * quota, period)
    return None if target.denominator == 1 or target < 0 else math.floor(target)


def _straddling(quotas: tuple[int, ...], owed: tuple[Fraction, ...], due: tuple[int | None, ...], rows: int) -> dict[tuple[int, int], int]:
    """Deadline of each (stream, row) that has one of its own."""
    period = sum(quotas)
    rows_of = [straddled(quota, period, debt, rows) for quota, debt in zip(quotas, owed, strict=True)]
    return {(s, row): at for s, (row, at) in enumerate(zip(rows_of, due, strict=True)) if row is not None and at is not None}


def _deal(
    quotas: tuple[int, ...],
    owed: tuple[Fraction, ...],
    had: Sequence[int],
    span: tuple[int, int],
    last: dict[tuple[int, int], int],
    late: Fraction,
) -> tuple[NDArray[np.uint16], bool]:
    """Stream of each slot of a span, and whether every deadline in it was kept.

    Row j of a stream with quota q that was owed d may stand in slots floor((j - d) P / q) to ceil((j + 1 + late - d) P / q) - 1, or to
    the one before its deadline among ``last``.
    """
    period, (begin, end) = sum(quotas), span
    given = list(had)
    # With d = m / n the slots of row j are whole parts of (j n - m) P / (q n): numbers that are large, but whole.
    debts = [(debt.numerator * late.denominator, debt.denominator * late.denominator) for debt in owed]
    each = [n * period for _, n in debts]
    parts = [quota * n for quota, (_, n) in zip(quotas, debts, strict=True)]
    after = [(n + late.numerator * n // late.denominator - m) * period for m, n in debts]
    # A stream of quota 0 is given what it is owed.
    waiting = [(max(begin, (had[s] * each[s] - debts[s][0] * period) // parts[s]), s) for s in range(len(quotas)) if quotas[s]]
    waiting += [(begin, s) for s in range(len(quotas)) if not quotas[s] and debts[s][0] > had[s] * debts[s][1]]
    heapq.heapify(waiting)
    ready: list[tuple[int, int]] = []
    stream = np.empty(end - begin, dtype=np.uint16)
    in_time = True
    for slot in range(begin, end):
        while waiting and (waiting[0][0] <= slot or not ready):  # not ready: a stream that was left out took more than its due
            _, s = heapq.heappop(waiting)
            by = -(-(given[s] * each[s] + after[s]) // parts[s]) if quotas[s] else _ENDLESS
            heapq.heappush(ready, (last.get((s, given[s]), by) if last else by, s))
        by, s = heapq.heappop(ready)
        in_time = in_time and slot < by
        stream[slot - begin] = s
        given[s] += 1
        if quotas[s]:
            heapq.heappush(waiting, (max(begin, (given[s] * each[s] - debts[s][0] * period) // parts[s]), s))
        elif debts[s][0] > given[s] * debts[s][1]:
            heapq.heappush(waiting, (begin, s))
    return stream, in_time and all(by > end for by, _ in ready)


def _places(stream: NDArray[np.uint16], streams: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Rank of each slot within its stream, and the slots of each stream one after another."""
    slots = np.argsort(stream, kind="stable")
    firsts = np.concatenate([[0], np.cumsum(np.bincount(stream, minlength=streams))[:-1]])
    rank = np.empty(len(stream), dtype=np.int32)
    rank[slots] = np.arange(len(stream)) - firsts[stream[slots]]
    return rank, slots


def whole_quotas(weights: Sequence[float], tolerance: float = 0.005) -> list[int]:
    """Round weights to quotas of the smallest period (a power of two) whose largest relative error is within ``tolerance``.

    Hamilton's method (largest remainder); a weight above 0 never gets quota 0. Falls back to the longest period.
    """
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"weights must be at least 0 and not all 0: {list(weights)}")
    shares = [weight / total for weight in weights]
    period = 1
    while True:
        quotas = hamilton(shares, period)
        exact = all(
            (q > 0 and abs(q / period - share) <= tolerance * share) if share > 0 else q == 0
            for q, share in zip(quotas, shares, strict=True)
        )
        if exact or period >= MAX_PERIOD:
            break
        period *= 2
    if any(q == 0 and share > 0 for q, share in zip(quotas, shares, strict=True)):
        raise ValueError(f"a weight is below 1/{MAX_PERIOD} of the total: {list(weights)}")
    return quotas


def hamilton(shares: Sequence[float], total: int) -> list[int]:
    """Share out ``total`` whole units by largest remainder; ties go to the earlier share."""
    whole = sum(shares)
    exact = [share / whole * total for share in shares]
    units = [int(np.floor(value)) for value in exact]
    order = sorted(range(len(shares)), key=lambda s: (units[s] - exact[s], s))
    for s in order[: total - sum(units)]:
        units[s] += 1
    return units
