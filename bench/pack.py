"""Packing beside concatenate-and-chunk: positions used, documents cut that fit into a row, and documents a second.

    python bench/pack.py [LAKE]

Lengths are the token counts of a lake's documents when one is given, and distributions made to be hard otherwise.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.pack import pack
from schemas.manifest import read_snapshot


def lengths_of(lake: Path) -> dict[str, NDArray[np.int64]]:
    """Tokens with BOS and EOS of each source's documents in a lake."""
    found: dict[str, list[NDArray[np.int64]]] = {}
    for entry in read_snapshot(lake).steps["tokenize"]:
        if "lengths" in entry.files:
            tokens = pq.read_table(lake / entry.files["lengths"].path, columns=["tokens"], partitioning=None).column("tokens").to_numpy()
            found.setdefault(entry.label.partition("/")[0], []).append(tokens + 2)
    return {source: np.concatenate(parts) for source, parts in found.items()}


def made() -> dict[str, NDArray[np.int64]]:
    """Log-normal like web text, and lengths just over half a row of 2,048, which cannot share one."""
    draw = np.random.default_rng(0)
    return {"web (log-normal)": np.exp(draw.normal(6, 1.2, 200_000)).astype(np.int64) + 2, "half rows": draw.integers(1030, 2048, 100_000)}


def chunked(lengths: NDArray[np.int64], row_length: int) -> tuple[float, int]:
    """Positions used and documents cut that would fit into a row, when documents are laid end to end and chopped."""
    ends = np.cumsum(lengths)
    cut = ((ends - lengths) // row_length != (ends - 1) // row_length) & (lengths <= row_length)
    rows = ends[-1] // row_length
    return min(1.0, ends[-1] / (max(1, rows) * row_length)), int(cut.sum())


def main() -> None:
    corpora = lengths_of(Path(sys.argv[1])) if len(sys.argv) > 1 else made()
    pack(np.array([3, 4]), 8)
    columns = ("row", "corpus", "documents", "fit a row", "used", "cut", "cut, chunked", "documents/s")
    print("{:>6} {:<20} {:>10} {:>10} {:>8} {:>8} {:>12} {:>12}".format(*columns))
    for row_length in (256, 2048, 8192):
        for name, lengths in corpora.items():
            started = time.perf_counter()
            packing = pack(lengths, row_length, 8)
            seconds = time.perf_counter() - started
            used = packing.length.sum() / (packing.rows * row_length)
            fits = int((lengths <= row_length).sum())
            line = (row_length, name, len(lengths), fits, used, packing.cut, chunked(lengths, row_length)[1], len(lengths) / seconds)
            print("{:>6} {:<20} {:>10,} {:>10,} {:>8.2%} {:>8,} {:>12,} {:>12,.0f}".format(*line))


if __name__ == "__main__":
    main()
