"""A run's order: an append-only list of segments, each committed before it takes effect.

Rows of lots are named by *use*: use ``u`` of a lot with ``R`` rows is place ``u % R`` of epoch ``u // R``'s own permutation of the rows.
A lot of repeat class ``r`` has uses 0 to ``r * R``; allotments are disjoint ranges of uses, so that no document is ever used more often
than its count, whatever stages, early stops and restarts do.

Early stops. A segment stays in the list as it was planned: the list is only ever appended to, so its hash up to any segment never
changes. What cuts a stopped segment short is the next one: its ``first_row`` and ``first_step`` continue from the outcome's ``next_row``
and ``next_step``. A position (or a step) of the run therefore belongs to the **last** segment in the list that begins at or before it
(``segment_at``), a segment holds up to ``ends``, and a segment that was never reached holds nothing. What a stage did not use
(``leftover``) goes back to the budgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from schemas.interleave import Interleave
from schemas.manifest import fingerprint
from schemas.store import publish_json, read_json


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


def ends(segments: Sequence[Segment]) -> list[int]:
    """Position in the run's order at which each segment stops being in force: its planned end, or where a later one begins."""
    found: list[int] = []
    begins = None
    for segment in reversed(segments):
        end = segment.first_row + segment.rows
        found.append(max(segment.first_row, end if begins is None else min(end, begins)))
        begins = segment.first_row if begins is None else min(begins, segment.first_row)
    return found[::-1]


def segment_at(segments: Sequence[Segment], position: int) -> int:
    """Index of the segment in force at a position of the run's order.

    Raises:
        IndexError: the position is before the first segment or after the end of the last.
    """
    for index in range(len(segments) - 1, -1, -1):
        if segments[index].first_row <= position:
            if position < segments[index].first_row + segments[index].rows:
                return index
            break
    raise IndexError(f"position {position} lies outside the run's order")


def leftover(segment: Segment, rows: int) -> tuple[Allotment, ...]:
    """What is left of a segment's allotments once its first ``rows`` rows are used, by source, then stream, in order of use."""
    left: list[Allotment] = []
    by_source = Interleave([share.quota for share in segment.sources]).counts(rows)
    for share, share_rows in zip(segment.sources, by_source, strict=True):
        by_stream = Interleave([stream.quota for stream in share.streams]).counts(int(share_rows))
        for stream, used in zip(share.streams, by_stream, strict=True):
            skip = int(used)
            for allotment in stream.allotments:
                if skip < allotment.rows:
                    left.append(Allotment(allotment.lot, allotment.start + skip, allotment.stop))
                skip = max(0, skip - allotment.rows)
    return tuple(left)


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
    return [segment_from_json(value) for value in read_json(path)]
