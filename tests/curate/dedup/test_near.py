"""Near-duplicates of texts against brute-force Jaccard and the sequential rule."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from unicodedata import category

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.dedup.near import NearDuplicates, find_near_duplicates
from curate.dedup.shingles import ALONE, word_table
from curate.dedup.sketch import SketchSettings, sign
from curate.dedup.verify import exact_jaccard

SETTINGS = SketchSettings(k=64, bands=32, rows=2, shingle=2)
DATA = Path(__file__).parents[4] / "shared" / "data" / "neardup"


def arrow(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


def near(texts: list[str], rank: np.ndarray, sketch: SketchSettings = SETTINGS, **options) -> NearDuplicates:
    array = arrow(texts)

    def fetch(indices: np.ndarray) -> pa.LargeStringArray:
        assert (np.diff(indices) > 0).all()
        return array.take(pa.array(indices))

    return find_near_duplicates(sign(array, sketch), rank, fetch, sketch, **options)


def shingles(text: str, width: int = 2) -> set[object]:
    words = text.lower().split()
    return {tuple(words[i : i + width]) for i in range(len(words) - width + 1)} if len(words) >= width else {text}


def jaccard(a: str, b: str) -> float:
    return len(shingles(a) & shingles(b)) / len(shingles(a) | shingles(b))


@st.composite
def revisions(draw: st.DrawFn) -> list[str]:
    """Revisions of a few texts: words changed here and there, so that similarities lie on both sides of the threshold."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    out: list[str] = []
    for base in range(draw(st.integers(1, 4))):
        words = [f"w{base}x{i}" for i in range(random.integers(1, 60))]
        for _ in range(random.integers(1, 7)):
            edited = [f"e{random.integers(1 << 30)}" if random.random() < 0.04 else word for word in words]
            out.append(" ".join(edited))
            words = edited if random.random() < 0.5 else words
    random.shuffle(out)
    return out


def sequential(texts: list[str], rank: np.ndarray, threshold: float, locked: np.ndarray) -> dict[int, int]:
    keys = np.array(sign(arrow(texts), SETTINGS).bands)
    order = sorted(range(len(texts)), key=lambda d: (not locked[d], rank[d]))
    gone: dict[int, int] = {}
    for place, v in enumerate(order):
        for u in order[place + 1 :]:
            meets = (keys[:, u] == keys[:, v]).any() and jaccard(texts[u], texts[v]) >= threshold
            if v not in gone and u not in gone and not locked[u] and meets:
                gone[u] = v
    return gone


@settings(max_examples=60)
@given(revisions(), st.integers(0, 1 << 32), st.sampled_from([0.5, 0.8, 1.0]), st.booleans())
def test_what_goes_is_what_the_sequential_rule_drops(texts: list[str], seed: int, threshold: float, locks: bool) -> None:
    random = np.random.default_rng(seed)
    rank, first = random.permutation(len(texts)), len(texts) // 3 if locks else 0
    locked = np.arange(len(texts)) < first
    result = near(texts, rank, threshold=threshold, locked=first)
    assert dict(zip(result.document.tolist(), result.kept.tolist(), strict=True)) == sequential(texts, rank, threshold, locked)
    for u, v, similarity in zip(result.document, result.kept, result.similarity, strict=True):
        assert similarity == pytest.approx(jaccard(texts[u], texts[v]), abs=1e-12) and similarity >= threshold


@settings(max_examples=30)
@given(revisions(), st.integers(0, 1 << 32), st.sampled_from(["leader", "transitive"]))
def test_batches_and_the_order_of_documents_do_not_matter(texts: list[str], seed: int, policy: str) -> None:
    random = np.random.default_rng(seed)
    rank, order = random.permutation(len(texts)), random.permutation(len(texts))
    one = near(texts, rank, policy=policy)
    other = near([texts[i] for i in order], rank[order], policy=policy, memory_limit=256, threads=2)
    expected = {(int(u), int(v), s) for u, v, s in zip(one.document, one.kept, one.similarity, strict=True)}
    assert {(int(order[u]), int(order[v]), s) for u, v, s in zip(other.document, other.kept, other.similarity, strict=True)} == expected
    assert (one.comparisons, one.largest_cluster) == (other.comparisons, other.largest_cluster)


@settings(max_examples=40)
@given(revisions(), st.integers(0, 1 << 32))
def test_a_new_generation_equals_one_run_with_the_kept_documents_first(texts: list[str], seed: int) -> None:
    random = np.random.default_rng(seed)
    rank, old = random.permutation(len(texts)), max(1, len(texts) // 2)
    first = near(texts[:old], rank[:old])
    kept = np.setdiff1d(np.arange(old), first.document)
    among = np.concatenate([kept, np.arange(old, len(texts))])
    second = near([texts[i] for i in among], rank[among], locked=len(kept))
    prefer = rank + len(texts) * ~np.isin(np.arange(len(texts)), kept)
    whole = near(texts, prefer)
    new = whole.document >= old
    assert among[second.document].tolist() == whole.document[new].tolist()
    assert among[second.kept].tolist() == whole.kept[new].tolist()
    assert set(whole.document[~new].tolist()) == set(first.document.tolist())


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=1, max_size=12))
def test_any_short_text_goes_only_for_an_equal_one(texts: list[str]) -> None:
    result = near(texts, np.arange(len(texts)), SketchSettings(shingle=30))
    folded = [" ".join(t.split()) for t in texts]
    assert len(result.document) == len(texts) - len(set(folded))
    assert all(folded[u] == folded[v] and v < u for u, v in zip(result.document, result.kept, strict=True))


def test_alarm_facts_count_the_largest_cluster_and_bucket() -> None:
    result = near(["one two three"] * 5 + ["four five six"] * 2 + ["seven eight nine"], np.arange(8))
    assert (result.largest_cluster, result.largest_bucket, result.oversized_buckets, result.candidates) == (5, 5, 0, 7)
    empty = near([], np.empty(0))
    assert (len(empty.document), empty.largest_cluster, empty.largest_bucket) == (0, 0, 0)


def test_foreign_signatures_and_bad_arguments_are_refused() -> None:
    array, fetch = arrow(["a b c", "d e f"]), lambda indices: array.take(pa.array(indices))
    signed = sign(array, SETTINGS)
    with pytest.raises(ValueError, match="sign again"):
        find_near_duplicates(signed, np.arange(2), fetch, SketchSettings())
    with pytest.raises(ValueError, match="threshold = 0"):
        find_near_duplicates(signed, np.arange(2), fetch, SETTINGS, threshold=0)
    with pytest.raises(ValueError, match="preference has 3 entries for 2 documents"):
        find_near_duplicates(signed, np.arange(3), fetch, SETTINGS)
    with pytest.raises(ValueError, match="policy = 'best'"):
        find_near_duplicates(signed, np.arange(2), fetch, SETTINGS, policy="best")


@pytest.mark.skipif(not DATA.exists(), reason="needs the shared data folder `neardup`")
def test_pairs_of_real_revisions_are_told_apart_at_the_threshold() -> None:
    """Precision and recall of verified candidates against published exact similarities of lower-cased word 5-grams."""
    with gzip.open(DATA / "docs.jsonl.gz", "rt", encoding="utf-8") as lines:
        documents = {record["id"]: record["text"] for record in map(json.loads, lines)}
    number = {name: i for i, name in enumerate(documents)}
    with (DATA / "pairs.tsv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    left, right = (np.array([number[row[name]] for row in rows]) for name in ("id_a", "id_b"))
    published = np.array([float(row["jaccard_word5"]) for row in rows])
    words = word_table()
    array, sketch = arrow(list(documents.values())), SketchSettings()
    signed = sign(array, sketch)
    keys = np.array(signed.bands)
    ours = exact_jaccard(left, right, signed.shingles, lambda indices: array.take(pa.array(indices)), sketch.shingle)
    called = (keys[:, left] == keys[:, right]).any(axis=0) & (ours >= 0.8)
    assert (published[called] >= 0.8).mean() >= 0.99
    assert called[published >= 0.8].mean() >= 0.99
    # Where no vowel sign or script without spaces makes other words of the text, similarities are the published ones.
    plain = np.array(
        [not any(int(words[ord(c)]) & ALONE or category(c)[0] == "M" for c in set(t) if ord(c) < len(words)) for t in array.to_pylist()]
    )
    alike = plain[left] & plain[right]
    assert alike.sum() > 5000 and np.abs(ours - published)[alike].max() < 0.005


def templated(documents: int, slots: int) -> list[str]:
    """One form of 200 words, filled in with other facts each time: any two differ in as many words as there are slots, far apart."""
    out = []
    for document in range(documents):
        words = [f"form{place}" for place in range(200)]
        for slot in range(slots):
            words[20 + 30 * slot] = f"fact{document}x{slot}"
        out.append(" ".join(words))
    return out


def test_forms_with_other_facts_just_under_the_threshold_stay() -> None:
    """Five facts in 200 words leave J = 171 / 221 = .774, four .815: all of the ones stay, nearly all others go."""
    apart, alike = templated(120, 5), [text.replace("form", "other") for text in templated(60, 4)]
    assert 0.77 < jaccard_of(apart[0], apart[1]) < 0.8 < jaccard_of(alike[0], alike[1]) < 0.82
    texts = [text for pair in zip(apart[:60], alike, strict=True) for text in pair] + apart[60:]
    found = near(texts, np.arange(len(texts)), SketchSettings())
    gone = [texts[place] for place in found.document.tolist()]
    assert not set(gone) & set(apart)
    # 18 bands of 6 meet such a pair with probability .998.
    assert len(alike) - 3 <= len(gone) < len(alike) and found.similarity.min() > 0.8
    # The search did meet the forms: it is exact verification that told them apart.
    assert found.candidates == len(texts) and found.verified > len(apart)


def jaccard_of(a: str, b: str) -> float:
    left, right = shingles(a, 5), shingles(b, 5)
    return len(left & right) / len(left | right)
