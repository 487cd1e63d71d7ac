"""Signals of texts: integers counted in one pass over Arrow buffers, from which SQL makes every ratio that a rule compares."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["compute_signals"]


def compute_signals(texts: pa.LargeStringArray) -> pa.RecordBatch:
    """Counts every signal of `schemas.signals.SIGNALS` in each text.

    The work is compiled and releases the GIL, so calls on several threads run at once. A row depends on its text alone.

    Args:
        texts: Any Unicode texts, empty ones too; no nulls.

    Returns:
        One row a text in the order of the texts, schema SIGNALS.

    Raises:
        TypeError: `texts` is not an array of large strings.
        ValueError: `texts` holds a null or a text of 2 GiB.
    """
    from curate.signals.batch import signals_of  # compiled code is loaded when it is first needed

    return signals_of(texts)
