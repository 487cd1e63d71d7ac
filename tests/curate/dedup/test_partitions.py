"""The join from band files and its components, against the join in memory."""

from collections import defaultdict

import numpy as np
import pytest

from curate.dedup.join import Buckets, join
from curate.dedup.near import find_near_duplicates
from curate.dedup.partitions import BandFiles, Components, key_bits, partitioned
from curate.dedup.sketch import Signatures, SketchSettings, sign
from tests.curate.dedup.test_near import arrow


def as_sets(parts: list[Buckets]) -> list[tuple[int, ...]]:
    return sorted(tuple(b.members[x:y].tolist()) for b in parts for x, y in zip(b.starts, b.starts[1:], strict=False))


def test_keys_grow_with_the_corpus_and_always_fit_beside_the_document() -> None:
    assert [key_bits(n) for n in (1, 1000, 1 << 24, (1 << 24) + 1, 100_000_000, (1 << 31) - 1)] == [32, 32, 32, 33, 35, 39]
    for documents in (1, 10, 1 << 24, 100_000_000, (1 << 31) - 1):
        by_chance = 18 * documents / 2 ** key_bits(documents)
        assert by_chance <= 18 / 256


@pytest.mark.parametrize("memory", [1 << 30, 1 << 16])
@pytest.mark.parametrize("documents", [0, 1, 5000])
def test_band_files_give_the_buckets_of_the_join_in_memory(tmp_path, documents: int, memory: int) -> None:
    draw = np.random.default_rng(documents)
    bands = [draw.integers(0, 1 << 32, documents, np.uint32) // 2 * 2 for _ in range(3)]
    for band in bands:
        band[draw.random(documents) < 0.3] = draw.choice(np.append(draw.integers(0, 1 << 32, 40, np.uint32), np.uint32((1 << 32) - 1)))
    files = BandFiles(tmp_path, documents, memory)
    for first in range(0, documents, 700):
        files.append((band[first : first + 700] for band in bands), first)
    assert as_sets(list(files.partitions())) == as_sets([join(bands)])


def test_documents_of_one_short_key_are_told_apart_by_their_sketches_where_there_are_many(tmp_path, monkeypatch) -> None:
    """As in a corpus of 2^31 documents, whose keys have 39 bits; all of ours share their 32 bits, and texts come in pairs."""
    settings = SketchSettings(k=32, bands=4, rows=8)
    signed = sign(arrow([f"the text {n // 2} tells of the number {n // 2} and of no other one" for n in range(400)]), settings)
    met = Signatures(settings, [np.full(400, 7, np.uint32)] * 4, signed.sketch, signed.shingles)
    assert as_sets(list(partitioned(met, tmp_path, 1 << 30))) == [tuple(range(400))] * 4
    monkeypatch.setattr("curate.dedup.partitions.key_bits", lambda documents: 60)
    (tmp_path / "wide").mkdir()
    expected = []
    for band in range(4):
        groups = defaultdict(list)
        for document, entries in enumerate(signed.sketch[:, band * 8 : band * 8 + 8]):
            groups[entries.tobytes()].append(document)
        expected += [tuple(group) for group in groups.values()]
    assert as_sets(list(partitioned(met, tmp_path / "wide", 1 << 30))) == sorted(expected)
    assert len(expected) == 800


def test_batches_hold_whole_components_and_no_more_than_the_memory_bears(tmp_path) -> None:
    draw = np.random.default_rng(5)
    bands = [draw.integers(0, 6000, 8000, np.uint32) for _ in range(2)]
    bands[0][::2], bands[1][::2] = draw.integers(0, 1 << 30, 4000), draw.integers(0, 1 << 30, 4000)
    whole = join(bands)
    components = Components(tmp_path, 8000, 0, 128 * 300)
    components.add(whole)
    batches, candidates = components.batches()
    assert candidates == len(np.unique(whole.members)) and batches > 3
    found, seen = [], np.zeros(8000, np.int64)
    for batch in range(batches):
        documents, buckets = components.batch(batch)
        seen[documents] += 1
        found.append(Buckets(buckets.starts, documents[buckets.members].astype(np.uint32)))
        assert len(documents) + len(buckets.members) <= 300 or is_connected(buckets, len(documents))
    assert seen.max() == 1 and as_sets(found) == as_sets([whole])


def is_connected(buckets: Buckets, nodes: int) -> bool:
    reached, grown = {0}, True
    while grown:
        grown = False
        for first, last in zip(buckets.starts, buckets.starts[1:], strict=False):
            members = set(buckets.members[first:last].tolist())
            if members & reached and not members <= reached:
                reached |= members
                grown = True
    return len(reached) == nodes


@pytest.mark.parametrize("policy", ["leader", "transitive"])
def test_the_choice_is_the_same_under_any_limit_and_any_width_of_keys(monkeypatch, policy) -> None:
    draw = np.random.default_rng(2)
    words = [f"w{n}" for n in range(300)]
    texts = [" ".join(draw.choice(words, 60)) for _ in range(60)]
    texts = [text.replace(f"w{copy}", "x", copy) for text in texts for copy in range(4)]
    array, settings = arrow(texts), SketchSettings(shingle=2)
    signed, rank = sign(array, settings), draw.permutation(len(texts))

    def choose(memory: int) -> tuple[list[int], list[int]]:
        found = find_near_duplicates(signed, rank, lambda rows: array.take(rows), settings, 0.7, policy, memory_limit=memory)
        return found.document.tolist(), found.kept.tolist()

    plenty = choose(1 << 30)
    assert len(plenty[0]) > 60
    assert choose(1 << 16) == plenty == choose(1 << 13)
    monkeypatch.setattr("curate.dedup.partitions.key_bits", lambda documents: 50)
    assert choose(1 << 13) == plenty
