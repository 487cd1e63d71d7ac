"""Sketches: bias and variance against theory, datasketch as oracle, invariance of batches."""

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup.shingles import shingle_sets
from curate.dedup.sketch import Signatures, SketchSettings, sign, sketch_values, to_datasketch

KINDS = ["fast_similarity", "minhash"]
texts_of_any_kind = st.lists(st.text(st.characters(codec="utf-8") | st.sampled_from(list("ab \n")), max_size=60), max_size=10)


def arrow(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


def pairs_of_sets(shared: int, alone: int, trials: int) -> pa.LargeStringArray:
    """2 * trials texts of distinct words (shingle 1): texts 2 i and 2 i + 1 share `shared` words and have `alone` each besides."""
    out = []
    for trial in range(trials):
        common = [f"c{trial}x{i}" for i in range(shared)]
        out += [" ".join(common + [f"{side}{trial}x{i}" for i in range(alone)]) for side in "ab"]
    return arrow(out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shared", "alone"), [(4, 2), (20, 10), (30, 3), (150, 150), (900, 60), (2000, 4000)])
def test_the_estimate_has_no_bias_and_no_more_variance_than_minhash(kind: str, shared: int, alone: int) -> None:
    k, trials = 128, 1200 if shared < 500 else 300
    values = sketch_values(pairs_of_sets(shared, alone, trials), SketchSettings(kind=kind, k=k, shingle=1))
    estimates = (values[::2] == values[1::2]).mean(axis=1)
    jaccard = shared / (shared + 2 * alone)
    variance = jaccard * (1 - jaccard) / k
    assert abs(estimates.mean() - jaccard) < 4 * np.sqrt(variance / trials)
    ratio = ((estimates - jaccard) ** 2).mean() / variance
    most = {"minhash": 1.0, "fast_similarity": 0.6 if shared + alone < 50 else 0.85 if shared + alone <= 300 else 1.0}[kind]
    assert ratio < most + 4 * np.sqrt(2 / trials)


@pytest.mark.parametrize("kind", KINDS)
def test_low_bytes_agree_as_whole_entries_do(kind: str) -> None:
    array, settings = pairs_of_sets(60, 20, 200), SketchSettings(kind=kind, shingle=1)
    values, small = sketch_values(array, settings), sign(array, settings).sketch
    equal = values[::2] == values[1::2]
    assert (small[::2] == small[1::2])[equal].all()
    chance = (small[::2] == small[1::2])[~equal].mean()
    assert chance < 2 / 256


def test_band_keys_are_equal_when_all_rows_of_the_band_are() -> None:
    array, settings = pairs_of_sets(90, 10, 300), SketchSettings(shingle=1, k=64, bands=16, rows=4)
    values, keys = sketch_values(array, settings), np.array(sign(array, settings).bands)
    rows = (values[::2] == values[1::2]).reshape(-1, 16, 4).all(axis=2)
    assert np.array_equal(keys[:, ::2] == keys[:, 1::2], rows.T)
    assert 0.1 < rows.mean() < 0.9


def test_minhash_equals_datasketch_and_loads_into_it() -> None:
    array = arrow(["", "a b", "one two three four five six seven", "漢字 " * 30, " ".join(map(str, range(400)))])
    settings = SketchSettings(kind="minhash", k=64, bands=8, seed=7)
    hashes, offsets = shingle_sets(array)
    for i, ours in enumerate(to_datasketch(sketch_values(array, settings), settings)):
        theirs = MinHash(num_perm=64, seed=7, hashfunc=int)
        theirs.update_batch([int(h) & 0xFFFFFFFF for h in hashes[offsets[i] : offsets[i + 1]]])
        assert np.array_equal(ours.hashvalues, theirs.hashvalues)
        assert ours.jaccard(theirs) == 1.0


def test_fast_similarity_sketches_load_into_datasketch_and_merge_to_the_union() -> None:
    settings = SketchSettings(shingle=1)
    array = arrow(["a b c d", "c d e f g h", "a b c d e f g h", " ".join(map(str, range(900)))])
    values = sketch_values(array, settings)
    left, right, union, _ = to_datasketch(values, settings)
    assert left.jaccard(right) == (values[0] == values[1]).mean()
    left.merge(right)
    assert np.array_equal(left.hashvalues, union.hashvalues)


@pytest.mark.parametrize("kind", KINDS)
@given(texts=texts_of_any_kind, cut=st.integers(0, 10), threads=st.integers(1, 3))
def test_signatures_depend_on_nothing_but_the_text(kind: str, texts: list[str], cut: int, threads: int) -> None:
    settings = SketchSettings(kind=kind, k=16, bands=4, rows=4, shingle=2)
    array = arrow(texts)
    whole = sign(array, settings)
    parts = Signatures.concatenate([sign(array[:cut], settings, threads), sign(array[cut:], settings, threads)])
    assert all(np.array_equal(a, b) for a, b in zip(whole.bands, parts.bands, strict=True))
    assert np.array_equal(whole.sketch, parts.sketch) and np.array_equal(whole.shingles, parts.shingles)


def test_64_bit_keys_extend_32_bit_keys() -> None:
    array = arrow(["one two three four five six", "x"])
    narrow, wide = sign(array, SketchSettings()), sign(array, SketchSettings(key_bits=64))
    assert wide.bands[0].dtype == np.uint64 and narrow.bands[0].dtype == np.uint32
    assert len({*np.array(wide.bands).ravel().tolist()}) == 36 == len({*np.array(narrow.bands).ravel().tolist()})


def test_settings_and_fingerprints_keep_unequal_signatures_apart() -> None:
    array = arrow(["one two three four five six"])
    variants = [SketchSettings(), SketchSettings(seed=2), SketchSettings(kind="minhash"), SketchSettings(shingle=4), SketchSettings(rows=5)]
    assert len({s.fingerprint for s in variants}) == len(variants)
    with pytest.raises(ValueError, match="different settings"):
        Signatures.concatenate([sign(array, variants[0]), sign(array, variants[1])])
    with pytest.raises(ValueError, match=r"bands \* rows = 20 \* 6"):
        SketchSettings(bands=20)


def test_signatures_are_pinned() -> None:
    """A change here needs a new SIGNATURE_VERSION."""
    array = arrow(["", "short one", "The quick brown fox jumps over the lazy dog.", "漢字かな交じり文"])
    for kind, expected in PINNED.items():
        signed = sign(array, SketchSettings(kind=kind, k=16, bands=2, rows=8))
        assert [int(x) for x in signed.bands[1]] == expected


PINNED = {"fast_similarity": [1873960641, 2294324038, 3670528790, 876927338], "minhash": [3797412132, 2704742356, 3442052826, 2494686223]}
