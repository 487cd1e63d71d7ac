"""Keep policies against sequential brute force on random graphs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.dedup.graph import candidate_graph
from curate.dedup.join import Buckets
from curate.dedup.leader import MAX_PAIRS, Decisions, decide_leaders
from curate.dedup.transitive import decide_transitive

THRESHOLD = 0.8


@dataclass
class Case:
    """A random candidate structure: buckets of documents, all pairs' similarities, ranks and locks."""

    buckets: list[list[int]]
    similarity: np.ndarray
    rank: np.ndarray
    locked: np.ndarray

    def graph(self, buckets: list[list[int]] | None = None):
        chosen = self.buckets if buckets is None else buckets
        starts = np.cumsum([0, *map(len, chosen)])
        members = np.array([m for b in chosen for m in sorted(b)], np.uint32)
        return candidate_graph(Buckets(starts.astype(np.int64), members), self.rank, self.locked)

    def verify(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return self.similarity[left, right]

    def order(self) -> list[int]:
        return sorted(range(len(self.rank)), key=lambda d: (not self.locked[d], self.rank[d]))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    documents = draw(st.integers(2, 24))
    seed, count = draw(st.integers(0, 1 << 32)), draw(st.integers(0, 20))
    random = np.random.default_rng(seed)
    most = draw(st.integers(2, documents))
    buckets = [random.choice(documents, random.integers(2, most + 1), replace=False).tolist() for _ in range(count)]
    similar = random.random((documents, documents)) < draw(st.sampled_from([0.05, 0.3, 0.7, 1.0]))
    similarity = np.triu(np.where(similar, 0.8 + 0.2 * random.random(similar.shape), 0.79 * random.random(similar.shape)))
    locked = random.random(documents) < draw(st.sampled_from([0.0, 0.0, 0.3]))
    return Case(buckets, np.maximum(similarity, similarity.T), random.permutation(documents), locked)


def sequential(case: Case, max_leaders: int) -> dict[int, int]:
    """Document by document in preference order: what is not dropped stays and drops what resembles it."""
    gone: dict[int, int] = {}
    served, done = [0] * len(case.buckets), set()
    for v in case.order():
        done.add(v)
        if v in gone:
            continue
        for b, bucket in enumerate(case.buckets):
            if v in bucket and served[b] < max_leaders:
                served[b] += 1
                for u in bucket:
                    if u not in done and u not in gone and not case.locked[u] and case.similarity[v, u] >= THRESHOLD:
                        gone[u] = v
    return gone


def found(decisions: Decisions) -> dict[int, int]:
    return dict(zip(decisions.dropped.tolist(), decisions.kept.tolist(), strict=True))


@settings(max_examples=400)
@given(cases(), st.integers(1, 24))
def test_rounds_equal_the_sequential_leader(case: Case, max_leaders: int) -> None:
    decisions = decide_leaders(case.graph(), case.verify, THRESHOLD, max_leaders)
    assert found(decisions) == sequential(case, max_leaders)
    assert decisions.dropped.tolist() == sorted(decisions.dropped.tolist())
    assert np.array_equal(decisions.similarity, case.similarity[decisions.kept, decisions.dropped])


@given(cases())
def test_a_document_goes_only_for_a_kept_one_and_every_cluster_keeps_one(case: Case) -> None:
    gone = found(decide_leaders(case.graph(), case.verify, THRESHOLD))
    for u, v in gone.items():
        assert v not in gone and not case.locked[u]
        assert case.similarity[u, v] >= THRESHOLD and any(u in b and v in b for b in case.buckets)
    for bucket in case.buckets:
        stay = [d for d in bucket if d not in gone and not case.locked[d]]
        assert not any(case.similarity[a, b] >= THRESHOLD for a in stay for b in stay if a < b)


@given(cases(), st.integers(0, 1 << 32))
def test_order_and_repetition_of_buckets_and_slices_of_work_do_not_matter(case: Case, seed: int) -> None:
    random = np.random.default_rng(seed)
    shuffled = [case.buckets[i] for i in random.permutation(len(case.buckets))]
    shuffled += [b for b in shuffled if random.random() < 0.3]
    one = decide_leaders(case.graph(), case.verify, THRESHOLD)
    other = decide_leaders(case.graph(shuffled), case.verify, THRESHOLD, max_pairs=1)
    assert found(one) == found(other) and np.array_equal(one.similarity, other.similarity)


@given(cases())
def test_no_pair_is_verified_twice(case: Case) -> None:
    seen: list[tuple[int, int]] = []

    def verify(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        seen.extend((min(a, b), max(a, b)) for a, b in zip(left.tolist(), right.tolist(), strict=True))
        return case.verify(left, right)

    assert decide_leaders(case.graph(), verify, THRESHOLD).comparisons == len(seen) == len(set(seen))


def components(case: Case) -> dict[int, set[int]]:
    group = {d: {d} for d in range(len(case.rank))}
    for bucket in case.buckets:
        for a in bucket:
            for b in bucket:
                if a != b and case.similarity[a, b] >= THRESHOLD and group[a] is not group[b]:
                    group[a] |= group[b]
                    for d in group[b]:
                        group[d] = group[a]
    return group


@settings(max_examples=300)
@given(cases(), st.booleans())
def test_the_transitive_policy_keeps_the_best_of_each_component(case: Case, tiny_slices: bool) -> None:
    place = {d: i for i, d in enumerate(case.order())}
    best = {d: min(group, key=place.__getitem__) for d, group in components(case).items()}
    decisions = decide_transitive(case.graph(), case.verify, case.verify, THRESHOLD, max_pairs=1 if tiny_slices else MAX_PAIRS)
    assert found(decisions) == {d: b for d, b in best.items() if d != b and not case.locked[d]}
    assert np.array_equal(decisions.similarity, case.similarity[decisions.kept, decisions.dropped])


def star(members: int, similar: bool) -> Case:
    return Case([list(range(members))], np.full((members, members), float(similar)), np.arange(members), np.zeros(members, np.bool_))


def test_k_equal_members_cost_k_minus_1_comparisons() -> None:
    for decide in (decide_leaders, lambda graph, verify, threshold: decide_transitive(graph, verify, verify, threshold)):
        case = star(600, similar=True)
        decisions = decide(case.graph(), case.verify, THRESHOLD)
        assert decisions.comparisons == 599 and found(decisions) == dict.fromkeys(range(1, 600), 0)
        assert decisions.oversized == (0 if decide is decide_leaders else 1)


def test_a_bucket_of_unlike_members_compares_a_counted_number_of_leaders() -> None:
    case = star(600, similar=False)
    decisions = decide_leaders(case.graph(), case.verify, THRESHOLD, max_leaders=10)
    assert decisions.comparisons == sum(599 - i for i in range(10)) and not len(decisions.dropped)
    assert decisions.oversized == 1


def test_tied_and_missing_ranks_are_refused() -> None:
    case = star(3, similar=True)
    case.rank = np.array([1, 0, 1])
    with pytest.raises(ValueError, match="documents 0 and 2 have the same rank 1"):
        case.graph()
    case.rank = np.array([1.0, np.nan, 0.0])
    with pytest.raises(ValueError, match="document 1 has the rank NaN"):
        case.graph()
