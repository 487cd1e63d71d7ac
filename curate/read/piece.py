"""What one shard reads of one file; JSON-able, part of the shard's fingerprint."""

from __future__ import annotations

from typing import NamedTuple


class Piece(NamedTuple):
    """A file, or a part of it.

    Attributes:
        path: under the source's root, ``/`` between names; never the machine's own folders.
        size: bytes of the whole file.
        mtime_ns: its modification time.
        start: first byte (JSON lines) or row group (Parquet) of the part.
        stop: end of the part, exclusive; None is the end of the file.
        first: physical number of the part's first record.
    """

    path: str
    size: int
    mtime_ns: int
    start: int = 0
    stop: int | None = None
    first: int = 0
