"""Slices: where a stage changes its row length, its batch, or how much it blends with the stage before; from the recipe alone."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from schemas.errors import PlanError
from schemas.stages import Stage

BLEND_STEPS = 8
"""Steps in which a blend goes from the mixture of the stage before to the stage's own."""


@dataclass(frozen=True)
class Part:
    """A stretch of a stage with rows of one length.

    Attributes:
        row_length: tokens of a row.
        batch: rows of a full optimizer step; all parts have the same tokens in a step.
        rows: its rows; None for all that is left.
        begins: share of the stage that comes before it.
        width: its share of the stage.
    """

    row_length: int
    batch: int
    rows: int | None
    begins: Fraction = Fraction(0)
    width: Fraction = Fraction(1)


@dataclass(frozen=True)
class Slice:
    """Rows ``start`` to ``stop`` of a part: rows of a step, weight of the stage's own mixture (1 but for a blend), and what began it."""

    start: int
    stop: int
    batch: int
    own: Fraction
    why: str


def stage_parts(stage: Stage, row_length: int, batch: int, rows: int | None) -> list[Part]:
    """Parts of a stage of ``rows`` rows of the full length: its length warm-up, the shortest rows first, then the full length.

    Raises:
        PlanError: there are too few steps for so many lengths.
    """
    if not stage.length_warmup or rows is None:
        return [Part(row_length, batch, rows)]
    steps, done = rows // batch, 0
    parts = []
    for length in sorted(stage.length_warmup):
        mine = max(1, round(stage.length_warmup[length] * steps))
        wide = batch * row_length // length
        parts.append(Part(length, wide, mine * wide, Fraction(done, steps), Fraction(mine, steps)))
        done += mine
    if done >= steps:
        raise PlanError(
            f"{steps} steps leave none for rows of {row_length} tokens after {done} of warm-up",
            where=f"stage {stage.name!r}",
            fix="ask for more tokens, or lower the shares of length_warmup",
        )
    return [*parts, Part(row_length, batch, (steps - done) * batch, Fraction(done, steps), Fraction(steps - done, steps))]


def part_slices(stage: Stage, part: Part, rows: int, full_batch: int) -> list[Slice]:
    """Slices of a part of ``rows`` rows.

    Args:
        stage: the stage.
        part: the part.
        rows: its rows.
        full_batch: rows of a step at the full row length.
    """
    ramp = _ramp(stage, full_batch)
    over = Fraction(repr(stage.batch_ramp.share)) if stage.batch_ramp else Fraction(0)
    batch_ends = [(over * (n + 1) / len(ramp), size * (part.batch // full_batch)) for n, size in enumerate(ramp)]
    blend = Fraction(repr(stage.blend)) if stage.blend else Fraction(0)
    blend_ends = [(blend * (n + 1) / BLEND_STEPS, Fraction(2 * n + 1, 2 * BLEND_STEPS)) for n in range(BLEND_STEPS if blend else 0)]
    slices: list[Slice] = []
    done = 0
    while done < rows:
        at = part.begins + part.width * done / rows
        batch_end, batch = next(((end, size) for end, size in batch_ends if end > at), (Fraction(1), part.batch))
        blend_end, own = next(((end, weight) for end, weight in blend_ends if end > at), (Fraction(1), Fraction(1)))
        due = (min(batch_end, blend_end) - part.begins) / part.width * rows
        stop = min(rows, done - -(due - done) // batch * batch)
        if stop == rows and stage.tokens != "rest" and rows - done >= batch:
            stop = done + (rows - done) // batch * batch
        slices.append(Slice(done, stop, batch, own, _why(part, slices, own, batch)))
        done = stop if stop + batch <= rows or stage.tokens == "rest" else rows
    return slices


def _why(part: Part, before: list[Slice], own: Fraction, batch: int) -> str:
    if not before:
        return "length" if part.begins else "planned"
    return "blend" if before[-1].own != own else "ramp" if before[-1].batch != batch else "planned"


def _ramp(stage: Stage, batch: int) -> list[int]:
    """Batches of the ramp, each twice the one before, all below the full one.

    Raises:
        PlanError: it begins at the full batch or above.
    """
    if stage.batch_ramp is None:
        return []
    sizes = [stage.batch_ramp.start]
    while sizes[-1] * 2 < batch:
        sizes.append(sizes[-1] * 2)
    if sizes[0] >= batch:
        raise PlanError(
            f"it begins with {sizes[0]} rows, the full batch has {batch}",
            where=f"stage {stage.name!r}: batch_ramp.start",
            fix="begin with fewer rows, or leave batch_ramp out",
        )
    return sizes
