"""Sets of whole numbers as ascending, disjoint, half-open ranges that do not touch: uses of a lot are named by them."""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def union(ranges: Iterable[Range]) -> Ranges:
    """All numbers of some ranges, which may come in any order, overlap and be empty."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return tuple(joined)


def minus(ranges: Iterable[Range], gone: Iterable[Range]) -> Ranges:
    """The numbers of some ranges that others do not hold."""
    left: list[Range] = []
    holes = union(gone)
    at = 0
    for start, stop in union(ranges):
        while at < len(holes) and holes[at][1] <= start:
            at += 1
        hole = at
        while start < stop:
            if hole == len(holes) or holes[hole][0] >= stop:
                left.append((start, stop))
                break
            if start < holes[hole][0]:
                left.append((start, holes[hole][0]))
            start = holes[hole][1]
            hole += 1
    return tuple(left)


def both(ranges: Iterable[Range], others: Iterable[Range]) -> Ranges:
    """The numbers that are in both."""
    first = union(ranges)
    return minus(first, minus(first, others))


def size(ranges: Iterable[Range]) -> int:
    """How many numbers disjoint ranges hold."""
    return sum(stop - start for start, stop in ranges)
