"""What a stage takes over from the run before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schemas.segments import Allotment, Decision, Segment


@dataclass(frozen=True)
class Earlier:
    """What a stage takes over from the run before it.

    Attributes:
        shares: shares of the sources at the end of the stage before.
        used: what each earlier stage used.
        heldout: last held-out loss by source.
        decisions: the decisions on adaptive weights in force at the end of the stage before.
        reference: losses that adaptive weights are held against.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, Sequence[Allotment]] = field(default_factory=dict)
    heldout: Mapping[str, float] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    reference: Mapping[str, float] = field(default_factory=dict)


def last_shares(segment: Segment) -> dict[str, float]:
    """Shares of the sources in a segment, replayed rows left out."""
    shares = [share for share in segment.sources if not share.replayed]
    return {share.source: share.quota / sum(s.quota for s in shares) for share in shares}
