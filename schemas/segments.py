"""A run's order: an append-only list of segments, each committed before it takes effect.

Rows of lots are named by *use*: use ``u`` of a lot with ``R`` rows is place ``u % R`` of epoch ``u // R``'s own permutation of the rows.
A lot of repeat class ``r`` has uses 0 to ``r * R``; allotments are disjoint ranges of uses, so that no document is ever used more often
than its count, whatever stages, early stops and restarts do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from schemas.manifest import fingerprint
from schemas.store import publish_json


@dataclass(frozen=True)
class Allotment:
    """Uses ``start`` to ``stop`` (exclusive) of a lot."""

    lot: str
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


@dataclass(frozen=True)
class Stream:
    """Allotments used one after another; ``quota`` is its share of its source's rows (see ``schemas.interleave``)."""

    quota: int
    allotments: tuple[Allotment, ...]


@dataclass(frozen=True)
class SourceShare:
    """A source's share of a segment: ``quota`` rows per period among the sources, dealt over its streams by their quotas."""

    source: str
    quota: int
    streams: tuple[Stream, ...]


@dataclass(frozen=True)
class Segment:
    """A stretch of the run's order.

    Attributes:
        stage: stage name.
        first_row: position of its first row in the run's order.
        rows: its length in rows.
        first_step: optimizer step of its first row.
        batch: rows per optimizer step; the last step of a segment may have fewer.
        seed: seed of the permutations.
        window: shards shuffled together (rows are permuted within a window of this many shards).
        sources: shares; position i belongs to source, then to stream, by interleaving of quotas.
    """

    stage: str
    first_row: int
    rows: int
    first_step: int
    batch: int
    seed: int
    window: int
    sources: tuple[SourceShare, ...]

    @property
    def steps(self) -> int:
        """Optimizer steps of the segment."""
        return -(-self.rows // self.batch)


def segments_hash(segments: Sequence[Segment]) -> str:
    """Hash of a list of segments; checkpoints hold it, and a changed past is refused."""
    return fingerprint([asdict(segment) for segment in segments])


def segment_from_json(value: dict[str, Any]) -> Segment:
    """Rebuild a segment from its JSON form."""
    sources = tuple(
        SourceShare(
            s["source"], s["quota"], tuple(Stream(t["quota"], tuple(Allotment(**a) for a in t["allotments"])) for t in s["streams"])
        )
        for s in value["sources"]
    )
    return Segment(**{**value, "sources": sources})


def write_segments(root: Path, relative: str, segments: Sequence[Segment]) -> None:
    """Publish a run's list of segments."""
    publish_json(root, relative, [asdict(segment) for segment in segments])


def read_segments(path: Path) -> list[Segment]:
    """Read a run's list of segments; an absent file is an empty list."""
    if not path.is_file():
        return []
    return [segment_from_json(value) for value in json.loads(path.read_text(encoding="utf-8"))]
