"""The data order: a pure function from a position of the run's order to a row of a lot, and its inverse.

A position belongs to a segment; inside it, by interleaving of quotas, to a source, then to one of the source's streams; the stream
deals its allotments one after another, which gives a *use* of a lot. Use ``u`` of a lot of ``R`` rows is place ``u % R`` of epoch
``u // R``, and each epoch has an order of its own (or that of an earlier epoch whose rows it gives once more), in two levels: the lot's
shards are permuted, then rows are permuted inside windows of a few consecutive shards, so that a reader needs only one window of shards
at a time.

Permutations are computed, never stored: a Feistel network over mixed radix (Black & Rogaway 2002, "Ciphers with arbitrary finite
domains", the generalised Feistel cipher), walked until it lands inside the domain, keyed by BLAKE2b of seed, lot, epoch and window.
Nothing here knows ranks, workers or micro-batches; a row can depend on none of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.interleave import Interleave
from schemas.segments import Segment, deal_of, ends

Ints = NDArray[np.int64]
_Words = NDArray[np.uint64]

ROUNDS = 6
_SHARDS = -1  # the "window" whose key permutes the shards of an epoch
_KEPT_EPOCHS = 4  # tables of shard order kept for a lot


@dataclass(frozen=True)
class Rows:
    """Rows by position, one entry each: indices into ``Order.sources`` and ``Order.lots``, the use, its epoch, and the lot's row number."""

    source: Ints
    lot: Ints
    use: Ints
    epoch: Ints
    row: Ints


def step_rows(segment: Segment, step: int) -> tuple[int, int]:
    """Positions (first, end) in the run's order of an optimizer step of a segment; only the last step has fewer than ``batch`` rows."""
    first = segment.first_row + (step - segment.first_step) * segment.batch
    return first, min(first + segment.batch, segment.first_row + segment.rows)


class Order:
    """The order of some consecutive segments of a run.

    Args:
        segments: as planned; a later one that begins early cuts an earlier one short (``schemas.segments``).
        shard_rows: rows of each shard, by lot, for every lot that the segments name.

    Raises:
        ValueError: a lot without rows, allotments that overlap, or a source that runs out of rows before its segment ends.
    """

    def __init__(self, segments: Sequence[Segment], shard_rows: Mapping[str, Sequence[int]]) -> None:
        self.segments = tuple(segments)
        self.sources = tuple(dict.fromkeys(share.source for segment in segments for share in segment.sources))
        self.lots = tuple(
            dict.fromkeys(a.lot for seg in segments for share in seg.sources for stream in share.streams for a in stream.allotments)
        )
        for lot in self.lots:
            if not sum(shard_rows.get(lot, ())):
                raise ValueError(f"lot {lot!r} is in the plan but has no rows")
        self._first = np.array([segment.first_row for segment in segments], dtype=np.int64)
        self._end = np.array(ends(segments), dtype=np.int64)
        # A segment that was never reached holds nothing and is left out; the others begin at different positions.
        by_beginning = np.argsort(self._first, kind="stable")
        self._sorted = by_beginning[self._end[by_beginning] > self._first[by_beginning]]
        self.end = int(self._end[self._sorted].max(initial=0))
        self._dealers = [
            _Dealer(segment, int(end) - segment.first_row, self.sources, self.lots)
            for segment, end in zip(self.segments, self._end, strict=True)
        ]
        self._shuffles = {
            (segment.seed, segment.window, lot): _LotOrder(self.lots[lot], shard_rows[self.lots[lot]], segment.seed, segment.window)
            for segment, dealer in zip(self.segments, self._dealers, strict=True)
            for lot in dealer.lots
        }

    def rows(self, positions: Ints) -> Rows:
        """Return the rows at positions of the run's order (any positions, in any order).

        Raises:
            IndexError: a position that no segment holds.
        """
        positions = np.asarray(positions, dtype=np.int64)
        place = np.searchsorted(self._first[self._sorted], positions, side="right") - 1
        segment = self._sorted[np.maximum(place, 0)]
        outside = (place < 0) | (positions >= self._end[segment])
        if outside.any():
            raise IndexError(f"position {int(positions[outside][0])} lies outside the segments of this order")
        found = np.empty((5, len(positions)), dtype=np.int64)
        for s in np.unique(segment):
            mine = np.nonzero(segment == s)[0]
            dealt = self._dealers[s].deal(positions[mine] - self._first[s])
            found[:3, mine], orders = dealt[:3], dealt[3]
            for lot in np.unique(found[1, mine]):
                these = found[1, mine] == lot
                shuffle = self._shuffles[self.segments[s].seed, self.segments[s].window, int(lot)]
                found[3, mine[these]], found[4, mine[these]] = shuffle.rows(found[2, mine[these]], orders[these])
        return Rows(*found)

    def positions(self, lot: str, uses: Ints) -> Ints:
        """Return where uses of a lot stand in the run's order, -1 where they do not (the inverse of ``rows``)."""
        uses = np.asarray(uses, dtype=np.int64)
        found = np.full(len(uses), -1, dtype=np.int64)
        if lot in self.lots:
            for dealer, first, end in zip(self._dealers, self._first, self._end, strict=True):
                offset = dealer.offsets(self.lots.index(lot), uses)
                found = np.where((offset >= 0) & (offset < end - first), first + offset, found)
        return found


class _Dealer:
    """A segment's quotas and allotments: from an offset in the segment to (source, lot, use), and back."""

    def __init__(self, segment: Segment, rows: int, sources: tuple[str, ...], lots: tuple[str, ...]) -> None:
        self.sources = deal_of(segment)
        self.source_index = np.array([sources.index(share.source) for share in segment.sources], dtype=np.int64)
        self.streams: list[tuple[Interleave, list[_Allotments]]] = []
        self.lots: set[int] = set()
        for share, needed in zip(segment.sources, self.sources.counts(rows), strict=True):
            interleave = Interleave([stream.quota for stream in share.streams])
            streams = [_Allotments(stream.allotments, lots) for stream in share.streams]
            for have, need in zip(streams, interleave.counts(int(needed)), strict=True):
                if need > have.first[-1]:
                    raise ValueError(
                        f"segment of stage {segment.stage!r}: source {share.source!r} has {have.first[-1]} rows allotted to a stream, "
                        f"but {need} are needed for {rows} rows"
                    )
                self.lots.update(have.lot.tolist())
            self.streams.append((interleave, streams))
        self._refuse_overlaps(segment, lots)

    def _refuse_overlaps(self, segment: Segment, lots: tuple[str, ...]) -> None:
        every = [allotments for _, streams in self.streams for allotments in streams]
        lot = np.concatenate([a.lot for a in every])
        start = np.concatenate([a.start for a in every])
        stop = np.concatenate([a.start + np.diff(a.first) for a in every])
        order = np.lexsort((start, lot))
        lot, start, stop = lot[order], start[order], stop[order]
        wrong = np.nonzero((lot[1:] == lot[:-1]) & (start[1:] < stop[:-1]))[0]
        if len(wrong):
            raise ValueError(
                f"segment of stage {segment.stage!r}: use {start[wrong[0] + 1]} of lot {lots[lot[wrong[0]]]!r} is allotted twice"
            )

    def deal(self, offsets: Ints) -> Ints:
        """Source, lot, use, and epoch whose order it has (four lines, -1 for its own) of each offset."""
        share, index = self.sources.at(offsets)
        found = np.empty((4, len(offsets)), dtype=np.int64)
        found[0] = self.source_index[share]
        for s in np.unique(share):
            mine = np.nonzero(share == s)[0]
            interleave, streams = self.streams[s]
            stream, turn = interleave.at(index[mine])
            for t in np.unique(stream):
                these = stream == t
                found[1:, mine[these]] = streams[t].uses(turn[these])
        return found

    def offsets(self, lot: int, uses: Ints) -> Ints:
        """Offset in the segment of each use of a lot, -1 where it is not allotted."""
        found = np.full(len(uses), -1, dtype=np.int64)
        for s, (interleave, streams) in enumerate(self.streams):
            for t, allotments in enumerate(streams):
                turn = allotments.turns(lot, uses)
                here = np.nonzero(turn >= 0)[0]
                if len(here) and interleave.quotas[t]:
                    index = interleave.position(np.full(len(here), t), turn[here])
                    found[here] = self.sources.position(np.full(len(here), s), index)
        return found


class _Allotments:
    """A stream's allotments laid end to end."""

    def __init__(self, allotments: Sequence[Any], lots: tuple[str, ...]) -> None:
        self.lot = np.array([lots.index(a.lot) for a in allotments], dtype=np.int64)
        self.start = np.array([a.start for a in allotments], dtype=np.int64)
        self.order = np.array([-1 if a.order is None else a.order for a in allotments], dtype=np.int64)
        self.first = np.concatenate([[0], np.cumsum([a.rows for a in allotments], dtype=np.int64)]).astype(np.int64)

    def uses(self, turns: Ints) -> Ints:
        """Lot, use and order (three lines) of the stream's rows by number."""
        which = np.searchsorted(self.first, turns, side="right") - 1
        return np.stack([self.lot[which], self.start[which] + turns - self.first[which], self.order[which]])

    def turns(self, lot: int, uses: Ints) -> Ints:
        """Number within the stream of each use of a lot, -1 where it is not in the stream."""
        found = np.full(len(uses), -1, dtype=np.int64)
        for a in np.nonzero(self.lot == lot)[0]:
            turn = uses - self.start[a] + self.first[a]
            found = np.where((turn >= self.first[a]) & (turn < self.first[a + 1]), turn, found)
        return found


class _LotOrder:
    """The two-level order of one lot under one seed and window."""

    def __init__(self, lot: str, shard_rows: Sequence[int], seed: int, window: int) -> None:
        self.lot, self.seed, self.window = lot, seed, max(1, window)
        self.shard_rows = np.asarray(shard_rows, dtype=np.int64)
        self.shard_first = np.concatenate([[0], np.cumsum(self.shard_rows)])
        self.total = int(self.shard_first[-1])
        self._epochs: dict[int, _Epoch] = {}

    def rows(self, uses: Ints, orders: Ints) -> tuple[Ints, Ints]:
        """Epoch and row of each use, in the order of another epoch where ``orders`` names one (-1 where not)."""
        epochs, places = np.divmod(uses, self.total)
        rows = np.empty(len(uses), dtype=np.int64)
        shuffled = np.where(orders < 0, epochs, orders)
        for epoch in np.unique(shuffled):
            mine = shuffled == epoch
            rows[mine] = self._place_to_row(self._epoch(int(epoch)), places[mine])
        return epochs, rows

    def uses(self, epoch: int, rows: Ints) -> Ints:
        """The use that gives each row in an epoch."""
        table = self._epoch(epoch)
        shard = np.searchsorted(self.shard_first, rows, side="right") - 1
        slot = table.slot[shard]
        line = table.first[slot] + rows - self.shard_first[shard]
        window = slot // self.window
        inner = permute(line - table.window_first[window], table.window_rows[window], self._keys(table, window), inverse=True)
        return epoch * self.total + table.window_first[window] + inner

    def _place_to_row(self, table: _Epoch, places: Ints) -> Ints:
        window = np.searchsorted(table.window_first, places, side="right") - 1
        line = table.window_first[window] + permute(
            places - table.window_first[window], table.window_rows[window], self._keys(table, window)
        )
        slot = np.searchsorted(table.first, line, side="right") - 1
        rows: Ints = self.shard_first[table.shard[slot]] + line - table.first[slot]
        return rows

    def _epoch(self, epoch: int) -> _Epoch:
        table = self._epochs.get(epoch)
        if table is None:
            while len(self._epochs) >= _KEPT_EPOCHS:
                self._epochs.pop(next(iter(self._epochs)))
            count = len(self.shard_rows)
            size = np.full(count, count, dtype=np.int64)
            shard = permute(np.arange(count), size, np.full(count, _key(self.seed, self.lot, epoch, _SHARDS), dtype=np.uint64))
            table = self._epochs[epoch] = _Epoch(epoch, shard, self.shard_rows[shard], self.window)
        return table

    def _keys(self, table: _Epoch, windows: Ints) -> _Words:
        unique, inverse = np.unique(windows, return_inverse=True)
        keys = np.array([_key(self.seed, self.lot, table.epoch, int(w)) for w in unique], dtype=np.uint64)
        return keys[inverse]


def lot_uses(lot: str, shard_rows: Sequence[int], seed: int, window: int, epoch: int, rows: Ints, order: int | None = None) -> Ints:
    """Return the use that gives each row of a lot in an epoch (in the order of epoch ``order``, where that is another)."""
    shuffle = _LotOrder(lot, shard_rows, seed, window)
    own = epoch if order is None else order
    return shuffle.uses(own, np.asarray(rows, dtype=np.int64)) + (epoch - own) * shuffle.total


class _Epoch:
    """Shards of a lot in an epoch's order, and the windows they fall into."""

    def __init__(self, epoch: int, shard: Ints, rows: Ints, window: int) -> None:
        self.epoch, self.shard = epoch, shard
        self.slot = np.argsort(shard)
        self.first = np.concatenate([[0], np.cumsum(rows)])
        self.window_first = self.first[:-1:window]
        self.window_rows = np.diff(np.append(self.window_first, self.first[-1]))


@lru_cache(maxsize=4096)
def _key(seed: int, lot: str, epoch: int, window: int) -> int:
    digest = hashlib.blake2b(f"{seed}\x00{lot}\x00{epoch}\x00{window}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def permute(values: Ints, sizes: Ints, keys: _Words, inverse: bool = False) -> Ints:
    """Permute each value within 0 to its size, under its key: a bijection for each (size, key).

    Args:
        values: integers, each at least 0 and below its size.
        sizes: domain of each value.
        keys: key of each value.
        inverse: undo the permutation.
    """
    rows = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    columns = (sizes.astype(np.uint64) + rows - np.uint64(1)) // rows
    walk = _unmix if inverse else _mix
    found = walk(values.astype(np.uint64), rows, columns, keys)
    outside = np.nonzero(found >= sizes.astype(np.uint64))[0]
    while len(outside):
        found[outside] = walk(found[outside], rows[outside], columns[outside], keys[outside])
        outside = outside[found[outside] >= sizes[outside].astype(np.uint64)]
    return found.astype(np.int64)


def _mix(values: _Words, rows: _Words, columns: _Words, keys: _Words) -> _Words:
    left, right = np.divmod(values, columns)
    for turn in range(ROUNDS):
        if turn % 2 == 0:
            left = (left + _hash(right, keys, turn) % rows) % rows
        else:
            right = (right + _hash(left, keys, turn) % columns) % columns
    return left * columns + right


def _unmix(values: _Words, rows: _Words, columns: _Words, keys: _Words) -> _Words:
    left, right = np.divmod(values, columns)
    for turn in reversed(range(ROUNDS)):
        if turn % 2 == 0:
            left = (left + rows - _hash(right, keys, turn) % rows) % rows
        else:
            right = (right + columns - _hash(left, keys, turn) % columns) % columns
    return left * columns + right


def _hash(values: _Words, keys: _Words, turn: int) -> _Words:
    """SplitMix64's finaliser (Steele, Lea & Flood 2014) over value, key and round; arithmetic wraps at 64 bits."""
    z = values * np.uint64(0x9E3779B97F4A7C15) + keys + np.uint64(turn * 0xD1B54A32D192ED03 & 0xFFFFFFFFFFFFFFFF)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
