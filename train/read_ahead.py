"""Read-ahead for a lake in an object store: the shards of the rows to come are fetched whole before they are needed, then given up.

The order is two-level, so that rows of some thousands of positions lie in few shards; nothing is ever asked of the store for a single row.
Fetched are the shards of the positions at hand, and of those to come for as long as they take at most half of the cache. Whatever else asks
for a shard (an evaluation) gets it from the store then: read-ahead changes when bytes come, never which.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from schemas.copy_room import Use, cache_bound
from schemas.settings import LotShard
from schemas.working_copy import WorkingCopy

BLOCK = 1024  # positions planned at a time
AHEAD = 16 * BLOCK
THREADS = 4


class ReadAhead:
    """Shards of a stage's rows in a working copy, in the order of their use.

    Args:
        copy: the lake's working copy.
        shards: the shards that hold the rows at positions ``first`` to ``end`` (exclusive), in order of use.
        end: position at which the stage ends.
        release: is told the paths that are still in use when others no longer are.
    """

    def __init__(
        self, copy: WorkingCopy, shards: Callable[[int, int], Sequence[LotShard]], end: int, release: Callable[[set[str]], None]
    ) -> None:
        self.copy, self.shards, self.end, self.release = copy, shards, end, release
        self._blocks: deque[tuple[int, dict[str, LotShard]]] = deque()  # the position at which each ends
        self._next = -1
        self._coming: dict[str, Future[Path]] = {}
        self._pool = ThreadPoolExecutor(THREADS)
        self._use: Use | None = None

    def need(self, first: int, end: int) -> None:
        """Wait for the shards of some positions, and have those of the next ones on their way.

        Raises:
            LakeError: the store does not give one.
        """
        if not first <= self._next <= end + AHEAD + BLOCK:  # the beginning, or a jump
            self._blocks.clear()
            self._next = first
        used = False
        while self._blocks and self._blocks[0][0] <= first:
            self._blocks.popleft()
            used = True
        while self._next < end or (self._next < min(first + AHEAD, self.end) and 2 * self._bytes() < cache_bound()):
            self._plan()
        for stop, block in self._blocks:
            for path in block:
                self._coming[path].result()
            if stop >= end:
                break
        if used:
            self._give_up()

    def close(self) -> None:
        """Fetch nothing more, and keep nothing."""
        self._pool.shutdown(cancel_futures=True)
        if self._use is not None:
            self._use.end()

    def _plan(self) -> None:
        if self._use is None:
            self._use = self.copy.use()
        stop = min(self._next + BLOCK, self.end)
        block = {shard.path: shard for shard in self.shards(self._next, stop)}
        for path, shard in block.items():
            if path not in self._coming:
                self._coming[path] = self._pool.submit(self.copy.bring, path, shard.checksum)
        self._blocks.append((stop, block))
        self._next = stop

    def _active(self) -> dict[str, LotShard]:
        return {path: shard for _, block in self._blocks for path, shard in block.items()}

    def _bytes(self) -> int:
        return sum(shard.bytes for shard in self._active().values())

    def _give_up(self) -> None:
        """Let go of shards that no planned position lies in; the copy keeps them while there is room."""
        active, now = self._active(), time.time()
        for path in self._coming.keys() - active.keys():
            del self._coming[path]
        for path, coming in self._coming.items():
            if coming.done():
                self.copy.bring(path, active[path].checksum)
        self.release(set(active))
        if self._use is not None:
            self._use.renew(now)
        self.copy.shrink()
