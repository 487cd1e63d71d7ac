"""Adaptive weights: how the shares of sources move with their held-out losses; pure, so that planner and trainer decide alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from schemas.segments import Decision

FULL_SIGNAL = 0.25
"""Fall of a loss, as a share of the largest, from which a source has the full signal of speed: what is learnt at all is not played off."""

LOOK_BACK = 3
"""Decisions over which the fall of a loss is taken: over one, a plateau or the noise of an evaluation looks like the end of learning."""


@dataclass(frozen=True)
class AdaptiveSettings:
    """How weights move.

    Attributes:
        by: excess (loss above a reference, over all decisions: Xie et al. 2023, "DoReMi") or speed (fall of the loss over the last few).
        every: evaluations between decisions; 0 decides only where a stage begins.
        rate: with the full signal a source aims at e to this power times its starting weight, against one with none.
        least: least weight, as a share of the starting one.
        start: starting weights by source, adding up to 1.
        reference: losses to be held against, by source; of ``excess``.
    """

    by: Literal["excess", "speed"]
    every: int
    rate: float
    least: float
    start: dict[str, float]
    reference: dict[str, float]


def decide(
    settings: AdaptiveSettings,
    weights: Mapping[str, float],
    losses: Mapping[str, float],
    history: Sequence[Mapping[str, float]],
    limits: Mapping[str, float],
) -> tuple[Decision, ...]:
    """Move weights half the way to start * exp(rate * signal), normalised, within what the budgets allow.

    The exponential weights are those of DoReMi (Xie et al. 2023, algorithm 1), with the sum of its exponents scaled to the largest: added
    up as they are they end with the one source whose signal is largest.

    Args:
        settings: how.
        weights: shares of the sources now, adding up to 1.
        losses: held-out loss by source, nats per token; a source without one keeps its weight.
        history: losses at the stage's earlier decisions, the oldest first.
        limits: largest share of each source that its budget allows.

    Returns:
        A decision for each source, in order. Weights stay as they are where no signal says otherwise or the limits leave no room.
    """
    references: Mapping[str, float] = settings.reference
    if settings.by == "speed":
        references = history[-LOOK_BACK:][0] if history else {}
    signals = _signals(settings, losses, references, history)
    moved = dict(weights)
    if signals:
        total = sum(weights[name] for name in signals)
        grown = {name: settings.start[name] * math.exp(settings.rate * signal) for name, signal in signals.items()}
        moved |= {name: (weights[name] + total * value / sum(grown.values())) / 2 for name, value in grown.items()}
        least = {name: min(settings.least * settings.start[name], weights[name]) for name in weights}
        moved = bounded(moved, least, limits) or dict(weights)
    return tuple(
        Decision(name, share, moved[name], losses.get(name), references.get(name), signals.get(name), limits[name])
        for name, share in weights.items()
    )


def _signals(
    settings: AdaptiveSettings, losses: Mapping[str, float], references: Mapping[str, float], history: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Excess or fall of each source's loss against the largest, 0 (none) to 1; empty where none is above 0.

    Excess is summed over all decisions, each time the least that the source has had so far: at the end of a stage what can be learnt is
    near its reference, while the loss of noise, of which the model sees less than the reference did, rises above it for good.
    """
    known = {name: loss for name, loss in losses.items() if name in references and math.isfinite(loss)}
    if settings.by == "speed":
        raised, full = {name: max(0.0, references[name] - loss) for name, loss in known.items()}, FULL_SIGNAL
    else:
        past = {name: [before[name] for before in (*history, losses) if name in before] for name in known}
        raised, full = {name: sum(max(0.0, least - references[name]) for least in accumulate(past[name], min)) for name in known}, 1.0
    largest = max(raised.values(), default=0.0)
    return {name: min(1.0, value / (full * largest)) for name, value in raised.items()} if largest > 0 else {}


def bounded(weights: Mapping[str, float], least: Mapping[str, float], most: Mapping[str, float]) -> dict[str, float] | None:
    """Shares in the ratio of the weights but for those held at their bounds, adding up to 1; None where the bounds leave no room."""
    low = {name: min(least[name], most[name]) for name in weights}
    if sum(most[name] for name in weights) < 1 or sum(low.values()) > 1:
        return None
    held: dict[str, float] = {}
    while True:
        loose = [name for name in weights if name not in held]
        total = sum(weights[name] for name in loose)
        rest = 1 - sum(held.values())
        share = {name: rest * weights[name] / total if total else rest / len(loose) for name in loose}
        over = {name: share[name] - most[name] for name in loose if share[name] > most[name]}
        under = {name: low[name] - share[name] for name in loose if share[name] < low[name]}
        if not over and not under:
            return {name: held.get(name, share.get(name, 0.0)) for name in weights}
        # The side that is further out is held first; the other may then be inside.
        held |= {name: most[name] for name in over} if sum(over.values()) >= sum(under.values()) else {name: low[name] for name in under}
