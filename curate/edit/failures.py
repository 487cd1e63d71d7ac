"""Documents that edits dropped, among the rules that documents fail: edits come first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curate.corpus import column_array
from curate.curation import Curation
from schemas.tables import FAILURE


def edit_steps(c: Curation) -> list[str]:
    """Names of the finished passes of edits, in order."""
    return [step for step in c.steps if step.startswith("edit_")]


def edit_files(c: Curation, shard: int) -> tuple[list[str], list[str]]:
    """Checksums and paths of the documents of a shard that edits dropped, for a step that reads them."""
    files = [file for step in edit_steps(c) if (file := c.steps[step][shard].files.get("failed"))]
    return [file.checksum for file in files], [file.path for file in files]


def after_edits(root: Path, paths: Sequence[str], failures: pa.Table) -> pa.Table:
    """Lists of failed rules with those of edits before them.

    Args:
        root: the lake.
        paths: files of documents that edits dropped, in the order of the edits.
        failures: one list a document, as `curate.rules.evaluate` returns them.
    """
    if not paths:
        return failures
    dropped = pa.concat_tables([pq.read_table(root / path, partitioning=None) for path in paths])
    lists = column_array(failures, "failures")
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    fields = [column_array(dropped, name) for name in FAILURE.names]
    values = pa.concat_arrays([pa.StructArray.from_arrays(fields, fields=list(FAILURE)), lists.flatten()])
    rows = np.concatenate([dropped.column("row").to_numpy(), np.repeat(np.arange(len(lengths)), lengths)])
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(lengths)))]).astype(np.int32)
    joined = pa.ListArray.from_arrays(pa.array(offsets), values.take(pa.array(np.argsort(rows, kind="stable"))), type=pa.list_(FAILURE))
    return pa.table({"failures": joined})
