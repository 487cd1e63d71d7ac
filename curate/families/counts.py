"""A family's signals as a table: what its compiled kernel counts for each text, a column for each signal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from curate.signals.batch import buffers
from schemas.families import FAMILIES


def counted(family: str, texts: pa.LargeStringArray, count: Callable[..., None]) -> pa.RecordBatch:
    """Signals of each text, in the order of the texts.

    Args:
        family: a name of `schemas.families`.
        texts: any Unicode texts, empty ones too; no nulls.
        count: gets the texts' bytes, their offsets and zeros of shape (texts, signals) to count in.
    """
    data, offsets = buffers(texts)
    out = np.zeros((len(texts), len(FAMILIES[family])), np.int64)
    count(data, offsets, out)
    return pa.record_batch([pa.array(np.ascontiguousarray(column)) for column in out.T], schema=FAMILIES[family])
