"""Mixtures: how a stage's rows are shared among sources, as whole numbers of rows in a period."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import reduce

from curate.budget import States
from curate.earlier import Earlier
from schemas.adaptive import AdaptiveSettings, decide
from schemas.errors import PlanError
from schemas.interleave import MAX_PERIOD, hamilton, whole_quotas
from schemas.segments import Decision
from schemas.stages import Stage

EXPONENT = 0.5
"""Exponent of the temperature mixture where the recipe has none."""


def left_by_source(states: States) -> dict[str, int]:
    """Uses that can still be given out, by source."""
    left: dict[str, int] = {}
    for state in states.values():
        left[state.lot.source] = left.get(state.lot.source, 0) + state.left
    return left


def follows_budgets(stage: Stage) -> bool:
    """Whether the shares bend to what is left, so that a source that runs out does not end the stage."""
    return stage.mixture in ("proportional", "unimax")


def source_quotas(stage: Stage, states: States, rows: int | None, adapted: Mapping[str, float] | None = None) -> dict[str, int]:
    """Rows of each source in a period.

    Args:
        stage: the recipe's stage.
        states: what is left of each lot.
        rows: rows to share out; None for all that is left.
        adapted: weights of an adaptive mixture.

    Raises:
        PlanError: a source has nothing left, or a weight too small for any period.
    """
    if adapted is not None:
        names = [name for name, weight in adapted.items() if weight > 0]
        return dict(zip(names, whole_quotas([adapted[name] for name in names], tolerance=0.001), strict=True))
    if isinstance(stage.mixture, dict):
        _refuse_empty(stage, list(stage.mixture), left_by_source(states))
        # A weight written as a decimal is taken as exactly that.
        weights = [Fraction(repr(weight)) for weight in stage.mixture.values()]
        return dict(zip(stage.mixture, whole(weights, rows or MAX_PERIOD, f"stage {stage.name!r}"), strict=True))
    left = left_by_source(states)
    if stage.sources is not None and not follows_budgets(stage):
        _refuse_empty(stage, stage.sources, left)
    left = {name: uses for name, uses in left.items() if uses and (stage.sources is None or name in stage.sources)}
    if not left:
        fix = "drop the stage, or raise max_epochs of a source"
        raise PlanError("no source has anything left", where=f"stage {stage.name!r}", fix=fix)
    if stage.mixture == "temperature":
        exponent = EXPONENT if stage.exponent is None else stage.exponent
        size = {name: sum(state.lot.rows for state in states.values() if state.lot.source == name) for name in left}
        shares = {name: Fraction(size[name] ** exponent) for name in left}
    else:
        shares = {
            name: Fraction(uses) for name, uses in (unimax(rows, left) if stage.mixture == "unimax" and rows else left).items() if uses
        }
    return dict(zip(shares, whole(list(shares.values()), rows or sum(left.values())), strict=True))


def starting_shares(stage: Stage, left: Mapping[str, int]) -> dict[str, float]:
    """Shares that an adaptive stage has before any decision: the recipe's, else proportional to what is left."""
    assert stage.adaptive is not None
    names = list(stage.adaptive.start or [name for name in left if left[name] and (stage.sources is None or name in stage.sources)])
    _refuse_empty(stage, names or list(stage.sources or left), left)
    weights = stage.adaptive.start or {name: float(left[name]) for name in names}
    return {name: weights[name] / sum(weights.values()) for name in names}


def starting_weights(stage: Stage, left: Mapping[str, int], rows: int, earlier: Earlier) -> tuple[Decision, ...]:
    """Weights with which an adaptive stage begins, as decisions by source.

    After an adaptive stage over the same sources they are that one's, moved once more by the losses at its end.

    Args:
        stage: the stage.
        left: rows left by source.
        rows: rows of the stage.
        earlier: what came before it.
    """
    start = starting_shares(stage, left)
    follows = {d.source for d in earlier.decisions} == set(start)
    before = {name: earlier.shares[name] for name in start} if follows else start
    settings = adaptive_settings(stage, start, earlier.reference)
    losses = {name: earlier.heldout[name] for name in start if name in earlier.heldout} if follows else {}
    decided = {d.source: d.loss for d in earlier.decisions if d.loss is not None}
    limits = {name: min(1.0, left[name] / rows) for name in start}
    return decide(settings, before, losses, [decided] if decided else [], limits)


def adaptive_settings(stage: Stage, start: Mapping[str, float], reference: Mapping[str, float]) -> AdaptiveSettings:
    """A stage's adaptive settings as the trainer reads them."""
    made = stage.adaptive
    assert made is not None
    losses = made.reference if isinstance(made.reference, dict) else reference
    known = {name: loss for name, loss in losses.items() if name in start}
    return AdaptiveSettings(made.by, made.every, made.rate, made.least, dict(start), known if made.by == "excess" else {})


def _refuse_empty(stage: Stage, names: Sequence[str], left: Mapping[str, int]) -> None:
    for name in names:
        if not left.get(name):
            why = "its budget is used up by earlier stages" if name in left else "no document of it was kept"
            raise PlanError(
                f"source {name!r} has no rows left: {why}",
                where=f"stage {stage.name!r}",
                fix=f"take {name!r} out of the mixture, raise its max_epochs, or loosen its rules",
            )


def unimax(rows: int, left: Mapping[str, int]) -> dict[str, int]:
    """The same number of rows of each source, as far as its budget goes (UniMax: Chung et al. 2023, algorithm 1)."""
    shares: dict[str, int] = {}
    for number, name in enumerate(sorted(left, key=lambda name: (left[name], name))):
        shares[name] = min(left[name], (rows - sum(shares.values())) // (len(left) - number))
    return {name: shares[name] for name in left}


def whole(weights: Sequence[Fraction], rows: int, strict: str = "") -> list[int]:
    """Whole numbers in the ratio of the weights.

    Exactly, where a period that is short enough has it; else to the row, where ``rows`` fit into a period; else within 0.1 %. A weight
    too small for the longest period gets one row of it, and so is used up sooner.

    Args:
        weights: positive weights.
        rows: rows to deal out.
        strict: place in the recipe; when given, a weight that is too small is an error there.
    """
    scale = reduce(math.lcm, (weight.denominator for weight in weights))
    numbers = [int(weight * scale) for weight in weights]
    divisor = reduce(math.gcd, numbers)
    if sum(numbers) // divisor <= MAX_PERIOD:
        return [value // divisor for value in numbers]
    shares = [float(weight) for weight in weights]
    if rows <= MAX_PERIOD and all(quotas := hamilton(shares, rows)):
        return quotas
    try:
        return whole_quotas(shares, tolerance=0.001)
    except ValueError as error:
        if strict:
            raise PlanError(str(error), where=strict, fix="leave the smallest source out, or raise its weight") from error
        return [max(1, quota) for quota in hamilton(shares, MAX_PERIOD - len(shares))]
