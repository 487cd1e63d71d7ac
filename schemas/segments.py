"""A run's order: an append-only list of segments, each committed before it takes effect.

Rows of lots are named by *use*: use ``u`` of a lot with ``R`` rows is place ``u % R`` of epoch ``u // R``'s own permutation of the rows.
A lot of repeat class ``r`` has uses 0 to ``r * R``; allotments are disjoint ranges of uses, so that no document is ever used more often
than its count, whatever stages, early stops and restarts do.

Early stops. A segment stays in the list as it was planned: the list is only ever appended to, so its hash up to any segment never
changes. What cuts a stopped segment short is the next one: its ``first_row`` and ``first_step`` continue from the outcome's ``next_row``
and ``next_step``. A position (or a step) of the run therefore belongs to the **last** segment in the list that begins at or before it
(``segment_at``), a segment holds up to ``ends``, and a segment that was never reached holds nothing. What a stage was allotted and did
not use (``unused``) goes back to the budgets. In the same way a segment that is appended while its stage is under way (other weights, a
rewind) takes the place of the rest of the stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

from schemas.interleave import Interleave
from schemas.manifest import fingerprint
from schemas.ranges import Range, minus
from schemas.store import publish_json, read_json


@dataclass(frozen=True)
class Allotment:
    """Uses ``start`` to ``stop`` (exclusive) of a lot.

    Attributes:
        lot: lot id.
        start: first use.
        stop: end of the uses.
        order: epoch whose order the rows have, for uses of one epoch that gives another's rows once more; None is their own epoch's.
    """

    lot: str
    start: int
    stop: int
    order: int | None = None

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
    """A source's share of a segment, dealt over its streams by their quotas.

    Attributes:
        source: the source.
        quota: its rows per period among the sources.
        streams: what it gives.
        replayed: whether it gives documents of earlier stages once more; a source may have such a share beside its own.
        owed: rows that it is owed where the segment begins: what it was to have in the segments before, less what it had.
        due: row of the segment, counted from 1, up to which it must have the row that its target is in the middle of at the end; None
            by its own pace (see ``schemas.interleave``).
    """

    source: str
    quota: int
    streams: tuple[Stream, ...]
    replayed: bool = False
    owed: Fraction = Fraction(0)
    due: int | None = None


@dataclass(frozen=True)
class Decision:
    """Why a source has the weight it has from a segment on.

    Attributes:
        source: the source.
        before: its share of the rows before.
        after: its share of the rows from here on.
        loss: held-out loss when it was decided, nats per token; None where it was not measured.
        reference: loss that it was held against; None where there was none.
        signal: what moved the weight, 0 (down) to 1 (up); None where it was left as it was.
        limit: largest share that the budgets allow.
    """

    source: str
    before: float
    after: float
    loss: float | None = None
    reference: float | None = None
    signal: float | None = None
    limit: float | None = None


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
        why: what began it: planned, pacing, ramp, blend, spent (a lot was used up), length, adaptive or rewind.
        decisions: for adaptive weights, how they were decided, by source.
        excluded: uses that are never to be given out any more, from here on.
    """

    stage: str
    first_row: int
    rows: int
    first_step: int
    batch: int
    seed: int
    window: int
    sources: tuple[SourceShare, ...]
    why: str = "planned"
    decisions: tuple[Decision, ...] = ()
    excluded: tuple[Allotment, ...] = ()

    @property
    def steps(self) -> int:
        """Optimizer steps of the segment."""
        return -(-self.rows // self.batch)


def deal_of(segment: Segment) -> Interleave:
    """How the sources of a segment take turns."""
    shares = segment.sources
    return Interleave([s.quota for s in shares], [s.owed for s in shares], [s.due for s in shares], segment.rows)


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
    return tuple(a for share in remaining(segment, rows) for stream in share.streams for a in stream.allotments)


def used(segment: Segment, rows: int) -> tuple[Allotment, ...]:
    """What a segment's first ``rows`` rows use of its allotments, by source, then stream, in order of use."""
    return tuple(a for share in dealt(segment, rows) for stream in share.streams for a in stream.allotments)


def dealt(segment: Segment, rows: int) -> list[SourceShare]:
    """A segment's shares with what its first ``rows`` rows use of them."""
    return [replace(share, streams=taken) for share, (taken, _) in zip(segment.sources, _cut(segment, rows), strict=True)]


def remaining(segment: Segment, rows: int) -> list[SourceShare]:
    """A segment's shares with what is left of them once its first ``rows`` rows are used."""
    return [replace(share, streams=left) for share, (_, left) in zip(segment.sources, _cut(segment, rows), strict=True)]


def _cut(segment: Segment, rows: int) -> list[tuple[tuple[Stream, ...], tuple[Stream, ...]]]:
    """Of each source, what the first ``rows`` rows use of its streams, and what is left of them."""
    found = []
    by_source = deal_of(segment).counts(rows)
    for share, share_rows in zip(segment.sources, by_source, strict=True):
        by_stream = Interleave([stream.quota for stream in share.streams]).counts(int(share_rows))
        parts = [_cut_stream(stream, int(count)) for stream, count in zip(share.streams, by_stream, strict=True)]
        found.append((tuple(taken for taken, _ in parts), tuple(left for _, left in parts)))
    return found


def _cut_stream(stream: Stream, rows: int) -> tuple[Stream, Stream]:
    taken, left = [], []
    for a in stream.allotments:
        cut = a.start + min(rows, a.rows)
        taken += [replace(a, stop=cut)] if cut > a.start else []
        left += [replace(a, start=cut)] if cut < a.stop else []
        rows = max(0, rows - a.rows)
    return replace(stream, allotments=tuple(taken)), replace(stream, allotments=tuple(left))


def allotments(segment: Segment) -> list[Allotment]:
    """All allotments of a segment, by source, then stream."""
    return [a for share in segment.sources for stream in share.streams for a in stream.allotments]


def spent(segments: Sequence[Segment], next_row: int) -> list[Allotment]:
    """What segments used of their allotments when the rows before position ``next_row`` were used, each where it is in force."""
    return [
        a
        for segment, end in zip(segments, ends(segments), strict=True)
        for a in used(segment, min(max(next_row - segment.first_row, 0), end - segment.first_row))
    ]


def unused(segments: Sequence[Segment], next_row: int) -> list[Allotment]:
    """What a stage planned as ``segments`` was allotted and did not use when it ended before position ``next_row``, by lot, ascending."""
    given: dict[str, list[Range]] = {}
    gone: dict[str, list[Range]] = {}
    for a in (a for segment in segments for a in allotments(segment)):
        given.setdefault(a.lot, []).append((a.start, a.stop))
    for a in [*spent(segments, next_row), *(a for segment in segments for a in segment.excluded)]:
        gone.setdefault(a.lot, []).append((a.start, a.stop))
    return [Allotment(lot, *span) for lot, spans in given.items() for span in minus(spans, gone.get(lot, ()))]


class Planned(Protocol):
    """A stage's place in its run's list of segments (``schemas.settings.StageSettings``)."""

    @property
    def stage(self) -> str:
        """Stage name."""
        ...

    @property
    def first_segment(self) -> int:
        """Index of its first segment."""
        ...

    @property
    def last_segment(self) -> int:
        """Index of the last one it was planned with, inclusive."""
        ...


def stage_segments(segments: Sequence[Segment], stage: Planned) -> list[Segment]:
    """A stage's segments in a run's list: those it was planned with, and those that were appended for it since."""
    last = stage.last_segment + 1
    while last < len(segments) and segments[last].stage == stage.stage:
        last += 1
    return list(segments[stage.first_segment : last])


def segment_to_json(segment: Segment) -> dict[str, Any]:
    """The JSON form of a segment; what has its default is left out."""
    value = asdict(segment)
    for share in value["sources"]:
        share["owed"] = str(share["owed"])
        for name in [name for name, default in _SHARE_DEFAULTS.items() if share[name] == default]:
            del share[name]
        for stream in share["streams"]:
            stream["allotments"] = [_short(a) for a in stream["allotments"]]
    value["excluded"] = [_short(a) for a in value["excluded"]]
    return {name: field for name, field in value.items() if name not in _DEFAULTS or field not in (_DEFAULTS[name], list(_DEFAULTS[name]))}


_SHARE_DEFAULTS: dict[str, Any] = {"replayed": False, "owed": "0", "due": None}
_DEFAULTS: dict[str, Any] = {"why": "planned", "decisions": (), "excluded": ()}


def _short(allotment: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in allotment.items() if value is not None}


def segments_hash(segments: Sequence[Segment]) -> str:
    """Hash of a list of segments; checkpoints hold it, and a changed past is refused."""
    return fingerprint([segment_to_json(segment) for segment in segments])


def segment_from_json(value: dict[str, Any]) -> Segment:
    """Rebuild a segment from its JSON form."""
    sources = tuple(
        SourceShare(
            s["source"],
            s["quota"],
            tuple(Stream(t["quota"], tuple(Allotment(**a) for a in t["allotments"])) for t in s["streams"]),
            s.get("replayed", False),
            Fraction(s.get("owed", 0)),
            s.get("due"),
        )
        for s in value["sources"]
    )
    decisions = tuple(Decision(**d) for d in value.get("decisions", ()))
    excluded = tuple(Allotment(**a) for a in value.get("excluded", ()))
    return Segment(**{**value, "sources": sources, "decisions": decisions, "excluded": excluded})


def write_segments(root: Path, relative: str, segments: Sequence[Segment]) -> None:
    """Publish a run's list of segments."""
    publish_json(root, relative, [segment_to_json(segment) for segment in segments])


def read_segments(path: Path) -> list[Segment]:
    """Read a run's list of segments; an absent file is an empty list."""
    if not path.is_file():
        return []
    return [segment_from_json(value) for value in read_json(path)]
