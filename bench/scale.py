"""The near-duplicate join and choice on simulated ids and bands, at two sizes under one memory limit.

    python bench/scale.py [--documents 100_000_000] [--memory 1_000_000_000] [--folder SCRATCH]

A fifth of the documents are near-copies of earlier ones and share about 60 % of their bands with them; the keys of a document are a
function of its number, so that nothing but the product's own scratch files lies on the disk (about 150 bytes for each document). Each size
runs in a process of its own, which reports its processor time by phase and its largest anonymous memory: pages of mapped files, which the
system takes back, do not count.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np

from curate.dedup.near import decide_batch
from curate.dedup.partitions import BandFiles, Components
from curate.dedup.sketch import SketchSettings

CHUNK = 1 << 18


@numba.njit(nogil=True)
def mix(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@numba.njit(nogil=True)
def origin(document):  # type: ignore[no-untyped-def]
    """The document that one is a copy of, itself for four in five."""
    h = mix(np.uint64(document) + np.uint64(0x9E3779B97F4A7C15))
    return document if h % np.uint64(5) or document < 10 else np.int64((h >> np.uint64(8)) % np.uint64(document))


@numba.njit(nogil=True)
def keys(first, count, bands):  # type: ignore[no-untyped-def]
    out = np.empty((bands, count), np.uint64)
    for i in range(count):
        document = first + i
        source = origin(document)
        for b in range(bands):
            shared = mix(np.uint64(document * 64 + b)) % np.uint64(5) < np.uint64(3)
            out[b, i] = mix(np.uint64((source if shared else document) * 64 + b) + np.uint64(7))
    return out


@numba.njit(nogil=True)
def similar(left, right):  # type: ignore[no-untyped-def]
    out = np.zeros(len(left))
    for i in range(len(left)):
        a, b = left[i], right[i]
        out[i] = 0.9 if origin(a) == b or origin(b) == a or (origin(a) == origin(b)) else 0.0
    return out


class Peak(threading.Thread):
    """Watches the anonymous memory of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes, self.phases = 0, list[int]()

    def run(self) -> None:
        while True:
            lines = Path("/proc/self/status").read_text().splitlines()
            self.bytes = max(self.bytes, next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024)
            time.sleep(0.02)

    def next_phase(self) -> float:
        """Begin to watch anew; the moment."""
        self.phases.append(self.bytes)
        self.bytes = 0
        return time.process_time()


def one(documents: int, memory: int, folder: Path) -> None:
    settings = SketchSettings()
    share = memory // 4
    peak = Peak()
    peak.start()
    similar(np.zeros(1, np.int64), np.zeros(1, np.int64))
    keys(0, 1, settings.bands)
    start, begun = time.process_time(), time.perf_counter()
    files = BandFiles(folder, documents, memory // 2)
    for first in range(0, documents, CHUNK):
        files.append(list(keys(first, min(CHUNK, documents - first), settings.bands)), first)
    written = peak.next_phase()
    components = Components(folder, documents, 0, share // 2)
    for buckets in files.partitions():
        components.add(buckets)
    batches, candidates = components.batches()
    joined = peak.next_phase()

    def decide(batch: int) -> tuple[int, int]:
        which, buckets = components.batch(batch)
        sketch = np.ones((len(which), settings.k), np.uint8)  # held, as the product does
        found = decide_batch(
            (which, buckets), ranks, 0, lambda left, right: similar(which[left], which[right]), similar, 0.8, "leader", share
        )  # fmt: skip
        return len(found.dropped) + 0 * len(sketch), found.comparisons

    ranks = np.memmap(folder / "ranks", np.int64, "w+", shape=(documents,))
    for first in range(0, documents, CHUNK):
        ranks[first : first + CHUNK] = np.arange(first, min(first + CHUNK, documents))
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(decide, range(batches)))
    end = peak.next_phase()
    dropped, comparisons = (sum(column) for column in zip(*parts, strict=True))
    print(
        f"{documents} {end - start:.1f} {max(peak.phases)} by the wall {time.perf_counter() - begun:.0f} s; "
        f"bands {written - start:.1f} s, join and components {joined - written:.1f} s, "
        f"choice {end - joined:.1f} s in {batches} batches; "
        f"keys of {files.key_bits} bits, {candidates} candidates, {comparisons} comparisons, {dropped} dropped; "
        f"largest memory of each {', '.join(f'{each / 1e6:.0f}' for each in peak.phases)} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000_000)
    parser.add_argument("--memory", type=int, default=1_000_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            one(options.documents, options.memory, Path(folder))
        return
    times, peaks = [], []
    for documents in (options.documents // 10, options.documents):
        place = [] if options.folder is None else ["--folder", str(options.folder)]
        command = [sys.executable, __file__, "--one", "--documents", str(documents), "--memory", str(options.memory), *place]
        _, seconds, peak, rest = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(" ", 3)
        times.append(float(seconds))
        peaks.append(int(peak))
        print(f"{documents:,} documents: {times[-1]:.1f} s of processor time, {peaks[-1] / 1e6:.0f} MB; {rest.strip()}", flush=True)
    exponent = math.log10(times[1] / times[0])
    print(f"memory at {options.documents:,} over a tenth of it: {peaks[1] / peaks[0]:.2f}; time exponent {exponent:.2f}")


if __name__ == "__main__":
    main()
