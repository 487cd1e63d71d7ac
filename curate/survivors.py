"""Which rows of a documents shard are still in: not a repeated id, no failed rule, not a duplicate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.corpus import ROW_BITS, column_array, rows_of


def passing_rows(root: Path, shard: int, failures: str | None, repeats: str | None) -> NDArray[np.int64]:
    """Rows that failed no rule and do not repeat an earlier id.

    Args:
        root: the lake.
        shard: number of the documents shard.
        failures: path of its failures file, None when the shard is empty.
        repeats: path of the lake's repeats file, None when there is none.
    """
    if failures is None:
        return np.empty(0, dtype=np.int64)
    table = pq.read_table(root / failures, columns=["failures"], partitioning=None)
    passed = column_array(table, "failures").value_lengths().to_numpy(zero_copy_only=False) == 0
    passed[rows_in(root, repeats, shard)] = False
    return np.flatnonzero(passed)


def surviving_rows(root: Path, shard: int, failures: str | None, repeats: str | None, clusters: str | None) -> NDArray[np.int64]:
    """Passing rows that duplicate nothing that is kept."""
    rows = passing_rows(root, shard, failures, repeats)
    return np.setdiff1d(rows, rows_in(root, clusters, shard), assume_unique=True)


def rows_in(root: Path, path: str | None, shard: int) -> NDArray[np.int64]:
    """Rows of a documents shard that a file names by locator."""
    if path is None:
        return np.empty(0, dtype=np.int64)
    first = shard << ROW_BITS
    places = pq.read_table(
        root / path, columns=["locator"], filters=[("locator", ">=", first), ("locator", "<", first + (1 << ROW_BITS))], partitioning=None
    )
    return rows_of(places.column("locator").to_numpy())
