"""Packed rows out of memory-mapped Arrow shards, as batches with document boundaries.

Shards are Arrow IPC files with ``schemas.tables.row_schema``; their buffers are used in place, so a batch copies only its own rows.
A published shard never changes: its length is checked before anything is read, its checksum (by the trainer) when the first row is read
from it, and a shard that differs from what the plan recorded is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import LakeError
from schemas.settings import Lot, LotShard
from schemas.store import Published, here, verify
from schemas.tables import DOC_ID
from train.order import Ints, Order, Rows

IGNORED = -100
"""Target of a position that predicts nothing: the last of a document piece, and padding."""

_BLOCK = 8192  # positions whose rows are worked out at a time


@dataclass(frozen=True)
class Batch:
    """Rows of tokens and the document pieces in them; B rows of L positions, P pieces over all rows.

    Attributes:
        tokens: (B, L) int64; positions past a row's last end are padding.
        pieces: (B + 1,) where each row's pieces begin in the two arrays below.
        ends: (P,) end position of each piece in its row, ascending within the row.
        doc_ids: (P, 16) uint8, document of each piece.
    """

    tokens: Ints
    pieces: Ints
    ends: Ints
    doc_ids: NDArray[np.uint8]

    @cached_property
    def starts(self) -> Ints:
        """(P,) first position of each piece in its row."""
        starts = np.concatenate([[0], self.ends[:-1]]).astype(np.int64)[: len(self.ends)]
        starts[self.pieces[:-1][np.diff(self.pieces) > 0]] = 0
        return starts

    @cached_property
    def row_of_piece(self) -> Ints:
        """(P,) row of each piece in the batch."""
        return np.repeat(np.arange(len(self.tokens)), np.diff(self.pieces))

    @property
    def predicted(self) -> Ints:
        """(P,) tokens predicted in each piece: all but its first."""
        return self.ends - self.starts - 1

    @property
    def valid_tokens(self) -> int:
        """Positions with a target."""
        return int(self.ends.sum() - self.starts.sum()) - len(self.ends)

    @cached_property
    def _spans(self) -> tuple[Ints, Ints, Ints]:
        """Start, length and number within its row of every piece, the padding of each row counted as one more (perhaps empty) piece."""
        height, length = self.tokens.shape
        at = self.pieces[1:]
        last = np.where(np.diff(self.pieces) > 0, self.ends[at - 1] if len(self.ends) else 0, 0)
        starts = np.insert(self.starts, at, last)
        stops = np.insert(self.ends, at, np.full(height, length))
        counts = np.diff(self.pieces) + 1
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return starts, stops - starts, number

    def runs(self) -> tuple[Ints, NDArray[np.bool_]]:
        """Lengths that cut all B * L positions into pieces and paddings, one after another, and which of them are pieces: P are."""
        _, lengths, _ = self._spans
        real = np.ones(len(lengths), dtype=bool)
        real[self.pieces[1:] + np.arange(len(self.tokens))] = False
        return lengths, real

    def documents(self) -> Ints:
        """(B, L) number of the piece that each position lies in, from 0 in each row; padding has the number after the last."""
        _, lengths, number = self._spans
        return np.repeat(number, lengths).reshape(self.tokens.shape)

    def positions(self) -> Ints:
        """(B, L) position of each token within its piece."""
        starts, lengths, _ = self._spans
        height, length = self.tokens.shape
        return np.tile(np.arange(length), (height, 1)) - np.repeat(starts, lengths).reshape(height, length)

    def targets(self) -> Ints:
        """(B, L) the next token of the same piece, ``IGNORED`` where there is none."""
        height, length = self.tokens.shape
        targets = np.full((height, length), IGNORED, dtype=np.int64)
        targets[:, :-1] = self.tokens[:, 1:]
        flat = targets.reshape(-1)
        row = self.row_of_piece * length
        flat[row + self.ends - 1] = IGNORED
        last = np.zeros(height, dtype=np.int64)
        np.maximum.at(last, self.row_of_piece, self.ends)
        targets[np.arange(length) >= last[:, None]] = IGNORED
        return targets


class RowReader:
    """Reads rows of lots by number.

    Args:
        root: the lake.
        lots: the lots; ``read`` names them by their place in this list.
        checksums: also compare every shard's checksum, once, when it is first opened.

    Raises:
        LakeError: a shard is missing or does not have its recorded length.
    """

    def __init__(self, root: Path, lots: Sequence[Lot], *, checksums: bool = False) -> None:
        self.root, self.lots, self.checksums = root, tuple(lots), checksums
        self.row_length = lots[0].row_length if lots else 0
        self._files = [(lot, shard) for lot in lots for shard in lot.shards]
        for lot, shard in self._files:
            _check_length(root, shard)
            if lot.row_length != self.row_length:
                raise LakeError(f"lot {lot.lot!r} has rows of {lot.row_length} tokens, others of {self.row_length}")
        self._first = np.concatenate([[0], np.cumsum([shard.rows for _, shard in self._files], dtype=np.int64)]).astype(np.int64)
        self._lot_first = np.concatenate([[0], np.cumsum([lot.rows for lot in lots], dtype=np.int64)]).astype(np.int64)
        self._open: list[list[_Chunk] | None] = [None] * len(self._files)

    def read(self, lots: Ints, rows: Ints, height: int = 0) -> Batch:
        """Read rows.

        Args:
            lots: lot of each row, by place in ``self.lots``.
            rows: number of each row in its lot.
            height: rows of the batch; those past the last asked for are empty. 0 means as many as asked for.
        """
        count = len(rows)
        tokens = np.empty((max(count, height), self.row_length), dtype=np.int64)
        tokens[count:] = 0
        line = self._lot_first[lots] + rows
        shard = self._first.searchsorted(line, side="right") - 1
        total, pieces, ends, doc_ids = 0, [0], [], []
        for i, (s, inner) in enumerate(zip(shard.tolist(), (line - self._first[shard]).tolist(), strict=True)):
            for chunk in self._open[s] or self._map(s):
                if inner < chunk.rows:
                    break
                inner -= chunk.rows
            tokens[i] = chunk.tokens[inner]
            low, high = chunk.offsets[inner], chunk.offsets[inner + 1]
            ends.append(chunk.ends[low:high])
            doc_ids.append(chunk.doc_ids[low:high])
            total += high - low
            pieces.append(total)
        pieces += [total] * (len(tokens) - count)
        if not ends:
            return Batch(tokens, np.array(pieces), np.zeros(0, dtype=np.int64), np.zeros((0, 16), dtype=np.uint8))
        return Batch(tokens, np.array(pieces), np.concatenate(ends, dtype=np.int64), np.concatenate(doc_ids))

    def shards(self, lots: Ints, rows: Ints) -> list[LotShard]:
        """The shards that hold rows, as ``read`` takes them, in order of first use."""
        index = self._first.searchsorted(self._lot_first[lots] + rows, side="right") - 1
        unique, first = np.unique(index, return_index=True)
        return [self._files[place][1] for place in unique[np.argsort(first)]]

    def release(self, keep: set[str]) -> None:
        """Let go of mapped shards, by path, that are not to be kept."""
        for index, (_, shard) in enumerate(self._files):
            if shard.path not in keep:
                self._open[index] = None

    def _map(self, index: int) -> list[_Chunk]:
        lot, shard = self._files[index]
        if self.checksums:
            verify(self.root, Published(shard.path, shard.bytes, shard.checksum, shard.rows))
        chunks = self._open[index] = _map_shard(here(self.root, shard.path, shard.checksum), lot, shard)
        return chunks


class StepRows:
    """Rows of the run's order by position, worked out a block at a time so that a step costs next to nothing."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._first, self._rows = 0, Rows(*np.zeros((5, 0), dtype=np.int64))

    def __call__(self, first: int, end: int) -> Rows:
        """Rows at positions ``first`` to ``end`` (exclusive)."""
        if first < self._first or end > self._first + len(self._rows.row):
            stop = max(end, min(first + _BLOCK, self.order.end))
            self._first, self._rows = first, self.order.rows(np.arange(first, stop))
        cut = slice(first - self._first, end - self._first)
        rows = self._rows
        return Rows(rows.source[cut], rows.lot[cut], rows.use[cut], rows.epoch[cut], rows.row[cut])


@dataclass(frozen=True)
class _Chunk:
    """One record batch of a shard, as views of the mapped file."""

    rows: int
    tokens: NDArray[Any]
    offsets: memoryview[int]  # int32, whose items come as Python's numbers
    ends: NDArray[np.int32]
    doc_ids: NDArray[np.uint8]


def _check_length(root: Path, shard: LotShard) -> None:
    path = root / shard.path
    try:
        length = path.stat().st_size
    except OSError as error:
        raise LakeError(
            "a shard of rows is missing", where=str(path), fix="pack the lot again, or plan again from what is there"
        ) from error
    if length != shard.bytes:
        raise LakeError(
            f"a shard of rows was changed: it has {length} bytes, the plan recorded {shard.bytes}",
            where=str(path),
            fix="delete it and pack the lot again: packing gives the same bytes",
        )


def _map_shard(path: Path, lot: Lot, shard: LotShard) -> list[_Chunk]:
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        chunks = [_views(batch, lot.row_length) for batch in batches if batch.num_rows]
    except (pa.ArrowException, OSError, KeyError, TypeError, AttributeError) as error:
        raise LakeError(f"not a shard of packed rows: {error}", where=str(path), fix="pack the lot again") from error
    named = (reader.schema.metadata or {}).get(b"lot", b"").decode()
    rows = sum(chunk.rows for chunk in chunks)
    if rows != shard.rows or named != lot.lot:
        raise LakeError(
            f"the shard holds {rows} rows of lot {named!r}, the plan recorded {shard.rows} rows of {lot.lot!r}",
            where=str(path),
            fix="plan again, or pack the lot again",
        )
    return chunks


def _views(batch: Any, row_length: int) -> _Chunk:
    tokens, ends, doc_ids = batch.column("tokens"), batch.column("ends"), batch.column("doc_ids")
    if tokens.type.list_size != row_length or doc_ids.type.value_type != DOC_ID:
        raise TypeError(f"rows of type {tokens.type} and {doc_ids.type}, expected {row_length} tokens and documents of {DOC_ID}")
    offsets = ends.offsets.to_numpy(zero_copy_only=True)
    if not np.array_equal(offsets, doc_ids.offsets.to_numpy(zero_copy_only=True)):
        raise TypeError("a row has another number of ends than of documents")
    ids = doc_ids.values
    raw = np.frombuffer(ids.buffers()[1] or b"", dtype=np.uint8)[: (ids.offset + len(ids)) * 16]
    return _Chunk(
        batch.num_rows,
        tokens.flatten().to_numpy(zero_copy_only=True).reshape(-1, row_length),
        memoryview(offsets),
        ends.values.to_numpy(zero_copy_only=True),
        raw.reshape(-1, 16)[ids.offset :],
    )
