"""What a plan comes to: documents, tokens, epochs and their worth, steps, and an estimate of the loss; data for whoever prints it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from curate.budget import LotState
from curate.model_size import CHINCHILLA, parameters
from curate.plan import StagePlan
from schemas.segments import used
from schemas.settings import ModelSettings

REPEAT_DECAY = 15.387756
"""R*_D of Muennighoff et al. 2023, "Scaling data-constrained language models": how fast repeated tokens lose worth."""
WIDTH_DECAY = 5.309743
"""R*_N of the same: how fast parameters beyond what the unique tokens support lose worth."""
EXPONENT = 0.3526596
LOSS_FLOOR, PARAMETER_SCALE, TOKEN_SCALE = math.exp(0.6254804), math.exp(6.255414), math.exp(7.3049974)
"""E, A and B of the same fit (on C4): 1.87, 521 and 1488."""


@dataclass(frozen=True)
class ForecastLine:
    """A source's part of a stage.

    Attributes:
        stage: stage name.
        source: source name.
        rows: rows given out.
        tokens: tokens in them, padding not counted, estimated from the lots' means.
        documents: different documents among them, estimated in the same way.
        share: share of the stage's positions (rows times their length).
        epochs: positions of the source given out up to the end of this stage, over those it has.
        worth: new tokens that would be worth as much as ``tokens``, after the repetitions of earlier stages.
        returned: rows that an earlier stage had returned.
    """

    stage: str
    source: str
    rows: int
    tokens: int
    documents: int
    share: float
    epochs: float
    worth: float
    returned: int


@dataclass(frozen=True)
class Forecast:
    """A whole plan.

    Attributes:
        lines: by stage, then source.
        steps: optimizer steps by stage.
        parameters: parameters of the model.
        tokens: tokens trained on, padding not counted.
        worth: new tokens that would be worth as much.
        unique: different tokens among them.
        chinchilla: tokens over 20 tokens per parameter; 1 is compute-optimal.
        loss: ESTIMATE of the final loss in nats per token by the data-constrained law fitted on C4 with models of 7 M to 9 B
            parameters; corpora, tokenizers and sizes unlike those shift it. Never above that of guessing evenly.
    """

    lines: tuple[ForecastLine, ...]
    steps: Mapping[str, int]
    parameters: int
    tokens: int
    worth: float
    unique: int
    chinchilla: float
    loss: float


def forecast(plans: Sequence[StagePlan], model: ModelSettings, vocabulary: int, length: int) -> Forecast:
    """Sum up a plan of consecutive stages, of rows of up to ``length`` tokens."""
    lines = [line for plan in plans for line in _lines(plan)]
    last = plans[-1].after if plans else {}
    unique = sum(min(_used(state), state.lot.rows) * _tokens_per_row(state) for state in last.values())
    tokens, worth = sum(line.tokens for line in lines), sum(line.worth for line in lines)
    size = parameters(model, vocabulary, length)
    return Forecast(
        tuple(lines),
        {plan.stage: plan.steps for plan in plans},
        size,
        tokens,
        worth,
        round(unique),
        tokens / (CHINCHILLA * size),
        min(expected_loss(size, worth, unique), math.log(vocabulary)),
    )


def _lines(plan: StagePlan) -> list[ForecastLine]:
    lines = []
    given = [a for segment in plan.segments for a in used(segment, segment.rows)]
    every = max(1, sum(a.rows * plan.before[a.lot].lot.row_length for a in given))
    for source in dict.fromkeys(share.source for segment in plan.segments for share in segment.sources):
        mine = {lot: state for lot, state in plan.before.items() if state.lot.source == source}
        taken = [a for a in given if a.lot in mine]
        rows = sum(a.rows for a in taken)
        positions = sum(a.rows * mine[a.lot].lot.row_length for a in taken)
        fresh = {lot: min(_used(plan.after[lot]) - _used(state), state.lot.rows) for lot, state in mine.items()}
        lines.append(
            ForecastLine(
                plan.stage,
                source,
                rows,
                round(sum(a.rows * _tokens_per_row(mine[a.lot]) for a in taken)),
                round(sum(fresh[lot] * state.lot.documents / state.lot.rows for lot, state in mine.items())),
                positions / every,
                sum(_used(plan.after[lot]) * state.lot.row_length for lot, state in mine.items())
                / sum(state.lot.rows * state.lot.row_length for state in mine.values()),
                sum(_worth(plan.after[lot]) - _worth(state) for lot, state in mine.items()),
                sum(a.rows for a in taken if mine[a.lot].was_given(a.start)),
            )
        )
    return lines


def _used(state: LotState) -> int:
    return state.lot.uses - state.left


def _tokens_per_row(state: LotState) -> float:
    return state.lot.tokens / state.lot.rows


def _worth(state: LotState) -> float:
    """Worth in new tokens of what was used of a lot."""
    unique = min(_used(state), state.lot.rows)
    return effective_tokens(unique * _tokens_per_row(state), _used(state) / unique) if unique else 0.0


def effective_tokens(unique: float, epochs: float) -> float:
    """D_eff = U (1 + R* (1 - exp(-R / R*))), R = epochs - 1 (Muennighoff et al. 2023, equation 5)."""
    return unique * (1 + REPEAT_DECAY * (1 - math.exp(-(max(epochs, 1) - 1) / REPEAT_DECAY)))


def expected_loss(parameters: int, worth: float, unique: float) -> float:
    """L = E + A / N'^a + B / D'^a (Muennighoff et al. 2023, equation 4), N' from the parameters that the unique tokens support.

    Args:
        parameters: N.
        worth: D', tokens after repetition.
        unique: different tokens.
    """
    if not unique:
        return math.inf
    supported = min(parameters, unique * (PARAMETER_SCALE / TOKEN_SCALE) ** (1 / EXPONENT))
    excess = parameters / supported - 1
    useful = supported * (1 + WIDTH_DECAY * (1 - math.exp(-excess / WIDTH_DECAY)))
    return float(LOSS_FLOOR + PARAMETER_SCALE / useful**EXPONENT + TOKEN_SCALE / worth**EXPONENT)
