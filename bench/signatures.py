"""Text to signature and band keys beside datasketch, rensa and datatrove, with the estimators' accuracy.

    python bench/signatures.py DATA [--peers PYTHON] [--rounds N]

DATA holds folders `bench` and `neardup` of jsonl.gz; PYTHON is an interpreter that has the peers (datasketch, rensa, datatrove
with regex, spacy, tokenizers and xxhash below 4). Each peer runs in a process of its own, on one thread, over every n-th of the
same documents. Rates are in processor time, the best of N rounds for this package.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHARE = {"datasketch": 8, "rensa": 8, "datatrove": 80}
"""Each how-many-th document a peer signs."""


def documents(folder: Path) -> list[str]:
    """Texts of all jsonl.gz files, by file name."""
    out = []
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            out += [json.loads(line)["text"] for line in lines]
    return out


def rate(texts: list[str], seconds: float) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6 / seconds


def best(work: Callable[[], object], rounds: int) -> float:
    """Least processor time of the rounds, after one that is not counted."""
    work()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def shingles(text: str, pattern: re.Pattern[str] = re.compile(r"\w+")) -> list[str]:
    words = pattern.findall(text.lower())
    return [" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))]


def peer(name: str) -> Callable[[str], object]:
    """A function from text to signature, 112 entries, as the peer's documentation has it."""
    if name == "datasketch":
        from datasketch import MinHash

        def sign(text: str) -> object:
            sketch = MinHash(num_perm=112)
            sketch.update_batch([shingle.encode() for shingle in shingles(text)])
            return sketch

        return sign
    if name == "rensa":
        from rensa import RMinHash

        def sign_r(text: str) -> object:
            sketch = RMinHash(num_perm=112, seed=1)
            sketch.update(shingles(text))
            return sketch.digest()

        return sign_r
    from datatrove.pipeline.dedup.minhash import MinhashDedupSignature

    step = MinhashDedupSignature(tempfile.mkdtemp())
    return lambda text: step.get_signature(step.get_shingles(text)) if text.strip() else None


def run_peer(name: str, data: Path) -> None:
    """Signs a part of the documents and prints the rate."""
    texts, sign = documents(data / "bench")[:: SHARE[name]], peer(name)
    for text in texts[:20]:
        sign(text)
    start, done = time.process_time(), []
    for text in texts:
        try:
            sign(text)
            done.append(text)
        except ValueError:  # datatrove has no signature for a text without shingles
            continue
    print(json.dumps(rate(done, time.process_time() - start)))


def ours(texts: list[str], rounds: int) -> dict[str, float]:
    """MB/s of this package's sketches."""
    import pyarrow as pa

    from curate.dedup.sketch import SketchSettings, sign

    array, out = pa.array(texts, pa.large_string()), {}
    for kind in ("fast_similarity", "minhash"):
        for k, bands in ((112, 18), (256, 42)):
            settings = SketchSettings(kind=kind, k=k, bands=bands, rows=6)  # type: ignore[arg-type]
            out[f"gristmill {kind} K={k}"] = rate(texts, best(lambda settings=settings: sign(array, settings), rounds))
    wall = {}
    for threads in (1, 2):
        start = time.perf_counter()
        for _ in range(rounds):
            sign(array, SketchSettings(), threads)
        wall[threads] = rate(texts, (time.perf_counter() - start) / rounds)
    print(f"two threads over one, wall clock: {wall[2] / wall[1]:.2f} ({wall[1]:.0f} -> {wall[2]:.0f} MB/s)")
    return out


def accuracy(data: Path) -> None:
    """Mean squared error over J (1 - J) / K at K = 128, and bias, over pairs and eight seeds."""
    import numpy as np
    import pyarrow as pa
    from datasketch import MinHash

    from curate.dedup.shingles import shingle_sets
    from curate.dedup.sketch import SketchSettings, sketch_values

    texts = documents(data / "neardup")
    draw = np.random.default_rng(0)
    for words, label in ((24, "20 shingles"), (50, "46 shingles"), (304, "300 shingles")):
        heads = [" ".join(re.findall(r"\w+", text)[:words]) for text in texts]
        heads = [head for head in heads if head.count(" ") == words - 1]
        edited = [[w if draw.random() > 0.05 * draw.random() else "edited" for w in head.split()] for head in heads[:1500]]
        left, right = pa.array(heads[:1500], pa.large_string()), pa.array([" ".join(e) for e in edited], pa.large_string())
        sets = [np.split(hashes, offsets[1:-1]) for hashes, offsets in (shingle_sets(left), shingle_sets(right))]
        exact = np.array([len(np.intersect1d(a, b)) / len(np.union1d(a, b)) for a, b in zip(*sets, strict=True)])
        inside = (exact > 0.1) & (exact < 0.97)
        unit = (exact * (1 - exact) / 128)[inside]
        report: dict[str, Any] = {}
        for kind in ("fast_similarity", "minhash"):
            errors = []
            for seed in range(1, 9):
                settings = SketchSettings(kind=kind, k=128, bands=16, seed=seed)  # type: ignore[arg-type]
                errors.append(((sketch_values(left, settings) == sketch_values(right, settings)).mean(axis=1) - exact)[inside])
            report[kind] = np.array(errors)
        sketches = []
        for side in sets:
            row = []
            for one in side:
                sketch = MinHash(num_perm=128, hashfunc=int)
                sketch.update_batch([int(h) & 0xFFFFFFFF for h in one])
                row.append(sketch)
            sketches.append(row)
        estimates = np.array([a.jaccard(b) for a, b in zip(*sketches, strict=True)])
        report["datasketch"] = (estimates - exact)[None, inside]
        line = ", ".join(f"{name} {(e**2 / unit).mean():.2f} (bias {e.mean():+.4f})" for name, e in report.items())
        print(f"MSE over J(1-J)/K, {label}, {inside.sum()} pairs: {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", choices=SHARE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        run_peer(options.peer, options.data)
        return
    texts = documents(options.data / "bench")
    print(f"{len(texts)} documents, {rate(texts, 1):.0f} MB; MB/s of processor time on one thread")
    rates = ours(texts, options.rounds)
    for name, value in rates.items():
        print(f"{name:36} {value:8.1f}")
    default = rates["gristmill fast_similarity K=112"]
    for name in SHARE:
        command = [options.peers, __file__, str(options.data), "--peer", name]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            print(f"{name:36} not measured: {answer.stderr.strip().splitlines()[-1]}")
            continue
        value = float(answer.stdout.splitlines()[-1])
        print(f"{name:36} {value:8.2f}   gristmill is {default / value:.0f}x")
    accuracy(options.data)


if __name__ == "__main__":
    main()
