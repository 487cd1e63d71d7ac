"""Pipeline parallelism (Huang et al. 2019; Narayanan et al. 2019): blocks spread over a group of ranks, micro-batches passed through them.

The first rank has the embedding, the last the final norm, the output layer and the losses. A tied embedding is on both: they start
alike, their gradients are summed, and so they stay alike. What is saved has the names of the whole model, whatever the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor

from train.model import Decoder

Inputs = Sequence[torch.Tensor]
"""Tokens, targets, documents and positions, (B, L) each."""


def cut_model(model: Decoder, rank: int, ranks: int) -> None:
    """Leave a rank its consecutive blocks, as many as any other or one more, and what of the model's ends goes with them."""
    names = {name for name, _ in model.named_parameters()}
    own = set(np.array_split(np.arange(len(model.blocks)), ranks)[rank].tolist())
    for number in range(len(model.blocks)):
        if number not in own:
            model.blocks.register_module(str(number), None)
    first, last = rank == 0, rank == ranks - 1
    gone = [] if first else ["position_embedding"] + ["embedding"] * (not (last and model.settings.tied))
    for name in [*gone, *([] if last else ["norm", "head"])]:
        setattr(model, name, None)
    model.absent = frozenset(names - {name for name, _ in model.named_parameters()})


class Pipeline:
    """One rank's place in a pipeline.

    Args:
        model: this rank's part, cut and otherwise as it trains.
        mesh: all ranks as (pipeline, data, tensor).
        schedule: 1f1b or gpipe; a step of fewer micro-batches than ranks is always gpipe.
        context: what a forward pass runs in.
    """

    def __init__(self, model: Decoder, mesh: DeviceMesh, schedule: str, context: Callable[[], Any]) -> None:
        self.model, self.schedule = model, schedule
        self.group = mesh.get_group("pipeline")
        self.rank, self.ranks = mesh.get_local_rank("pipeline"), mesh["pipeline"].size()
        self.device = torch.device(mesh.device_type, torch.cuda.current_device()) if mesh.device_type == "cuda" else torch.device("cpu")
        self.module = _Part(model, context, self.rank)
        self._made: dict[tuple[int, ...], _Run] = {}
        self._ends: dist.ProcessGroup | None = None
        if model.settings.tied:
            for column in mesh.mesh.flatten(1).T.tolist():  # every rank makes every group
                made = dist.new_group([column[0], column[-1]])
                self._ends = made if dist.get_rank() in column else self._ends

    def train(self, inputs: Sequence[Inputs], seeds: Sequence[int], factor: float) -> list[torch.Tensor]:
        """Add the gradients of ``factor`` times the summed losses of all micro-batches; returns their (B, L) losses, on every rank.

        Args:
            inputs: of each micro-batch, of one shape.
            seeds: of everything random in each.
            factor: what losses are multiplied by before the backward pass.
        """
        if not inputs:
            return []
        tokens, targets, documents, positions = (torch.cat(part) for part in zip(*inputs, strict=True))
        run = self._run(len(inputs), *inputs[0][0].shape)
        run.factor = factor
        given = {"targets": targets, "documents": documents, "positions": positions, "seeds": torch.tensor(seeds)}
        found = run.schedule.step(*([tokens] if self.rank == 0 else []), target=targets if self._last else None, **given)
        return list(self._from_last(found.detach() if self._last else torch.empty(targets.shape, device=self.device)).chunk(len(inputs)))

    def losses(self, tokens: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        """(B, L) losses of a batch, on every rank and without gradients."""
        x = tokens
        if self.rank:
            x = torch.empty(self._stream(*tokens.shape), device=self.device)
            dist.recv(x, dist.get_global_rank(self.group, self.rank - 1), group=self.group)
        y: torch.Tensor = self.model(x, *rest)
        if not self._last:
            dist.send(y.contiguous(), dist.get_global_rank(self.group, self.rank + 1), group=self.group)
            y = torch.empty(tokens.shape, device=self.device)
        return self._from_last(y)

    def sum_tied(self) -> None:
        """Sum the gradients of a tied embedding over the two ranks that have it."""
        if self._ends is not None and self.model.embedding is not None:
            grad = self.model.embedding.weight.grad
            if grad is not None:
                dist.all_reduce(grad.to_local() if isinstance(grad, DTensor) else grad, group=self._ends)

    @property
    def _last(self) -> bool:
        return self.rank == self.ranks - 1

    def _from_last(self, losses: torch.Tensor) -> torch.Tensor:
        losses = losses.contiguous()
        dist.broadcast(losses, dist.get_global_rank(self.group, self.ranks - 1), group=self.group)
        return losses

    def _stream(self, rows: int, length: int) -> tuple[int, int, int]:
        split = self.model.split
        return rows, length // split.mesh.size() if split is not None and split.sequence else length, self.model.settings.width

    def _run(self, count: int, rows: int, length: int) -> _Run:
        """The schedule of so many micro-batches of a shape, which is made once."""
        if (count, rows, length) not in self._made:
            tokens = torch.zeros(rows, length, dtype=torch.int64, device="meta")
            stream = torch.zeros(self._stream(rows, length), device="meta", requires_grad=True)
            losses = torch.zeros(rows, length, device="meta", requires_grad=True)
            stage = PipelineStage(
                self.module,
                self.rank,
                self.ranks,
                self.device,
                input_args=(stream if self.rank else tokens,),
                output_args=(losses if self._last else stream,),
                group=self.group,
            )
            self._made[count, rows, length] = _Run(stage, count, alternate=self.schedule == "1f1b" and count >= self.ranks)
        return self._made[count, rows, length]


@dataclass
class _Run:
    """A schedule, and the factor of the step that it runs."""

    factor: float

    def __init__(self, stage: PipelineStage, count: int, *, alternate: bool) -> None:
        kind = Schedule1F1B if alternate else ScheduleGPipe
        self.schedule: Any = kind(stage, count, loss_fn=lambda losses, _: losses.sum() * self.factor, scale_grads=False)


class _Part(nn.Module):
    """This rank's part of the model, as a schedule calls it for one micro-batch."""

    def __init__(self, model: Decoder, context: Callable[[], Any], rank: int) -> None:
        super().__init__()
        self.model, self.context, self.rank = model, context, rank

    def forward(
        self, x: torch.Tensor, targets: torch.Tensor, documents: torch.Tensor, positions: torch.Tensor, seeds: torch.Tensor
    ) -> torch.Tensor:
        # Seeded on each rank apart: with one seed, blocks at the same place of two ranks would drop the same elements.
        torch.manual_seed(int(seeds.item()) + self.rank)
        with self.context():
            y: torch.Tensor = self.model(x, targets, documents, positions)
        return y
