"""One optimizer step: loss over valid tokens, accumulated over micro-batches and ranks, clipped, and skipped when it is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from schemas.errors import RecipeError
from schemas.settings import TrainSettings
from train.clipping import clip_gradients
from train.curvature import update_curvature
from train.guard import Guard
from train.model import Decoder
from train.optim.kfac import KFAC
from train.optim.lbfgs import LBFGS
from train.optim.sophia import Sophia
from train.parallel import Ranks
from train.passes import Passes
from train.precision import LossScale
from train.stage import MicroBatch


@dataclass(frozen=True)
class StepResult:
    """What a step did, summed over ranks, except ``pieces``.

    Attributes:
        nats: cross-entropy summed over valid tokens, by source.
        tokens: valid tokens, by source.
        grad_norm: global norm of the gradient before clipping.
        skipped: why neither weights nor optimizer changed; empty where they did.
        pieces: this rank's loss of each document piece, by micro-batch.
    """

    nats: NDArray[np.float64]
    tokens: NDArray[np.float64]
    grad_norm: float
    skipped: str
    pieces: list[NDArray[np.float64]]

    @property
    def loss(self) -> float:
        """Nats per valid token."""
        return float(self.nats.sum() / max(1.0, self.tokens.sum()))


class StepRules:
    """What holds for every step of a stage, and what it remembers between them.

    Attributes:
        precision: see ``train.precision``.
        clip: largest global gradient norm; 0 is off.
        scale: FP16's loss scale.
        guard: judges which steps are skipped.
    """

    def __init__(self, training: TrainSettings) -> None:
        self.precision, self.clip = training.precision, training.clip
        self.scale, self.guard = LossScale(training.precision), Guard(training.spikes)

    def state(self) -> dict[str, Any]:
        """What it remembers, for a checkpoint."""
        return {"scale": self.scale.state(), "guard": self.guard.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self.scale.load(state["scale"])
        self.guard.load(state["guard"])


def train_step(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[MicroBatch],
    rules: StepRules,
    *,
    ranks: Ranks,
    sources: int,
    seed: tuple[int, int],
) -> StepResult:
    """Do one step.

    Args:
        model: the model, in training mode.
        optimizer: its learning rates already set.
        batches: this rank's micro-batches.
        rules: precision, clipping, and what is skipped.
        ranks: all ranks.
        sources: number of sources.
        seed: the stage's seed and the step.
    """
    count = float(sum(batch.batch.valid_tokens for batch in batches))
    if ranks.world > 1:
        count = float(ranks.sum(torch.tensor(count, dtype=torch.float64, device=ranks.device)))
    passes = Passes(model, batches, ranks, rules.precision, rules.scale.value, count, seed)
    waiting = passes.gradients()
    if isinstance(optimizer, Sophia | KFAC) and optimizer.curvature_due() and count:
        update_curvature(optimizer, passes)
    pieces = [sums.cpu().numpy() for sums in waiting]
    nats, tokens = by_source(batches, pieces, sources, ranks)
    norm = clip_gradients(list(model.parameters()), rules.clip, ranks, model.copies)
    rules.scale.update(math.isfinite(norm))
    skipped = rules.guard.judge(float(nats.sum() / count), norm) if count else "no valid tokens"
    if not skipped and isinstance(optimizer, LBFGS):
        _full_batch_step(optimizer, passes)
    elif not skipped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(nats, tokens, norm, skipped, pieces)


def _full_batch_step(optimizer: LBFGS, passes: Passes) -> None:
    try:
        optimizer.step(passes.mean_loss)
    except ValueError as error:
        raise RecipeError(
            str(error),
            where="training.optimizer",
            fix="set batch_rows to all rows of the stage (and dropout to 0), or the option allow_stochastic",
        ) from error


def by_source(
    batches: Sequence[MicroBatch], pieces: Sequence[NDArray[np.float64]], sources: int, ranks: Ranks
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nats and valid tokens by source, over all ranks."""
    totals = np.zeros((2, sources))
    for micro, sums in zip(batches, pieces, strict=True):
        source = micro.source[micro.batch.row_of_piece]
        totals[0] += np.bincount(source, weights=sums, minlength=sources)
        totals[1] += np.bincount(source, weights=micro.batch.predicted, minlength=sources)
    if ranks.world > 1:
        totals = ranks.sum(torch.from_numpy(totals).to(ranks.device)).cpu().numpy()
    return totals[0], totals[1]
