"""Near-duplicates of a set of documents: LSH join, a look at the small sketches, exact verification, a keep policy."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numba
import numpy as np
import numpy.typing as npt

from curate.dedup.graph import candidate_graph
from curate.dedup.join import Buckets, join
from curate.dedup.leader import MAX_PAIRS, Decisions, Verify, decide_leaders
from curate.dedup.partitions import Components, key_bits, partitioned
from curate.dedup.scratch import Scratch
from curate.dedup.sketch import Signatures, SketchSettings
from curate.dedup.transitive import decide_transitive
from curate.dedup.verify import BATCH_SHINGLES, FetchTexts, Int64, exact_jaccard, jaccards, read_sets

NEAR_VERSION = 1
"""Changes whenever equal signatures, texts and preferences give other duplicates."""

_DEVIATIONS = 5.0
"""A candidate whose sketch lies this many standard deviations below the threshold is not read again."""

_KEY_COST, _PLACE_COST = 24, 8
"""Bytes that a join in memory takes for each key of the band at hand, and for each document's place in a bucket of any band."""
_PAIR_COST = 192
"""Bytes of working memory for each pair that is verified: its documents' numbers, in order, and what they have in common."""
_LEAST_PAIRS = 1 << 14
"""Pairs that are verified at once however little memory there is."""


@dataclass(frozen=True)
class NearDuplicates:
    """Documents that go, with what they duplicate, and counts of what the search met."""

    document: Int64
    """Indices of the dropped documents, ascending."""
    kept: Int64
    """For each, the index of the kept document: its cluster's id."""
    similarity: npt.NDArray[np.float64]
    """For each, the exact Jaccard similarity to the kept document; with the leader policy never below the threshold."""
    candidates: int
    """Documents that share a band with another."""
    comparisons: int
    """Pairs that the policy asked to compare; of many, the memory limit decides which come in one call, and so how many."""
    verified: int
    """Pairs of these whose texts were read again; the others' sketches lie far below the threshold."""
    rounds: int
    """Rounds of comparisons."""
    largest_cluster: int
    """Documents of the largest cluster, the kept one included; 0 without duplicates."""
    largest_bucket: int
    """Documents of the largest LSH bucket."""
    oversized_buckets: int
    """Buckets that stopped comparing at the limit of leaders with members left."""


@numba.njit(nogil=True, cache=True)
def _agreements(sketch, left, right, out):  # type: ignore[no-untyped-def]
    """Equal sketch bytes of pairs of rows."""
    for p in range(len(left)):
        equal = np.int32(0)
        for j in range(sketch.shape[1]):
            equal += np.int32(sketch[left[p], j] == sketch[right[p], j])
        out[p] = equal


def _least_agreement(k: int, threshold: float) -> float:
    """Equal sketch entries below which a pair is not read again."""
    return k * threshold - _DEVIATIONS * float(np.sqrt(k * threshold * (1.0 - threshold)))


class _Verifier:
    """Similarities of pairs, 0 where the small sketches show that they are far below the threshold.

    Policies ask in rounds, often for the same documents: where the budget holds the shingles of all, their texts are read once.
    """

    def __init__(self, signatures: Signatures, fetch_texts: FetchTexts, threshold: float, budget: int, threads: int) -> None:
        self._signatures, self._fetch, self._budget, self._threads = signatures, fetch_texts, budget, threads
        self._least = _least_agreement(signatures.settings.k, threshold)
        self._fits = int(np.sum(signatures.shingles, dtype=np.int64)) <= budget
        self.verified = 0

    @cached_property
    def _sets(self) -> tuple[npt.NDArray[np.uint64], Int64]:
        return read_sets(np.arange(len(self._signatures)), self._fetch, self._signatures.settings.shingle, self._threads)

    def measure(self, left: Int64, right: Int64) -> npt.NDArray[np.float64]:
        self.verified += len(left)
        if self._fits:
            return jaccards(*self._sets, left, right)
        return exact_jaccard(
            left, right, self._signatures.shingles, self._fetch, self._signatures.settings.shingle, self._budget, self._threads
        )

    def __call__(self, left: Int64, right: Int64) -> npt.NDArray[np.float64]:
        equal = np.empty(len(left), np.int32)
        _agreements(self._signatures.sketch, left, right, equal)
        close = np.flatnonzero(equal >= self._least)
        out = np.zeros(len(left))
        if len(close):
            out[close] = self.measure(left[close], right[close])
        return out


def find_near_duplicates(
    signatures: Signatures,
    preference: npt.NDArray[Any],
    fetch_texts: FetchTexts,
    settings: SketchSettings,
    threshold: float = 0.8,
    policy: Literal["leader", "transitive"] = "leader",
    locked: int = 0,
    *,
    memory_limit: int = 4 << 30,
    threads: int = 1,
) -> NearDuplicates:
    """Finds the documents to drop.

    Args:
        signatures: Of all documents; its arrays may be memory-mapped.
        preference: Rank of each document, shape (documents,), integers or floats: the smallest is kept first. Documents that
            share a band must have different ranks.
        fetch_texts: Gives the texts of documents by ascending index; called with batches of candidates only, from several threads.
        settings: What the signatures must have been made with.
        threshold: Least exact Jaccard similarity of duplicates.
        policy: leader: a document goes only when a kept one is verified similar to it. transitive: one document of each
            connected component stays.
        locked: Documents kept in earlier generations, the first ones: they come before all others in preference, are
            not compared with each other, and are never dropped.
        memory_limit: Bytes of working memory, see `curate.dedup.partitions`.
        threads: Batches of components decided at once, or texts of a batch. Which documents go, and for which, depends on neither of
            the last two.

    Returns:
        Dropped documents and counts.

    Raises:
        ValueError: For signatures of other settings, arrays of unequal length, a threshold outside (0, 1], or tied ranks.
    """
    if signatures.settings.fingerprint != settings.fingerprint:
        raise ValueError(f"signatures were made with {signatures.settings.fingerprint}, not with {settings.fingerprint}: sign again")
    if not 0.0 < threshold <= 1.0:
        raise ValueError(f"threshold = {threshold}: a similarity above 0, at most 1")
    if len(preference) != len(signatures):
        raise ValueError(f"preference has {len(preference)} entries for {len(signatures)} documents")
    if policy not in ("leader", "transitive"):
        raise ValueError(f"policy = {policy!r}: it is leader or transitive")
    share = memory_limit // 2 // threads
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        components = Components(Path(folder), len(signatures), locked, share // 2)
        if key_bits(len(signatures)) == 32 and len(signatures) * (_KEY_COST + _PLACE_COST * len(signatures.bands)) <= memory_limit // 2:
            joined: Iterable[Buckets] = [join(signatures.bands, max(memory_limit, 1 << 20))]
        else:
            joined = partitioned(signatures, Path(folder), memory_limit // 2)
        for buckets in joined:
            components.add(buckets)
        batches, candidates = components.batches()
        inner = max(1, threads // max(1, batches))

        def decide(batch: int) -> tuple[Decisions, int]:
            return _decide(components.batch(batch), signatures, preference, fetch_texts, threshold, policy, locked, share, inner)

        scratch = Scratch(len(signatures), memory_limit // 8)
        keeper, similarity, sizes = scratch.array(np.int64, -1), scratch.array(np.float64), scratch.array(np.int32)
        comparisons = verified = rounds = oversized = dropped = 0
        with ThreadPoolExecutor(threads) as pool:
            for found, read in pool.map(decide, range(batches)):
                keeper[found.dropped], similarity[found.dropped] = found.kept, found.similarity
                np.add.at(sizes, found.kept, 1)
                comparisons, verified, dropped = comparisons + found.comparisons, verified + read, dropped + len(found.dropped)
                rounds, oversized = max(rounds, found.rounds), oversized + found.oversized
    largest = max((int(sizes[span].max()) for span in scratch.chunks()), default=0)
    told = Scratch(dropped, memory_limit // 8)
    document, kept, likeness, place = told.array(np.int64), told.array(np.int64), told.array(np.float64), 0
    for rows in scratch.where(lambda span: keeper[span] >= 0):
        part = slice(place, place + len(rows))
        document[part], kept[part], likeness[part] = rows, keeper[rows], similarity[rows]
        place += len(rows)
    return NearDuplicates(
        document, kept, likeness, candidates, comparisons, verified, rounds, largest + 1 if largest else 0,
        components.largest_bucket, oversized,
    )  # fmt: skip


def _decide(
    batch: tuple[Int64, Buckets],
    signatures: Signatures,
    preference: npt.NDArray[Any],
    fetch_texts: FetchTexts,
    threshold: float,
    policy: str,
    locked: int,
    memory: int,
    threads: int,
) -> tuple[Decisions, int]:
    """Decides a batch of components; returns the decisions, by document index, and the pairs whose texts were read."""
    documents, _ = batch
    mine = Signatures(signatures.settings, [], signatures.sketch[documents], signatures.shingles[documents])
    budget = min(BATCH_SHINGLES, max(1, memory // 64))
    verify = _Verifier(mine, lambda indices: fetch_texts(documents[indices]), threshold, budget, threads)
    return decide_batch(batch, preference, locked, verify, verify.measure, threshold, policy, memory), verify.verified


def decide_batch(
    batch: tuple[Int64, Buckets],
    preference: npt.NDArray[Any],
    locked: int,
    verify: Verify,
    measure: Verify,
    threshold: float,
    policy: str,
    memory: int,
) -> Decisions:
    """Decides a batch of components, see `find_near_duplicates`.

    Args:
        batch: From `Components.batch`.
        preference: Rank of each document.
        locked: Documents below this one stay.
        verify: Similarities of pairs of places in the batch; may give 0 below the threshold.
        measure: The same without that freedom.
        threshold: Least similarity of duplicates.
        policy: leader or transitive.
        memory: Bytes of working memory: the graph takes half (`Components`), pairs a quarter, texts that are read again the rest.

    Returns:
        The decisions, by document index.
    """
    documents, buckets = batch
    graph = candidate_graph(buckets, preference[documents], documents < locked)
    pairs = min(MAX_PAIRS, max(_LEAST_PAIRS, memory // 4 // _PAIR_COST))
    if policy == "leader":
        found = decide_leaders(graph, verify, threshold, max_pairs=pairs)
    else:
        found = decide_transitive(graph, verify, measure, threshold, max_pairs=pairs)
    return replace(found, dropped=documents[found.dropped], kept=documents[found.kept])
