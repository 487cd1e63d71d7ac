"""How the streams of a segment take turns: a pure function from position to stream, in constant time.

A segment gives each stream a whole number of rows (its quota) per period. Inside the period rows are dealt by earliest deadline among
the released (the chairman assignment: Tijdeman 1980, "The chairman assignment problem"; the pfair schedule of Baruah et al. 1996), so
that after any number of rows ``i`` each stream has had ``i * quota / period`` rows to within less than one. The period then repeats,
which leaves the bound as it is, since every period gives each stream exactly its quota.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MAX_PERIOD = 1 << 16


class Interleave:
    """The order in which streams take turns.

    Args:
        quotas: rows of each stream per period, each at least 0, at least one above 0; their sum (the period) at most 65,536.
    """

    def __init__(self, quotas: Sequence[int]) -> None:
        self.period, self._stream, self._rank, self._slots = _pattern(tuple(int(q) for q in quotas))
        self.quotas = np.asarray(quotas, dtype=np.int64)
        self._first_slot = np.concatenate([[0], np.cumsum(self.quotas)[:-1]])

    def at(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for each position, its stream and how many rows that stream had before it."""
        turn, slot = np.divmod(positions, self.period)
        stream = self._stream[slot].astype(np.int64)
        return stream, turn * self.quotas[stream] + self._rank[slot]

    def position(self, stream: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
        """The inverse of ``at``: where a stream's row number ``index`` stands."""
        turn, rank = np.divmod(index, self.quotas[stream])
        slots: NDArray[np.int64] = turn * self.period + self._slots[self._first_slot[stream] + rank]
        return slots

    def counts(self, length: int) -> NDArray[np.int64]:
        """Rows that each stream has among the first ``length`` positions."""
        turn, rest = divmod(int(length), self.period)
        return turn * self.quotas + np.bincount(self._stream[:rest], minlength=len(self.quotas))

    def longest(self, available: Sequence[int]) -> int:
        """The largest length at which no stream needs more rows than it has available."""
        ends = [int(self.position(np.array([s]), np.array([have]))[0]) for s, have in enumerate(available) if self.quotas[s] > 0]
        return min(ends)


@lru_cache(maxsize=256)
def _pattern(quotas: tuple[int, ...]) -> tuple[int, NDArray[np.uint16], NDArray[np.int32], NDArray[np.int32]]:
    """Period, stream of each slot, rank of each slot within its stream, and the slots of each stream one after another."""
    period = sum(quotas)
    if period < 1 or min(quotas) < 0 or period > MAX_PERIOD:
        raise ValueError(f"quotas must be whole numbers of at least 0 that add up to 1 to {MAX_PERIOD}, not {quotas}")
    # Row j of a stream with quota q may stand in slots floor(j P / q) to ceil((j + 1) P / q) - 1: then its count stays within one.
    waiting = [(0, s) for s, quota in enumerate(quotas) if quota > 0]
    heapq.heapify(waiting)
    ready: list[tuple[int, int]] = []
    given = [0] * len(quotas)
    stream = np.empty(period, dtype=np.uint16)
    rank = np.empty(period, dtype=np.int32)
    for slot in range(period):
        while waiting and waiting[0][0] <= slot:
            _, s = heapq.heappop(waiting)
            heapq.heappush(ready, (-(-(given[s] + 1) * period // quotas[s]), s))
        _, s = heapq.heappop(ready)
        stream[slot], rank[slot] = s, given[s]
        given[s] += 1
        if given[s] < quotas[s]:
            heapq.heappush(waiting, (given[s] * period // quotas[s], s))
    slots = np.argsort(stream, kind="stable").astype(np.int32)
    return period, stream, rank, slots


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
