"""The transitive policy: of each connected component of verified edges, only the most preferred document stays.

Components are those of the verified edges, found by union-find; similarity to the kept document may be below the threshold.
A bucket compares its members with one pivot a round, best first, and passes over pairs that are connected already.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from curate.dedup.graph import CandidateGraph
from curate.dedup.leader import MAX_LEADERS, MAX_PAIRS, Decisions, Progress, Verify


@numba.njit(nogil=True, cache=True)
def _root(parent, v):  # type: ignore[no-untyped-def]
    """The least node of v's component, with path halving."""
    while parent[v] != v:
        parent[v] = parent[parent[v]]
        v = parent[v]
    return v


@numba.njit(nogil=True, cache=True)
def _emit(first, last, step, starts, members, parent, left, right):  # type: ignore[no-untyped-def]
    """Pairs of pivot `step` with later members in buckets first to last - 1, unless connected; returns their number."""
    count = 0
    for b in range(first, last):
        pivot = starts[b] + step
        if pivot + 1 >= starts[b + 1]:
            continue
        v = members[pivot]
        for i in range(pivot + 1, starts[b + 1]):
            if _root(parent, members[i]) != _root(parent, v):
                left[count], right[count] = v, members[i]
                count += 1
    return count


@numba.njit(nogil=True, cache=True)
def _unite(left, right, similarity, threshold, parent):  # type: ignore[no-untyped-def]
    for i in range(len(left)):
        if similarity[i] >= threshold:
            a, b = _root(parent, left[i]), _root(parent, right[i])
            parent[max(a, b)] = min(a, b)


@numba.njit(nogil=True, cache=True)
def _roots(parent):  # type: ignore[no-untyped-def]
    return np.array([_root(parent, v) for v in range(len(parent))], np.int64)


def _slices(sizes: npt.NDArray[np.int64], most: int) -> list[tuple[int, int, int]]:
    """Ranges of buckets, with the members that they hold, of at most so many members, unless one bucket has more."""
    total, out, first = np.cumsum(sizes), [], 0
    while first < len(sizes):
        base = int(total[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(total, base + most, "right")))
        out.append((first, last, int(total[last - 1]) - base))
        first = last
    return out


def decide_transitive(
    graph: CandidateGraph,
    verify: Verify,
    measure: Verify,
    threshold: float,
    max_pivots: int = MAX_LEADERS,
    progress: Progress | None = None,
    max_pairs: int = MAX_PAIRS,
) -> Decisions:
    """Runs the transitive policy.

    Args:
        graph: Candidates, numbered by preference, locked ones first; locked documents stay, whatever they are connected to.
        verify: Similarities of pairs of documents; may give 0 below the threshold.
        measure: The same without that freedom, for the similarity to the kept document.
        threshold: Least similarity of an edge.
        max_pivots: Members of a bucket that are compared with its later ones.
        progress: Told (rounds done, rounds) after each round.
        max_pairs: Pairs of one call of `verify`, unless one bucket has more; the result does not depend on it.

    Returns:
        For each dropped document the most preferred of its component.
    """
    parent = np.arange(len(graph.documents), dtype=np.int64)
    sizes = np.diff(graph.starts)
    longest = int(sizes.max(initial=0))
    comparisons, rounds = 0, min(longest - 1, max_pivots) if longest else 0
    slices = _slices(sizes, max_pairs)
    for step in range(rounds):
        for first, last, room in slices:
            left, right = np.empty(room, np.int32), np.empty(room, np.int32)
            count = _emit(first, last, step, graph.starts, graph.members, parent, left, right)
            if not count:
                continue
            pairs = np.unique(left[:count].astype(np.int64) << 32 | right[:count])
            left, right = (pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32)
            _unite(left, right, verify(graph.documents[left], graph.documents[right]), threshold, parent)
            comparisons += len(pairs)
        if progress is not None:
            progress(step + 1, rounds)
    roots = _roots(parent)
    dropped = np.flatnonzero((roots != np.arange(len(roots))) & (np.arange(len(roots)) >= graph.locked))
    documents, kept = graph.documents[dropped], graph.documents[roots[dropped]]
    order = np.argsort(documents)
    documents, kept = documents[order], kept[order]
    similarity = measure(kept, documents) if len(documents) else np.zeros(0)
    return Decisions(documents, kept, similarity, comparisons, rounds, int((sizes > max_pivots + 1).sum()))
