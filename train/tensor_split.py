"""What a rank of a tensor group sees of parameters, positions and the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from train.kernels import vocabulary_parallel_linear_cross_entropy


def own(parameter: torch.Tensor, in_part: bool = False) -> torch.Tensor:
    """This rank's part of a parameter, for operations that know nothing of DTensors.

    Args:
        parameter: a parameter; a plain one is returned as it is.
        in_part: each rank of the group works on positions of its own, so that the whole gradient is the sum of the ranks'.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    local: torch.Tensor = parameter.to_local(grad_placements=[Partial()] if in_part else None)
    return local


@dataclass(frozen=True)
class TensorSplit:
    """How a tensor group splits the model's two ends; with ``sequence`` also the positions between them.

    Attributes:
        mesh: the group, one dimension.
        sequence: the residual stream is split by positions.
        vocabulary: token ids are below it.
    """

    mesh: DeviceMesh
    sequence: bool
    vocabulary: int

    def positions(self, values: torch.Tensor) -> torch.Tensor:
        """(B, L / ranks) this rank's part of (B, L) values that have no gradient; all of them without ``sequence``."""
        return values.chunk(self.mesh.size(), dim=1)[self.mesh.get_local_rank()] if self.sequence else values

    def whole(self, hidden: torch.Tensor) -> torch.Tensor:
        """(B, L, d) of every rank's (B, L / ranks, d); its gradient comes whole to each."""
        if not self.sequence:
            return hidden
        gathered: torch.Tensor = DTensor.from_local(hidden, self.mesh, [Shard(1)], run_check=False).redistribute(placements=[Replicate()])
        return own(gathered)

    def losses(self, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, z_loss: float) -> torch.Tensor:
        """(N,) losses of (N, d) with the output layer whose rows the ranks share."""
        return vocabulary_parallel_linear_cross_entropy(
            hidden, own(weight), targets, vocabulary=self.vocabulary, group=self.mesh.get_group(), z_loss=z_loss
        )

    def logits(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """(N, V) logits of (N, d), whole on every rank; without gradient."""
        part = hidden @ own(weight).to(hidden.dtype).T
        shape = torch.Size((len(hidden), self.vocabulary))
        whole = DTensor.from_local(part, self.mesh, [Shard(1)], run_check=False, shape=shape, stride=(self.vocabulary, 1))
        return whole.full_tensor()

    def agreed(self, drawn: torch.Tensor) -> torch.Tensor:
        """What the group's first rank drew, on all of them."""
        group = self.mesh.get_group()
        dist.broadcast(drawn, dist.get_global_rank(group, 0), group=group)
        return drawn
