"""The loader alone beside a bare NumPy memmap gather, in one process and one run: tokens/s, ratios, and that both give the same tokens.

    python bench/loader.py [--rows 200000] [--batch 8] [--peers]

Rows of 2,048 tokens in shards of 8,192, shuffled in two levels over all shards. The loader gives tokens as torch int64, document
boundaries, document ids and each row's source; the gather gives int64 tokens alone from one flat file, rows drawn at random. With
``--peers`` the libraries of ``bench/loader_peers.py`` take their turns too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from schemas.segments import Allotment, Segment, SourceShare, Stream
from schemas.settings import Lot, LotShard
from schemas.store import publish
from schemas.tables import row_schema
from train.data import RowReader, StepRows
from train.order import Order

SHARD_ROWS = 8192


def write_lot(root: Path, lot: str, source: str, tokens: np.ndarray, vocabulary: int, documents_per_row: int = 3) -> Lot:
    """Write (rows, length) tokens as a lot of rows with evenly cut documents."""
    rows, length = tokens.shape
    schema = row_schema(length, vocabulary, {"lot": lot, "source": source, "tokenizer": "bench", "row_length": str(length)})
    kind = schema.field("tokens").type
    shards = []
    for number, first in enumerate(range(0, rows, SHARD_ROWS)):
        part = tokens[first : first + SHARD_ROWS]
        offsets = pa.array(np.arange(len(part) + 1, dtype=np.int32) * documents_per_row)
        ends = np.tile(np.arange(1, documents_per_row + 1) * length // documents_per_row, len(part)).astype(np.int32)
        ids = (np.arange(len(ends), dtype=np.uint64) + first * documents_per_row)[:, None] * np.array([1, 0], dtype=np.uint64)
        binary = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ends), [None, pa.py_buffer(np.ascontiguousarray(ids))])
        columns = [
            pa.FixedSizeListArray.from_arrays(pa.array(part.ravel(), kind.value_type), type=kind),
            pa.ListArray.from_arrays(offsets, pa.array(ends), type=schema.field("ends").type),
            pa.ListArray.from_arrays(offsets, binary, type=schema.field("doc_ids").type),
        ]

        def write(path: Path, columns: list[pa.Array] = columns) -> None:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

        done = publish(root, f"lots/{lot}/{number:05d}.arrow", write, len(part))
        shards.append(LotShard(done.path, done.rows, done.bytes, done.checksum))
    return Lot(lot, source, length, tuple(shards), bytes_per_token=4.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--peers", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), options.rows, options.batch, options.length, options.peers)


def run(root: Path, rows: int, batch: int, length: int, peers: bool) -> None:
    tokens = np.random.default_rng(0).integers(0, 50_000, (rows, length), dtype=np.uint16)
    half = rows // 2
    lots = [write_lot(root, name, name, part, 50_000) for name, part in (("code", tokens[:half]), ("prose", tokens[half:]))]
    tokens.tofile(root / "flat.bin")
    flat = np.memmap(root / "flat.bin", dtype=np.uint16, mode="r", shape=(rows, length))
    shares = tuple(SourceShare(lot.source, 1, (Stream(1, (Allotment(lot.lot, 0, lot.rows),)),)) for lot in lots)
    order = Order([Segment("bench", 0, 2 * half, 0, batch, 1, 16, shares)], {lot.lot: [s.rows for s in lot.shards] for lot in lots})
    steps, random = 2 * half // batch, np.random.default_rng(1).permutation(rows)
    step_rows, reader = StepRows(order), RowReader(root, lots)

    def loader(step: int) -> torch.Tensor:
        found = step_rows(step * batch, (step + 1) * batch)
        made = reader.read(found.lot, found.row)
        assert len(made.ends) == len(made.doc_ids) and len(found.source) == batch
        return torch.from_numpy(made.tokens)

    def with_targets(step: int) -> torch.Tensor:
        found = step_rows(step * batch, (step + 1) * batch)
        made = reader.read(found.lot, found.row)
        for values in (made.targets(), made.documents(), made.positions()):
            torch.from_numpy(values)
        return torch.from_numpy(made.tokens)

    def gather(step: int) -> torch.Tensor:
        return torch.from_numpy(flat[random[step * batch : (step + 1) * batch]].astype(np.int64))

    found = step_rows(0, batch)
    assert torch.equal(loader(0), torch.from_numpy(tokens[found.lot * half + found.row].astype(np.int64))), "the loader's tokens are others"
    engines: dict[str, Callable[[int], torch.Tensor]] = {"gather": gather, "loader": loader, "loader, targets and mask": with_targets}
    following = peer_batches(root, tokens, batch) if peers else {}
    engines |= {name: lambda step, one=one: one() for name, one in following.items()}
    best = dict.fromkeys(engines, float("inf"))
    for _ in range(5):
        for name, engine in engines.items():
            count = max(1, steps // 8) if name in following else steps  # the slower ones are not waited for so long
            began = time.perf_counter()
            for step in range(count):
                engine(step)
            best[name] = min(best[name], (time.perf_counter() - began) / count)
    print(f"{rows} rows of {length} tokens, batches of {batch}; best of 5 rounds in turn")
    for name, seconds in best.items():
        ratios = f"{best['gather'] / seconds:6.3f} of the gather   loader / it {seconds / best['loader']:6.2f}"
        print(f"{name:28s} {batch * length / seconds / 1e6:8.1f} M tokens/s   {ratios}")


def peer_batches(root: Path, tokens: np.ndarray, batch: int) -> dict[str, Callable[[], torch.Tensor]]:
    """The next batch of each peer, which all have the rows' tokens."""
    from loader_peers import arrow_rows, litdata_rows, streaming_rows

    following = litdata_rows(root, tokens, batch) | arrow_rows(root, batch) | streaming_rows(root, tokens, batch)
    known = {row.tobytes() for row in tokens.astype(np.int64)[:, :8]}
    for name, one in following.items():
        made = one()
        assert made.shape == (batch, tokens.shape[1]) and made.dtype == torch.int64, name
        heads = made[:, :8].numpy()
        assert all(head.tobytes() in known for head in heads), f"{name} gives other tokens"
    return following


if __name__ == "__main__":
    sys.exit(main())
