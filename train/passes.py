"""Forward and backward passes over a rank's micro-batches of one step: losses of pieces, and gradients summed over all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch

from train.data import Batch
from train.model import Decoder
from train.parallel import Ranks
from train.precision import precision_context
from train.stage import MicroBatch


def to_device(batch: Batch, device: torch.device) -> list[torch.Tensor]:
    """Tokens, targets, documents and positions of a batch, as the model takes them."""
    arrays = (batch.tokens, batch.targets(), batch.documents(), batch.positions())
    return [torch.from_numpy(array).to(device, non_blocking=True) for array in arrays]


def forward(model: Decoder, batch: Batch, device: torch.device) -> torch.Tensor:
    """(B, L) losses of a batch; of a model that is spread over a pipeline, without gradients."""
    losses: torch.Tensor = (model if model.pipeline is None else model.pipeline.losses)(*to_device(batch, device))
    return losses


def piece_losses(losses: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(P,) FP64 sum of (B, L) losses over each document piece; a loss that is not finite stays within its piece."""
    lengths, real = batch.runs()
    # Places, not a mask, whose number of true entries the host would have to wait for.
    runs, at = (torch.from_numpy(numbers).to(losses.device, non_blocking=True) for numbers in (lengths, np.flatnonzero(real)))
    sums: torch.Tensor = torch.segment_reduce(losses.detach().double().flatten(), "sum", lengths=runs, unsafe=True)
    return sums[at]


def seed_for(seed: int, step: int, micro_batch: int, rank: int) -> int:
    """Seed of everything random in a forward pass (dropout), so that no generator's state need be saved."""
    digest = hashlib.blake2b(f"{seed}\x00{step}\x00{micro_batch}\x00{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class Passes:
    """The passes of one step.

    Attributes:
        model: the model, in training mode.
        batches: this rank's micro-batches.
        ranks: all ranks.
        precision: see ``train.precision``.
        scale: the loss scale; gradients are free of it once they are summed.
        count: valid tokens of the step, over all ranks.
        seed: the stage's seed and the step.
    """

    model: Decoder
    batches: Sequence[MicroBatch]
    ranks: Ranks
    precision: str
    scale: float
    count: float
    seed: tuple[int, int]

    def gradients(self) -> list[torch.Tensor]:
        """Set the gradients of the mean loss over ``count`` tokens; returns the losses of this rank's pieces by micro-batch."""
        self.model.zero_grad(set_to_none=True)
        pieces = self._piped() if self.model.pipeline is not None else self._by_turns()
        self.sum_gradients()
        return pieces

    def _by_turns(self) -> list[torch.Tensor]:
        pieces = []
        for batch in self.inputs():
            with self.context():
                losses = forward(self.model, batch, self.ranks.device)
            self.backward(losses.sum())
            pieces.append(piece_losses(losses, batch))
        return pieces

    def _piped(self) -> list[torch.Tensor]:
        assert self.model.pipeline is not None
        inputs = [to_device(micro.batch, self.ranks.device) for micro in self.batches]
        seeds = [seed_for(*self.seed, number, self.ranks.noise_rank) for number in range(len(inputs))]
        losses = self.model.pipeline.train(inputs, seeds, self.scale / max(1.0, self.count))
        return [piece_losses(part, micro.batch) for part, micro in zip(losses, self.batches, strict=True)]

    def mean_loss(self) -> torch.Tensor:
        """Set the gradients and return the mean loss they are of, FP64."""
        pieces = self.gradients()
        total = torch.stack([sums.sum() for sums in pieces]).sum() if pieces else torch.zeros((), dtype=torch.float64)
        return self.ranks.sum(total.to(self.ranks.device)) / self.count

    def inputs(self) -> Iterator[Batch]:
        """Each micro-batch's rows, with everything random seeded for it."""
        for number, micro in enumerate(self.batches):
            torch.manual_seed(seed_for(*self.seed, number, self.ranks.noise_rank))
            yield micro.batch

    def context(self) -> AbstractContextManager[None]:
        """What a forward pass runs in."""
        return precision_context(self.precision, self.ranks.device)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a summed loss over the step's count, times the loss scale."""
        torch.autograd.backward(loss * (self.scale / max(1.0, self.count)))

    def sum_gradients(self) -> None:
        """Sum gradients over ranks and take the loss scale out of them."""
        parameters = list(self.model.parameters())
        self.ranks.sum_gradients(parameters)
        if self.model.pipeline is not None:
            self.model.pipeline.sum_tied()
        if self.scale != 1:
            torch._foreach_div_([p.grad for p in parameters if p.grad is not None], self.scale)
