"""Near-deduplication in process, with recall and orphans against exact all-pairs similarities.

    python bench/dedup.py DATA [--threads N] [--join DOCUMENTS]

DATA holds folders `bench` and `neardup` of jsonl.gz. The corpus is every sixth document of `bench` with 200 bytes and more,
and 6 % planted copies of it with some words replaced. A pair is recalled when not both of its documents stay; an orphan is a
removed document that no kept document resembles at the threshold. Similarities for both come from `curate.dedup.overlap`, which
looks at every pair. `--join` times the LSH join alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import resource
import time
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from signatures import documents

from curate.dedup.join import join, probability_curve
from curate.dedup.near import find_near_duplicates
from curate.dedup.overlap import ReferenceIndex
from curate.dedup.sketch import SketchSettings, sign
from curate.dedup.verify import exact_jaccard


def planted(data: Path) -> list[str]:
    """The corpus: real documents, then altered copies of 6 % of them."""
    draw = np.random.default_rng(0)
    real = [text for text in documents(data / "bench")[::6] if len(text) >= 200]
    copies = []
    for number in draw.choice(len(real), int(0.06 * len(real)), replace=False):
        pieces, share = re.split(r"(\s+)", real[number]), 0.08 * draw.random()
        copies.append("".join(f"edit{draw.integers(1 << 20)}" if p.strip() and draw.random() < share else p for p in pieces))
    return real + copies


VARIANTS = (SketchSettings(), SketchSettings(bands=14, rows=8), SketchSettings(bands=22, rows=5), SketchSettings(kind="minhash"))
RUNS: tuple[tuple[float, Literal["leader", "transitive"]], ...] = ((0.7, "leader"), (0.8, "leader"), (0.8, "transitive"))


def quality(
    found: npt.NDArray[np.int64], pairs: tuple[npt.NDArray[np.int64], ...], similarity: npt.NDArray[np.float64], least: float
) -> str:
    """Recall of pairs, and orphans at the threshold `least`."""
    gone = np.zeros(int(max(pairs[0].max(), found.max())) + 1, np.bool_)
    gone[found] = True
    left, right = pairs
    true, near_kept = similarity >= 0.8, np.zeros(len(gone), np.bool_)
    near_kept[left[(similarity >= least) & ~gone[right]]] = True
    recall = (gone[left[true]] | gone[right[true]]).mean()
    return f"removed {len(found)}, recall of {true.sum() // 2} pairs J >= 0.8: {recall:.5f}, orphans {(~near_kept[found]).mean():.2%}"


def end_to_end(data: Path, threads: int) -> None:
    """Times sign, join, verify and decide, and holds the result against all pairs."""
    array = pa.array(planted(data), pa.large_string())
    size, rank = array.nbytes / 1e6, np.arange(len(array))
    ReferenceIndex(array[:9]).similar(array[:9], 0.7)
    begin = time.process_time()
    rows, references, similarity = ReferenceIndex(array).similar(array, 0.7)
    print(f"all pairs by the reference index, {len(array)} references: {size / (time.process_time() - begin):.0f} MB/s")
    other = rows != references
    pairs, similarity = (rows[other], references[other]), similarity[other]
    print(f"{len(array)} documents, {size:.0f} MB, {len(similarity) // 2} pairs of J >= 0.7")

    def fetch(indices: npt.NDArray[np.int64]) -> pa.LargeStringArray:
        return array.take(pa.array(indices))

    for settings in VARIANTS:
        for threshold, policy in RUNS:
            times = []
            for _ in range(3):
                start = time.process_time(), time.perf_counter()
                signed = sign(array, settings, threads)
                middle = time.process_time()
                result = find_near_duplicates(signed, rank, fetch, settings, threshold, policy, threads=threads)
                times.append((time.process_time() - start[0], middle - start[0], time.perf_counter() - start[1]))
            total, signing, wall = min(times)
            name = f"{settings.kind} {settings.bands}x{settings.rows} {policy} {threshold}"
            print(f"{name}: {quality(result.document, pairs, similarity, threshold)}")
            print(
                f"    processor {total:.2f} s ({size / total:.0f} MB/s; signing {signing:.2f} s), wall {wall:.2f} s, "
                f"compared {result.comparisons}, verified {result.verified}, rounds {result.rounds}"
            )


def revisions(data: Path) -> None:
    """Precision and recall of candidates at 0.8 on published pairs."""
    import gzip

    with gzip.open(data / "neardup" / "docs.jsonl.gz", "rt", encoding="utf-8") as lines:
        named = {record["id"]: record["text"] for record in map(json.loads, lines)}
    number = {name: i for i, name in enumerate(named)}
    with (data / "neardup" / "pairs.tsv").open(encoding="utf-8") as lines:
        table = list(csv.DictReader(lines, delimiter="\t"))
    left, right = (np.array([number[row[name]] for row in table]) for name in ("id_a", "id_b"))
    published = np.array([float(row["jaccard_word5"]) for row in table])
    array = pa.array(list(named.values()), pa.large_string())
    for settings in VARIANTS:
        signed = sign(array, settings)
        keys = np.array(signed.bands)
        exact = exact_jaccard(left, right, signed.shingles, lambda indices: array.take(pa.array(indices)), settings.shingle)
        called, true = (keys[:, left] == keys[:, right]).any(axis=0) & (exact >= 0.8), published >= 0.8
        print(
            f"neardup pairs at 0.8, {settings.kind} {settings.bands}x{settings.rows}: precision {true[called].mean():.4f}, "
            f"recall {called[true].mean():.4f} of {true.sum()}; P(candidate | J = .8) {probability_curve(settings, 0.8):.4f}"
        )


def join_alone(count: int) -> None:
    """The join of random signatures, a fifth of them near-copies that share about 60 % of their bands."""
    draw, times = np.random.default_rng(0), {}
    for documents_ in (count // 10, count):
        copy, original = draw.random(documents_) < 0.2, draw.integers(0, documents_, documents_)
        bands = []
        for _ in range(SketchSettings().bands):
            keys = draw.integers(0, 1 << 32, documents_, np.uint32)
            shared = copy & (draw.random(documents_) < 0.6)
            keys[shared] = keys[original[shared]]
            bands.append(keys)
        join([band[:1000] for band in bands])
        start = time.process_time()
        buckets = join(bands)
        times[documents_] = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
        print(f"join of {documents_} signatures: {times[documents_]:.2f} s of processor time, {len(buckets)} buckets, peak {peak:.2f} GiB")
    small, large = times.values()
    print(f"exponent {np.log10(large / small):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--join", type=int, metavar="DOCUMENTS")
    options = parser.parse_args()
    if options.join:
        join_alone(options.join)
        return
    end_to_end(options.data, options.threads)
    revisions(options.data)


if __name__ == "__main__":
    main()
