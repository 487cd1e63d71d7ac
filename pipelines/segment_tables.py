"""Tables of the catalogue that tell each run's order and why it is so: segments, shares, decisions, excluded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb

from schemas.segments import Segment, deal_of, ends, read_segments

CREATE = (
    "CREATE TABLE segments (run VARCHAR, segment INTEGER, stage VARCHAR, first_row BIGINT, end_row BIGINT, first_step BIGINT,"
    " batch BIGINT, why VARCHAR)",
    # A source's part of a segment, over the rows for which it is in force; replayed rows give an earlier stage's documents once more.
    "CREATE TABLE shares (run VARCHAR, segment INTEGER, stage VARCHAR, source VARCHAR, replayed BOOLEAN, share DOUBLE, rows BIGINT)",
    "CREATE TABLE decisions (run VARCHAR, segment INTEGER, stage VARCHAR, first_step BIGINT, source VARCHAR, weight_before DOUBLE,"
    " weight_after DOUBLE, loss DOUBLE, reference DOUBLE, signal DOUBLE, most DOUBLE)",
    "CREATE TABLE excluded (run VARCHAR, segment INTEGER, stage VARCHAR, lot VARCHAR, start BIGINT, stop BIGINT)",
)


def create_segment_tables(db: duckdb.DuckDBPyConnection, root: Path) -> None:
    """Create and fill the tables from the segments of every run."""
    for statement in CREATE:
        db.execute(statement)
    for path in sorted(root.glob("runs/*/segments.json")):
        segments = read_segments(path)
        for number, (segment, end) in enumerate(zip(segments, ends(segments), strict=True)):
            place = [path.parent.name, number, segment.stage]
            _insert(db, "segments", [*place, segment.first_row, end, segment.first_step, segment.batch, segment.why])
            for line in _shares(segment, end - segment.first_row):
                _insert(db, "shares", [*place, *line])
            for d in segment.decisions:
                values = [d.source, d.before, d.after, d.loss, d.reference, d.signal, d.limit]
                _insert(db, "decisions", [*place, segment.first_step, *values])
            for a in segment.excluded:
                _insert(db, "excluded", [*place, a.lot, a.start, a.stop])


def _insert(db: duckdb.DuckDBPyConnection, table: str, values: list[object]) -> None:
    db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)


def _shares(segment: Segment, rows: int) -> Iterator[tuple[str, bool, float, int]]:
    """Source, whether its rows are replayed, its share, and its rows among the segment's first ``rows``."""
    dealt = deal_of(segment)
    for share, count in zip(segment.sources, dealt.counts(rows), strict=True):
        yield share.source, share.replayed, share.quota / dealt.period, int(count)
