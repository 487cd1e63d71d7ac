"""Speed and memory of the edits: C4, masking, repair, repeated lines and substrings, one thread each, over texts in memory.

    python bench/edits.py --data FOLDER [--megabytes 100] [--hits 0] [--only NAME] [--suffix-array PYTHON]

FOLDER holds .jsonl.gz files with `text`. `--hits N` prints N masked values of each kind with their surroundings, to be judged by eye.
`--suffix-array` is an interpreter with pydivsufsort, which builds a suffix array and its common prefixes over the same bytes, for contrast.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

SUFFIX_ARRAY = """
import sys, time, resource, numpy as np
from pydivsufsort import divsufsort, kasai
text = np.fromfile(sys.argv[1], np.uint8)
begin = time.process_time()
array = divsufsort(text)
built = time.process_time()
kasai(text, array)
done = time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
rates = [len(text) / (end - begin) / 1e6 for end in (built, done)]
print(f"suffix array {rates[0]:.1f} MB/s, with prefixes {rates[1]:.1f} MB/s, {peak / len(text):.1f} bytes a byte")
"""


def load(folder: Path, megabytes: int) -> list[str]:
    """Texts of all files in turn, so that each kind of text has its share."""
    files = [gzip.open(file, "rt", encoding="utf-8") for file in sorted(folder.glob("*.jsonl.gz"))]  # noqa: SIM115
    texts, size = [], 0
    while files and size < megabytes * 1_000_000:
        for file in list(files):
            line = file.readline()
            if not line:
                files.remove(file)
                continue
            texts.append(json.loads(line)["text"])
            size += len(texts[-1].encode())
    return texts


class Peak:
    """The most memory that the process held while a block ran, beyond what it held before."""

    def __enter__(self) -> Peak:
        self.before = self.most = psutil.Process().memory_info().rss
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.done.wait(0.01):
            self.most = max(self.most, psutil.Process().memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    @property
    def bytes(self) -> int:
        return self.most - self.before


def measure(name: str, size: int, work: Callable[[], str]) -> None:
    """Prints the best of three rates by processor time, which other work on the machine disturbs less, and the memory of the last."""
    best = float("inf")
    for _ in range(3):
        with Peak() as peak:
            begin = time.process_time()
            told = work()
            best = min(best, time.process_time() - begin)
    print(f"{name:12s} {size / best / 1e6:8.1f} MB/s  {peak.bytes / size:5.1f} bytes a byte  {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--hits", type=int, default=0)
    parser.add_argument("--only", help="one of rewriting, masking, repairing, looking, lines, substrings")
    parser.add_argument("--suffix-array", type=Path)
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"no data in {options.data}: nothing is measured")
    from curate.dedup.lines import cut_units, repeats, split_units
    from curate.dedup.substrings import split_windows
    from curate.edit.c4 import c4
    from curate.edit.mask import mask
    from curate.edit.repair import repair, suspicions
    from schemas.edits import MASK_KINDS

    array = pa.array(load(options.data, options.megabytes), pa.large_string())
    size = int(array.nbytes - 8 * len(array))
    parts = [array.slice(first, 2048) for first in range(0, len(array), 2048)]
    for warm in (c4, mask, repair):
        warm(array[:2])
    print(f"{len(array)} documents, {size / 1e6:.1f} MB")

    def rewriting() -> str:
        done = [c4(part) for part in parts]
        return f"{sum(len(each.failures.row) for each in done)} dropped"

    def masking() -> str:
        counts = sum(mask(part).counts.sum(axis=0) for part in parts)
        return ", ".join(f"{kind} {count}" for kind, count in zip(MASK_KINDS, counts.tolist(), strict=True))

    def repairing() -> str:
        return f"{sum(repair(part).counts.sum(axis=0) for part in parts).tolist()} by ftfy and to normal form"

    def looking() -> str:
        return f"{sum(int(np.count_nonzero(suspicions(part))) for part in parts)} may change"

    def lines() -> str:
        units = split_units(array)
        _, removed = cut_units(array, units, repeats(units.hashes))
        return f"{removed.sum() / size:.1%} cut"

    def substrings() -> str:
        windows = split_windows(array, 50)
        places = windows.row.astype(np.uint32)  # in place: what is held beside the windows is what is measured
        places *= 50
        places += np.arange(len(places), dtype=np.uint32)
        _, removed = cut_units(array, windows, repeats(windows.hashes, None, 50, places))
        return f"{removed.sum() / size:.1%} cut, {len(windows.row):,} windows"

    for work in (rewriting, masking, repairing, looking, lines, substrings):
        if options.only in (None, work.__name__):
            measure(work.__name__, size, work)
    if options.hits:
        show_hits(parts, options.hits)
    if options.suffix_array:
        with tempfile.NamedTemporaryFile() as file:
            file.write("".join(array.to_pylist()).encode())
            file.flush()
            subprocess.run([options.suffix_array, "-c", SUFFIX_ARRAY, file.name], check=True)
    print(f"peak of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def show_hits(parts: list[pa.LargeStringArray], wanted: int) -> None:
    """Some masked values of each kind, drawn by lot, with what is around them."""
    from curate.edit.mask import mask
    from schemas.edits import MASK_KINDS

    draw = random.Random(0)
    for kind in MASK_KINDS:
        hits = []
        for part in parts:
            done = mask(part, [kind])
            for row in np.flatnonzero(done.counts.sum(axis=1)).tolist():
                old, new = part[row].as_py(), done.texts[row].as_py()
                place = next(i for i in range(len(new)) if i >= len(old) or old[i] != new[i])
                hits.append(old[max(0, place - 30) : place + 40].replace("\n", "\\n"))
        for hit in draw.sample(hits, min(wanted, len(hits))):
            print(f"{kind:6s} {hit}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
