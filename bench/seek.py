"""Seeking in a plan of a billion rows: time from the segment list to the rows of a step anywhere, and peak memory of the process.

python bench/seek.py
"""

from __future__ import annotations

import json
import resource
import statistics
import time

import numpy as np

from schemas.segments import Allotment, Segment, SourceShare, Stream, segment_from_json, segment_to_json
from train.order import Order

SOURCES, ROWS, SHARD, BATCH = 20, 1_000_000_000, 65_536, 512


def plan() -> tuple[str, dict[str, list[int]]]:
    """The segment list as JSON, and the rows of each shard of each lot: 20 sources of 50 million rows in shards of 65,536."""
    each = ROWS // SOURCES
    lots = {f"s{s:02d}-lot": [SHARD] * (each // SHARD) + [each % SHARD] for s in range(SOURCES)}
    shares = tuple(SourceShare(f"s{s:02d}", 1, (Stream(1, (Allotment(f"s{s:02d}-lot", 0, each),)),)) for s in range(SOURCES))
    return json.dumps([segment_to_json(Segment("all", 0, ROWS, 0, BATCH, 1, 8, shares))]), lots


def main() -> None:
    text, lots = plan()
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.perf_counter()
    order = Order([segment_from_json(value) for value in json.loads(text)], lots)
    built = time.perf_counter() - began
    draw, times = np.random.default_rng(0), []
    for _ in range(200):
        first = int(draw.integers(0, ROWS - BATCH))
        began = time.perf_counter()
        found = order.rows(np.arange(first, first + BATCH))
        times.append(time.perf_counter() - began)
        assert len(found.row) == BATCH
    cold = []
    for _ in range(5):
        began = time.perf_counter()
        Order([segment_from_json(value) for value in json.loads(text)], lots).rows(np.arange(ROWS // 2, ROWS // 2 + BATCH))
        cold.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"segment list {len(text) / 1024:.1f} KiB, order built in {built * 1e3:.2f} ms")
    middle, least, most = (value * 1e3 for value in (statistics.median(times), min(times), max(times)))
    print(f"seek to a step of {BATCH} rows: median {middle:.2f} ms, least {least:.2f}, most {most:.2f}")
    print(f"from nothing but the list: least {min(cold) * 1e3:.2f} ms; peak resident {peak:.0f} MiB, {base:.0f} of it before")


if __name__ == "__main__":
    main()
