"""Tombstones: ids of documents that a lake must not hold. Readers honour them; a purge removes what is there already.

The file holds ids alone. A forgotten document keeps its row, without text, own id, address, date, licence and other fields, so that the
places of all other documents stay what they are; curation drops it as ``forgotten``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.store import publish
from schemas.tables import FORGOTTEN

PATH = "forgotten.parquet"
BLANKED = ("id", "url", "date", "license", "meta")


def read_tombstones(root: Path) -> pa.Array:
    """Ids of forgotten documents, sorted; none where nothing was ever forgotten."""
    path = root / PATH
    ids = pq.read_table(path, partitioning=None).column("doc_id").combine_chunks() if path.is_file() else pa.array([], pa.binary(16))
    return ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids


def add_tombstones(root: Path, ids: Iterable[bytes]) -> None:
    """Publish the lake's tombstones with more ids; under the lake's lock."""
    everyone = sorted({*read_tombstones(root).to_pylist(), *ids})
    table = pa.table({"doc_id": pa.array(everyone, pa.binary(16))}, schema=FORGOTTEN)
    publish(root, PATH, lambda path: pq.write_table(table, path), table.num_rows)


def blanked(documents: pa.Table, ids: pa.Array) -> pa.Table:
    """Documents with what is to be forgotten taken out; the same table where nothing is."""
    gone = pc.is_in(documents.column("doc_id"), ids)
    if not pc.any(gone).as_py():
        return documents
    values = {"text": pa.scalar("", pa.large_string()), "bytes": pa.scalar(0, pa.int64())}
    for name in ("text", "bytes", *BLANKED):
        if name in documents.column_names:
            field = documents.schema.field(name)
            value = values.get(name, pa.scalar(None, field.type))
            column = pc.if_else(gone, value.cast(field.type), documents.column(name))
            documents = documents.set_column(documents.column_names.index(name), field, column)
    return documents
