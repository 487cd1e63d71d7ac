"""Arrays with an entry for each document: in memory while they are few, beyond that mapped files whose pages the system takes back.

The files have no name, so nothing is left of them when a process dies. Where arrays are mapped, whoever works on them goes chunk by chunk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numba
import numpy as np
import numpy.typing as npt

from schemas.store import reserve

DOCUMENT_BYTES = 64
"""What the arrays of one document take together, about."""
CHUNK = 1 << 17
"""Documents that are worked on at once."""
_EQUAL_COST = 96
"""Bytes of working memory for each document of a part whose equal hashes are sought."""

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]


def mapped_zeros(file: IO[bytes], kind: type[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """An empty file made long and mapped as zeros.

    Raises:
        OSError: the disk has no room for all of them.
    """
    made = np.memmap(file, kind, "w+", shape=shape)  # type: ignore[call-overload]
    reserve(file)
    return np.asarray(made)


class Scratch:
    """Makes arrays of one length.

    Args:
        size: documents.
        memory_limit: bytes that all arrays may take in memory.
        folder: where files go; None is the system's folder for temporary files.
    """

    def __init__(self, size: int, memory_limit: int, folder: Path | None = None) -> None:
        self.size, self._memory, self._folder = size, memory_limit, folder
        self.mapped = size * DOCUMENT_BYTES > memory_limit

    def array(self, kind: type[Any], fill: float | None = None) -> npt.NDArray[Any]:
        """An array of the length; its entries are zero, or ``fill``."""
        if not self.mapped or not self.size:
            return np.zeros(self.size, kind) if fill is None else np.full(self.size, fill, kind)
        with tempfile.TemporaryFile(prefix="gristmill-", dir=self._folder) as file:
            made = mapped_zeros(file, kind, (self.size,))
        for span in self.chunks() if fill is not None else ():
            made[span] = fill
        return made

    def chunks(self) -> Iterator[slice]:
        """Spans of all documents, in order."""
        for first in range(0, self.size, CHUNK):
            yield slice(first, min(first + CHUNK, self.size))

    def where(self, condition: Callable[[slice], npt.NDArray[np.bool_]]) -> Iterator[Int64]:
        """Places at which a condition on a span holds, chunk by chunk."""
        for span in self.chunks():
            yield np.flatnonzero(condition(span)) + span.start

    def first_of_equal(self, high: UInt64, low: UInt64, rank: Int64, alive: npt.NDArray[np.bool_], first: Int64) -> None:
        """Writes for each living document the most preferred living one with the same 128-bit hash.

        Documents are taken in parts by the leading bits of their hashes, each as large as the limit allows.

        Args:
            high: upper halves of the hashes.
            low: lower halves.
            rank: preference, the smallest comes first; all different.
            alive: documents that take part; entries of others are left alone.
            first: receives the places.
        """
        bits = 0
        while self.size * _EQUAL_COST >> bits > max(self._memory, 1 << 20) and bits < 16:
            bits += 1
        for part in range(1 << bits):
            mine = _members(high, alive, np.uint64(64 - bits) if bits else np.uint64(0), np.uint64(part), bits > 0)
            a, b = high[mine], low[mine]
            order = np.lexsort((rank[mine], b, a))
            a, b = a[order], b[order]
            new = np.ones(len(order), np.bool_)
            new[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
            first[mine[order]] = mine[order[np.flatnonzero(new)[np.cumsum(new) - 1]]]


@numba.njit(nogil=True, cache=True)
def _members(high, alive, shift, part, parted):  # type: ignore[no-untyped-def]
    """Living documents whose hash begins with these bits."""
    count = 0
    for i in range(len(high)):
        count += alive[i] and (not parted or high[i] >> shift == part)
    out = np.empty(count, np.int64)
    count = 0
    for i in range(len(high)):
        if alive[i] and (not parted or high[i] >> shift == part):
            out[count] = i
            count += 1
    return out
