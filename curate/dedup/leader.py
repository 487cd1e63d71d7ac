"""The leader policy: a document goes only when a kept one is verified similar to it.

Kept documents are the first maximal independent set, in the order of preference, over verified edges: the best document stays,
all that are similar to it go, the best of the rest stays, and so on. It is computed in rounds. A document is ready when it is
the best undecided member of each of its buckets; then no better document can remove it any more, so all ready documents
stay, and each is compared with the undecided others of its buckets. The result equals the sequential rule's, in any order of
work, because a ready document has seen every decision that could concern it.

A bucket serves `max_leaders` kept documents, in their order of preference; later ones are not compared within it. So a bucket
of k members costs at most max_leaders * k comparisons; the buckets that reach the limit with members left are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from curate.dedup.graph import CandidateGraph

Int64 = npt.NDArray[np.int64]
Verify = Callable[[Int64, Int64], npt.NDArray[np.float64]]
"""Similarities of pairs of documents; 0 may stand for any value below the threshold."""
Progress = Callable[[int, int], None]
"""Called with (candidate documents decided, candidate documents)."""

MAX_LEADERS = 64
"""Kept documents that one bucket compares with its other members."""

MAX_PAIRS = 1 << 22
"""Most pairs that are verified in one call."""

_UNDECIDED, _KEPT, _DROPPED = 0, 1, 2


@dataclass(frozen=True)
class Decisions:
    """Which documents go, and for which."""

    dropped: Int64
    """Indices of dropped documents, ascending."""
    kept: Int64
    """For each, the kept document."""
    similarity: npt.NDArray[np.float64]
    """For each, the exact Jaccard similarity to the kept document."""
    comparisons: int
    """Pairs that were verified."""
    rounds: int
    """Rounds of verification."""
    oversized: int
    """Buckets that stopped comparing at `max_leaders`, with members left."""


@numba.njit(nogil=True, cache=True)
def _start(starts, members, locked, blocked):  # type: ignore[no-untyped-def]
    """Counts for each node the buckets in which another is better."""
    for b in range(len(starts) - 1):
        for i in range(starts[b] + 1, starts[b + 1]):
            blocked[members[i]] += 1
    return np.array([v for v in range(len(blocked)) if v < locked or blocked[v] == 0], np.int32)


@numba.njit(nogil=True, cache=True)
def _bounds(ready, starts, node_starts, node_buckets, head):  # type: ignore[no-untyped-def]
    """Most pairs that each ready node can give."""
    out = np.zeros(len(ready), np.int64)
    for i in range(len(ready)):
        for p in range(node_starts[ready[i]], node_starts[ready[i] + 1]):
            b = node_buckets[p]
            out[i] += max(0, starts[b + 1] - head[b] - 1)
    return out


@numba.njit(nogil=True, cache=True)
def _emit(ready, locked, starts, members, node_starts, node_buckets, head, leaders, limit, state, keeper, stamp, left, right):  # type: ignore[no-untyped-def]
    """Pairs (ready node, worse node of one of its buckets that it could remove), each once; returns their number."""
    count = 0
    for v in ready:
        for p in range(node_starts[v], node_starts[v + 1]):
            b = node_buckets[p]
            if leaders[b] >= limit:
                continue
            leaders[b] += 1
            for i in range(head[b], starts[b + 1]):
                u = members[i]
                # A document dropped for a worse one than v is compared: it belongs to the best that it resembles.
                if u > v and u >= locked and stamp[u] != v and (state[u] == _UNDECIDED or (state[u] == _DROPPED and keeper[u] > v)):
                    stamp[u] = v
                    left[count], right[count] = v, u
                    count += 1
    return count


@numba.njit(nogil=True, cache=True)
def _apply(left, right, similarity, threshold, state, keeper, best):  # type: ignore[no-untyped-def]
    for i in range(len(left)):
        v, u = left[i], right[i]
        if similarity[i] >= threshold and (state[u] == _UNDECIDED or keeper[u] > v):
            state[u], keeper[u], best[u] = _DROPPED, v, similarity[i]


@numba.njit(nogil=True, cache=True)
def _advance(decided, starts, members, node_starts, node_buckets, head, leaders, limit, state, blocked, ready):  # type: ignore[no-untyped-def]
    """Moves the heads of the buckets of newly decided nodes; writes the nodes that become ready, and returns their number."""
    count = 0
    for v in decided:
        for p in range(node_starts[v], node_starts[v + 1]):
            b = node_buckets[p]
            i, end = head[b], starts[b + 1]
            if i == end:
                continue
            if leaders[b] >= limit:
                # Closed: it blocks none of its undecided members any more. Its head was not blocked by it.
                for j in range(i, end):
                    u = members[j]
                    if state[u] == _UNDECIDED and (j > i):
                        blocked[u] -= 1
                        if blocked[u] == 0:
                            ready[count] = u
                            count += 1
                head[b] = end
                continue
            while i < end and state[members[i]] != _UNDECIDED:
                i += 1
            if i > head[b] and i < end:
                u = members[i]
                blocked[u] -= 1
                if blocked[u] == 0:
                    ready[count] = u
                    count += 1
            head[b] = i
    return count


def _slices(ready: npt.NDArray[np.int32], bounds: Int64, pairs: int) -> Iterator[tuple[npt.NDArray[np.int32], int]]:
    """Consecutive ready nodes whose pairs fit one call, with room for them; a single node may exceed it."""
    total, first = np.cumsum(bounds), 0
    while first < len(ready):
        base = int(total[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(total, base + pairs, "right")))
        yield ready[first:last], int(total[last - 1]) - base
        first = last


def decide_leaders(
    graph: CandidateGraph,
    verify: Verify,
    threshold: float,
    max_leaders: int = MAX_LEADERS,
    progress: Progress | None = None,
    max_pairs: int = MAX_PAIRS,
) -> Decisions:
    """Runs the leader policy.

    Args:
        graph: Candidates, numbered by preference, locked ones first.
        verify: Exact similarities of pairs of documents.
        threshold: Least similarity of duplicates.
        max_leaders: Kept documents that one bucket compares with its other members.
        progress: Told (documents decided, documents) after each call of `verify`.
        max_pairs: Pairs of one call of `verify`, unless one document has more; the result does not depend on it.

    Returns:
        For each dropped document the most preferred kept document that it is verified similar to.
    """
    nodes, size = len(graph.documents), len(graph.starts) - 1
    state, keeper, best = np.zeros(nodes, np.int8), np.full(nodes, -1, np.int32), np.zeros(nodes)
    blocked, stamp = np.zeros(nodes, np.int32), np.full(nodes, -1, np.int32)
    head, leaders = graph.starts[:-1].copy(), np.zeros(size, np.int32)
    places = (graph.starts, graph.members, graph.node_starts, graph.node_buckets)
    ready = _start(graph.starts, graph.members, graph.locked, blocked)
    comparisons = rounds = decided = 0
    while len(ready):
        ready = np.sort(ready)
        state[ready] = _KEPT
        gone: list[npt.NDArray[Any]] = [ready]
        rounds += 1
        for part, room in _slices(ready, _bounds(ready, graph.starts, graph.node_starts, graph.node_buckets, head), max_pairs):
            left, right = np.empty(room, np.int32), np.empty(room, np.int32)
            count = _emit(part, graph.locked, *places, head, leaders, max_leaders, state, keeper, stamp, left, right)
            left, right = left[:count], right[:count]
            before = state[right]
            similarity = verify(graph.documents[left], graph.documents[right]) if count else np.zeros(0)
            _apply(left, right, similarity, threshold, state, keeper, best)
            gone.append(np.unique(right[(before == _UNDECIDED) & (state[right] == _DROPPED)]))
            comparisons += count
            if progress is not None:
                progress(decided + sum(map(len, gone)), nodes)
        newly = np.concatenate(gone)
        decided += len(newly)
        coming = np.empty(nodes, np.int32)
        ready = coming[: _advance(newly, *places, head, leaders, max_leaders, state, blocked, coming)]
    oversized = int(((leaders >= max_leaders) & (np.diff(graph.starts) > max_leaders)).sum())
    dropped = np.flatnonzero(state == _DROPPED)
    order = np.argsort(graph.documents[dropped])
    dropped = dropped[order]
    return Decisions(graph.documents[dropped], graph.documents[keeper[dropped]], best[dropped], comparisons, rounds, oversized)
