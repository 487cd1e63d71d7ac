"""One optimizer step: loss over valid tokens, accumulated over micro-batches and ranks, clipped, and skipped when it is not finite."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel

from schemas.errors import RecipeError
from schemas.settings import TrainSettings
from train.data import Batch
from train.guard import Guard
from train.kernels import clip_gradients, grad_norm
from train.model import Decoder
from train.optim.kfac import KFAC
from train.optim.lbfgs import LBFGS
from train.optim.sophia import Sophia
from train.parallel import Ranks
from train.precision import LossScale, precision_context
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


def to_device(batch: Batch, device: torch.device) -> list[torch.Tensor]:
    """Tokens, targets, documents and positions of a batch, as the model takes them."""
    arrays = (batch.tokens, batch.targets(), batch.documents(), batch.positions())
    return [torch.from_numpy(array).to(device, non_blocking=True) for array in arrays]


def forward(model: Decoder, batch: Batch, device: torch.device) -> torch.Tensor:
    """(B, L) losses of a batch."""
    losses: torch.Tensor = model(*to_device(batch, device))
    return losses


def piece_losses(losses: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(P,) FP64 sum of (B, L) losses over each document piece; a loss that is not finite stays within its piece."""
    lengths, real = batch.runs()
    sums: torch.Tensor = torch.segment_reduce(
        losses.detach().double().flatten(), "sum", lengths=torch.from_numpy(lengths).to(losses.device), unsafe=True
    )
    return sums[torch.from_numpy(real).to(losses.device)]


def seed_for(seed: int, step: int, micro_batch: int, rank: int) -> int:
    """Seed of everything random in a forward pass (dropout), so that no generator's state need be saved."""
    digest = hashlib.blake2b(f"{seed}\x00{step}\x00{micro_batch}\x00{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


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
    count = ranks.sum(torch.tensor(float(sum(b.batch.valid_tokens for b in batches)), dtype=torch.float64, device=ranks.device)).item()
    waiting = _gradients(model, optimizer, batches, rules, ranks, count, seed)
    if isinstance(optimizer, Sophia | KFAC) and optimizer.curvature_due() and count:
        _update_curvature(model, optimizer, batches, rules, ranks, count, seed)
    _sum_gradients(model.parameters(), ranks, rules.scale.value)
    pieces = [sums.cpu().numpy() for sums in waiting]
    nats, tokens = by_source(batches, pieces, sources, ranks)
    norm = float(clip_gradients(model.parameters(), rules.clip))
    rules.scale.update(math.isfinite(norm))
    skipped = rules.guard.judge(float(nats.sum() / count), norm) if count else "no valid tokens"
    if not skipped and isinstance(optimizer, LBFGS):
        _full_batch_step(optimizer, lambda: _loss_and_gradients(model, optimizer, batches, rules, ranks, count, seed))
    elif not skipped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(nats, tokens, norm, skipped, pieces)


def _sum_gradients(parameters: Iterable[torch.nn.Parameter], ranks: Ranks, scale: float) -> None:
    """Sum gradients over ranks and take the loss scale out of them."""
    parameters = list(parameters)
    ranks.sum_gradients(parameters)
    if scale != 1:
        torch._foreach_div_([p.grad for p in parameters if p.grad is not None], scale)


def _gradients(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[MicroBatch],
    rules: StepRules,
    ranks: Ranks,
    count: float,
    seed: tuple[int, int],
) -> list[torch.Tensor]:
    """Set this rank's gradients of the mean loss over ``count`` tokens, times the loss scale; returns the pieces' losses by micro-batch."""
    optimizer.zero_grad(set_to_none=True)
    pieces = []
    for number, micro in enumerate(batches):
        torch.manual_seed(seed_for(*seed, number, ranks.rank))
        with precision_context(rules.precision, ranks.device):
            losses = forward(model, micro.batch, ranks.device)
        torch.autograd.backward(losses.sum() * (rules.scale.value / max(1.0, count)))
        pieces.append(piece_losses(losses, micro.batch))
    return pieces


def _loss_and_gradients(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[MicroBatch],
    rules: StepRules,
    ranks: Ranks,
    count: float,
    seed: tuple[int, int],
) -> torch.Tensor:
    """Set the gradients of the whole step over all ranks; returns its mean loss, FP64."""
    pieces = _gradients(model, optimizer, batches, rules, ranks, count, seed)
    _sum_gradients(model.parameters(), ranks, rules.scale.value)
    total = torch.stack([sums.sum() for sums in pieces]).sum() if pieces else torch.zeros((), dtype=torch.float64, device=ranks.device)
    return ranks.sum(total) / count


def _full_batch_step(optimizer: LBFGS, closure: Callable[[], torch.Tensor]) -> None:
    try:
        optimizer.step(closure)
    except ValueError as error:
        raise RecipeError(
            str(error),
            where="training.optimizer",
            fix="set batch_rows to all rows of the stage (and dropout to 0), or the option allow_stochastic",
        ) from error


def _update_curvature(
    model: Decoder,
    optimizer: Sophia | KFAC,
    batches: Sequence[MicroBatch],
    rules: StepRules,
    ranks: Ranks,
    count: float,
    seed: tuple[int, int],
) -> None:
    """Let the optimizer estimate curvature from passes of its own; leaves the step's gradients in place.

    An estimate that is not finite is left out, on every rank alike.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    own = [p.grad for p in parameters]
    if isinstance(optimizer, Sophia) and optimizer.param_groups[0]["estimator"] == "hutchinson":
        _second_derivatives(model, optimizer, batches, rules, ranks, count, seed)
    else:
        _sampled_labels(model, optimizer, batches, rules, ranks, count, seed)
    for parameter, gradient in zip(parameters, own, strict=True):
        parameter.grad = gradient


def _sampled_labels(
    model: Decoder,
    optimizer: Sophia | KFAC,
    batches: Sequence[MicroBatch],
    rules: StepRules,
    ranks: Ranks,
    count: float,
    seed: tuple[int, int],
) -> None:
    """Gradients of the mean loss for labels drawn from the model: Sophia's Gauss-Newton-Bartlett estimate, K-FAC's factors."""
    optimizer.zero_grad(set_to_none=True)
    with optimizer.observe(model) if isinstance(optimizer, KFAC) else nullcontext():
        for number, micro in enumerate(batches):
            torch.manual_seed(seed_for(*seed, number, ranks.rank))
            with precision_context(rules.precision, ranks.device):
                losses = model.sampled_loss(*to_device(micro.batch, ranks.device))
            torch.autograd.backward(losses * (rules.scale.value / count))
    _sum_gradients(model.parameters(), ranks, rules.scale.value)
    finite = math.isfinite(float(grad_norm([p.grad for p in model.parameters() if p.grad is not None])))
    if isinstance(optimizer, KFAC):
        optimizer.update_curvature(labels=count / rules.scale.value, keep=finite)
    elif finite:
        optimizer.update_curvature(tokens=int(count))


def _second_derivatives(
    model: Decoder, optimizer: Sophia, batches: Sequence[MicroBatch], rules: StepRules, ranks: Ranks, count: float, seed: tuple[int, int]
) -> None:
    """Hutchinson's estimate of the Hessian's diagonal, summed over micro-batches and ranks; attention has a second derivative in MATH."""
    total = [torch.zeros_like(p) for group in optimizer.param_groups for p in group["params"]]
    for number, micro in enumerate(batches):
        torch.manual_seed(seed_for(*seed, number, ranks.rank))
        with precision_context(rules.precision, ranks.device), sdpa_kernel(SDPBackend.MATH):
            products = optimizer.products(forward(model, micro.batch, ranks.device).sum() / count)
        torch._foreach_add_(total, products)
    if ranks.world > 1:
        flat = ranks.sum(torch.cat([part.reshape(-1) for part in total]))
        total = [part.view_as(own) for part, own in zip(torch.split(flat, [t.numel() for t in total]), total, strict=True)]
    if math.isfinite(float(grad_norm(total))):
        optimizer.update_curvature(products=total)


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
