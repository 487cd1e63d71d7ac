"""What a stage takes over from the run before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from curate.dues import Portion
from schemas.segments import Allotment, Decision, Segment, deal_of


@dataclass(frozen=True)
class Earlier:
    """What a stage takes over from the run before it.

    Attributes:
        shares: shares of the sources at the end of the stage before.
        used: what each earlier stage used.
        heldout: last held-out loss by source.
        decisions: the decisions on adaptive weights in force at the end of the stage before.
        reference: losses that adaptive weights are held against.
        owed: where a stage is planned again from its middle, rows that each portion is owed there.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, Sequence[Allotment]] = field(default_factory=dict)
    heldout: Mapping[str, float] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    reference: Mapping[str, float] = field(default_factory=dict)
    owed: Mapping[Portion, Fraction] = field(default_factory=dict)


def owed_at(segment: Segment, rows: int) -> dict[Portion, Fraction]:
    """Rows that each portion is owed after a segment's first ``rows`` rows."""
    return {(s.source, s.replayed): debt for s, debt in zip(segment.sources, deal_of(segment).owed_after(rows), strict=True)}


def last_shares(segment: Segment) -> dict[str, float]:
    """Shares of the sources in a segment, replayed rows left out."""
    shares = [share for share in segment.sources if share.quota and not share.replayed]
    return {share.source: share.quota / sum(s.quota for s in shares) for share in shares}
