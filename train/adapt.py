"""Adaptive weights in the loop: decides between steps, and commits the decision as a segment before any row is drawn by it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from schemas.adaptive import decide
from schemas.interleave import Interleave, whole_quotas
from schemas.segments import Segment, deal_of, read_segments, remaining, segment_at, write_segments
from train.parallel import Ranks
from train.stage import Stage


def adapted(stage: Stage, step: int, evaluated: int, heldout: Mapping[str, float], ranks: Ranks) -> Stage:
    """The stage as it goes on from a step: with other weights where a decision is due, else the same.

    A decision that a process made before it died stands: it is in the list of segments, and is not made again.

    Args:
        stage: the stage.
        step: the next step.
        evaluated: step before which held-out rows were last measured.
        heldout: what they gave.
        ranks: all ranks; every one must call.
    """
    if evaluated != step or not _due(stage, step):
        return stage
    row = stage.next_row(step)
    current = segment_at(stage.segments, row - 1)
    if any(segment.first_row == row for segment in stage.segments[current + 1 :]):
        return stage
    losses = {name.partition("/")[2]: loss for name, loss in heldout.items() if name.startswith("heldout/")}
    segment = reweighed(stage, stage.segments[current], row, step, losses, _history(stage, current))
    if segment is None:
        return stage
    if ranks.first:
        segments = read_segments(stage.root / stage.settings.segments)
        write_segments(stage.root, stage.settings.segments, [*segments, segment])
    ranks.broadcast(None)
    stage.close()
    return Stage(stage.root, stage.settings)


def _due(stage: Stage, step: int) -> bool:
    adaptive, done = stage.settings.adaptive, step - stage.first_step
    every = adaptive.every * stage.settings.training.eval_every if adaptive else 0
    return every > 0 and done > 0 and done % every == 0 and step < stage.end_step


def _history(stage: Stage, current: int) -> list[dict[str, float]]:
    """Losses at the stage's decisions that were in force, the oldest first."""
    made = [s for i, s in enumerate(stage.segments[: current + 1]) if stage.end_of(i) > s.first_row]
    losses = [{d.source: d.loss for d in s.decisions if d.loss is not None and math.isfinite(d.loss)} for s in made]
    return [each for each in losses if each]


def reweighed(
    stage: Stage, current: Segment, row: int, step: int, losses: Mapping[str, float], history: Sequence[Mapping[str, float]]
) -> Segment | None:
    """The segment that takes the place of the rest of the current one; None where budgets leave no choice.

    Args:
        stage: the stage.
        current: the segment in force.
        row: position of the first row that the new one holds.
        step: its step.
        losses: held-out loss by source now.
        history: the same at the stage's earlier decisions, the oldest first.
    """
    settings = stage.settings.adaptive
    assert settings is not None
    rest = current.first_row + current.rows - row
    shares = remaining(current, row - current.first_row)
    have = [
        Interleave([s.quota for s in share.streams]).longest([sum(a.rows for a in s.allotments) for s in share.streams]) for share in shares
    ]
    period = sum(share.quota for share in shares)
    own = sum(share.quota for share in shares if not share.replayed) / period
    limits = {share.source: min(1.0, rows / (rest * own)) for share, rows in zip(shares, have, strict=True) if not share.replayed}
    weights = {d.source: d.after for d in current.decisions}
    decisions = decide(settings, weights, losses, history, limits)
    after = {d.source: d.after * own for d in decisions}
    owed = deal_of(current).owed_after(row - current.first_row)
    quotas = whole_quotas([s.quota / period if s.replayed else after.get(s.source, 0.0) for s in shares], tolerance=0.001)
    if Interleave(quotas, owed).longest(have) < rest:
        return None
    sources = tuple(replace(share, quota=quota, owed=debt, due=None) for share, quota, debt in zip(shares, quotas, owed, strict=True))
    return Segment(current.stage, row, rest, step, current.batch, current.seed, current.window, sources, "adaptive", decisions)
