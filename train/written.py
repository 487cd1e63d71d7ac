"""A stage laid out: its rows in the order in which they are trained on, as Arrow shards, so that reading is sequential.

Rows are copied, never changed: batches have the same bytes as those gathered from the lots. Failure model: shards are published first, then
``written.json``, which names them by the fingerprint of their segment; a segment that is not there, or was planned otherwise since (a
decision, a rewind), is read from the lots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from schemas.segments import Segment, segments_hash
from schemas.settings import Lot, LotShard, build
from schemas.store import publish, publish_json, read_json
from schemas.tables import row_schema
from train.data import Batch, RowReader

if TYPE_CHECKING:
    from train.stage import Stage

ROWS_PER_SHARD = 4096
MANIFEST = "written.json"


def written_readers(root: Path, folder: str, segments: Sequence[Segment]) -> dict[int, RowReader]:
    """Readers of the segments of a stage that are laid out, by their place in the stage; row ``n`` is a segment's ``n``-th."""
    path = root / folder / MANIFEST
    if not path.is_file():
        return {}
    found: dict[str, Lot] = build(dict[str, Lot], read_json(path), str(path))
    hashes = {segments_hash([segment]): index for index, segment in enumerate(segments)}
    return {hashes[name]: RowReader(root, [lot], checksums=True) for name, lot in found.items() if name in hashes}


def laid_out(stage: Stage) -> int:
    """Rows of a stage that is laid out whole, as it is planned now; else 0."""
    path = stage.root / stage.settings.folder / MANIFEST
    found: dict[str, Lot] = build(dict[str, Lot], read_json(path), str(path)) if path.is_file() else {}
    wanted = [segments_hash([each]) for index, each in enumerate(stage.segments) if stage.end_of(index) > each.first_row]
    return sum(found[name].rows for name in wanted) if set(wanted) <= found.keys() else 0


def write_rows(stage: Stage, rows_per_shard: int = ROWS_PER_SHARD) -> int:
    """Lay a stage out from its lots; returns the number of rows written. What is laid out already is written again with the same bytes."""
    laid: dict[str, Lot] = {}
    for index, segment in enumerate(stage.segments):
        positions = np.arange(segment.first_row, max(segment.first_row, stage.end_of(index)))
        if len(positions):
            number = stage.settings.first_segment + index
            lot = f"{stage.settings.run}/{stage.settings.stage}/{number}"
            parts = [positions[first : first + rows_per_shard] for first in range(0, len(positions), rows_per_shard)]
            shards = [_write(stage, lot, f"{number:04d}-{part:05d}", rows) for part, rows in enumerate(parts)]
            laid[segments_hash([segment])] = Lot(lot, "", stage.row_length_of(index), tuple(shards))
    publish_json(stage.root, f"{stage.settings.folder}/{MANIFEST}", {name: asdict(lot) for name, lot in laid.items()})
    return sum(lot.rows for lot in laid.values())


def _write(stage: Stage, lot: str, name: str, positions: np.ndarray) -> LotShard:
    batch = stage.gather(positions)
    schema = row_schema(batch.tokens.shape[1], stage.settings.vocabulary, {"lot": lot, "row_length": str(batch.tokens.shape[1])})

    def write(path: Path) -> None:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(_record_batch(batch, schema))

    done = publish(stage.root, f"{stage.settings.folder}/written/{name}.arrow", write, len(positions))
    return LotShard(done.path, done.rows, done.bytes, done.checksum)


def _record_batch(batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    tokens, doc_ids = schema.field("tokens").type, schema.field("doc_ids").type
    pieces = pa.array(batch.pieces.astype(np.int32))
    ids = pa.FixedSizeBinaryArray.from_buffers(doc_ids.value_type, len(batch.doc_ids), [None, pa.py_buffer(batch.doc_ids.tobytes())])
    flat = pa.array(batch.tokens.ravel().astype(tokens.value_type.to_pandas_dtype()))
    arrays = [
        pa.FixedSizeListArray.from_arrays(flat, type=tokens),
        pa.ListArray.from_arrays(pieces, pa.array(batch.ends.astype(np.int32)), type=schema.field("ends").type),
        pa.ListArray.from_arrays(pieces, ids, type=doc_ids),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
