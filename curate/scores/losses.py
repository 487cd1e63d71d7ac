"""Losses under an earlier model, as a signal: a file by doc_id that ``gristmill score`` wrote."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.errors import InputError
from schemas.tables import DOCUMENT_LOSSES


def read_losses(path: str) -> pa.Table:
    """Read a file of losses.

    Raises:
        InputError: it is missing or something else.
    """
    try:
        return (
            pq.read_table(Path(path), partitioning=None)
            .select(["doc_id", "loss"])
            .cast(pa.schema([DOCUMENT_LOSSES.field("doc_id"), DOCUMENT_LOSSES.field("loss")]))
        )
    except (OSError, KeyError, pa.ArrowException) as error:
        raise InputError(f"not a file of losses: {error}", where=path, fix="write one with `gristmill score --run RUN -o FILE`") from error


def losses_of(losses: pa.Table, documents: pa.Table) -> pa.Array:
    """The loss of each document, in their order; null where the file has none."""
    ids = losses.column("doc_id").combine_chunks()
    places = pc.index_in(documents.column("doc_id").combine_chunks(), value_set=ids)
    found: pa.Array = losses.column("loss").combine_chunks().take(places)
    return found
