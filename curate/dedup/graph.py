"""The candidate graph in the order of preference: node numbers are ranks, so that a smaller number is a better document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from curate.dedup.join import Buckets

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CandidateGraph:
    """Documents that share a bucket with another, as nodes 0, 1, ... from the best to the worst."""

    documents: Int64
    """Document index of each node."""
    locked: int
    """Nodes below this number are locked: they stay, whatever they resemble."""
    starts: Int64
    """Bucket b holds members[starts[b]:starts[b + 1]]."""
    members: npt.NDArray[np.int32]
    """Nodes, ascending in each bucket."""
    node_starts: Int64
    """Node v lies in the buckets node_buckets[node_starts[v]:node_starts[v + 1]]."""
    node_buckets: npt.NDArray[np.int32]
    """Bucket numbers, ascending for each node."""


@numba.njit(nogil=True, cache=True)
def _renumber(starts, members, node_of, out):  # type: ignore[no-untyped-def]
    """Members as nodes, sorted in each bucket."""
    for b in range(len(starts) - 1):
        for i in range(starts[b], starts[b + 1]):
            out[i] = node_of[members[i]]
        out[starts[b] : starts[b + 1]].sort()


@numba.njit(nogil=True, cache=True)
def _invert(starts, members, node_starts, node_buckets):  # type: ignore[no-untyped-def]
    """Buckets of each node."""
    for i in range(len(members)):
        node_starts[members[i] + 1] += 1
    for v in range(len(node_starts) - 1):
        node_starts[v + 1] += node_starts[v]
    place = node_starts[:-1].copy()
    for b in range(len(starts) - 1):
        for i in range(starts[b], starts[b + 1]):
            v = members[i]
            node_buckets[place[v]] = b
            place[v] += 1


def candidate_graph(buckets: Buckets, rank: npt.NDArray[Any], locked: npt.NDArray[np.bool_] | None) -> CandidateGraph:
    """Numbers the documents of the buckets by preference.

    Args:
        buckets: From the LSH join.
        rank: Shape (documents,); the smallest is the most preferred.
        locked: Shape (documents,), or None; locked documents come before all others.

    Raises:
        ValueError: When two candidate documents have the same rank, or one is not a number; an undeclared order would decide.
    """
    inside = np.zeros(len(rank), np.bool_)
    inside[buckets.members] = True
    documents = np.flatnonzero(inside)
    ranks = np.asarray(rank)[documents]
    if ranks.dtype.kind == "f" and np.isnan(ranks).any():
        raise ValueError(f"document {documents[np.isnan(ranks).argmax()]} has the rank NaN: give each document a number")
    held = np.zeros(len(documents), np.bool_) if locked is None else np.asarray(locked, np.bool_)[documents]
    order = np.lexsort((ranks, ~held))
    documents, ranks, held = documents[order], ranks[order], held[order]
    tied = np.flatnonzero((ranks[1:] == ranks[:-1]) & (held[1:] == held[:-1]))
    if len(tied):
        first, second = documents[tied[0]], documents[tied[0] + 1]
        raise ValueError(f"documents {first} and {second} have the same rank {ranks[tied[0]]}: break ties, for instance by id")
    node_of = np.empty(len(rank), np.int32)
    node_of[documents] = np.arange(len(documents), dtype=np.int32)
    members = np.empty(len(buckets.members), np.int32)
    _renumber(buckets.starts, buckets.members, node_of, members)
    node_starts, node_buckets = np.zeros(len(documents) + 1, np.int64), np.empty(len(members), np.int32)
    _invert(buckets.starts, members, node_starts, node_buckets)
    return CandidateGraph(documents, int(held.sum()), buckets.starts, members, node_starts, node_buckets)
