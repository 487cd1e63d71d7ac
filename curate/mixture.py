"""Mixtures: how a stage's rows are shared among sources, as whole numbers of rows in a period."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import reduce

from curate.budget import States
from schemas.errors import PlanError
from schemas.interleave import MAX_PERIOD, hamilton, whole_quotas
from schemas.recipe import Stage

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


def source_quotas(stage: Stage, states: States, rows: int | None) -> dict[str, int]:
    """Rows of each source in a period.

    Args:
        stage: the recipe's stage.
        states: what is left of each lot.
        rows: rows to share out; None for all that is left.

    Raises:
        PlanError: a source has nothing left, or a weight too small for any period.
    """
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
