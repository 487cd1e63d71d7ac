"""One parameter's part during a step: blocks that stay in cache, FP32 arithmetic, and rounding back to BF16.

BF16 keeps 8 bits: a nearest rounding loses every update below 2^-9 of the weight. So a BF16 parameter is either rounded stochastically
(exact on average, no memory; the noise depends on seed, name, step and the shard's offset alone, so that a resume and every replica draw
the same) or kept beside an FP32 master.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from train.optim.shards import Place

ROUNDINGS = ("stochastic", "master", "nearest")

# A block of a few FP32 operands fits a core's L2 cache; on an accelerator every block is a round of launches.
_BLOCK = {"cpu": 1 << 18}
_BLOCK_ACCELERATOR = 1 << 26


Block = slice | None
"""A range of the first dimension; None is all of it."""


@dataclass
class Part:
    """This rank's part of one parameter: weights, gradient, FP32 master (or None) and where they lie."""

    name: str
    weights: torch.Tensor
    grad: torch.Tensor
    master: torch.Tensor | None
    place: Place
    noise: torch.Generator | None

    @property
    def truth(self) -> torch.Tensor:
        """What is updated: the master where there is one, else the weights."""
        return self.weights if self.master is None else self.master

    @cached_property
    def size(self) -> int:
        """The number of elements of the whole parameter."""
        return math.prod(self.place.shape)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of the arithmetic."""
        return arithmetic(self.weights)

    @cached_property
    def blocks(self) -> list[Block]:
        """Ranges of the first dimension that together cover the part; none for an empty part."""
        count, limit = self.weights.numel(), _BLOCK.get(self.weights.device.type, _BLOCK_ACCELERATOR)
        if count <= limit:
            return [None] if count else []
        rows = self.weights.shape[0]
        size = max(1, limit * rows // count)
        return [slice(start, min(rows, start + size)) for start in range(0, rows, size)]

    @property
    def at_once(self) -> bool:
        """Whether the part is a whole parameter in one block, so that a value kept from one pass to the next stays in cache."""
        return self.place.mesh is None and self.blocks == [None]

    def grad32(self, block: Block) -> torch.Tensor:
        """Return a block of the gradient in the dtype of the arithmetic."""
        return cut(self.grad, block).to(self.dtype)

    def weights32(self, block: Block) -> torch.Tensor:
        """Return a block of the weights, or of their master, in the dtype of the arithmetic."""
        return cut(self.truth, block).to(self.dtype)

    def apply(self, block: Block, direction: torch.Tensor, rate: torch.Tensor | float, keep: float) -> None:
        """Set a block of the weights to ``keep * weights + rate * direction``, rounded as the parameter asks."""
        updated = self.weights32(block)
        if keep != 1:
            updated.mul_(keep)
        if isinstance(rate, torch.Tensor):
            updated.addcmul_(direction, spread(rate, block))
        else:
            updated.add_(direction, alpha=rate)
        if self.noise is not None:
            cut(self.weights, block).copy_(stochastic_bf16(updated, self.noise))
        elif self.weights.dtype != updated.dtype:
            cut(self.weights, block).copy_(updated)

    def total(self, values: Callable[[Block], torch.Tensor]) -> torch.Tensor:
        """Return the sum of a 0-D value over the blocks; 0 for an empty part."""
        if len(self.blocks) == 1:
            return values(self.blocks[0])
        zero = torch.zeros((), dtype=self.dtype, device=self.weights.device)
        return sum((values(block) for block in self.blocks), start=zero)


def cut(tensor: torch.Tensor, block: Block) -> torch.Tensor:
    """Return a block of a tensor."""
    return tensor if block is None else tensor[block]


def spread(factor: torch.Tensor, block: Block) -> torch.Tensor:
    """Return what of a factor belongs to a block: all of it where it is broadcast along the first dimension."""
    return factor if factor.shape[0] == 1 else cut(factor, block)


def arithmetic(parameter: torch.Tensor) -> torch.dtype:
    """Return the dtype a parameter is computed in: FP64 for FP64, else FP32."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def stochastic_bf16(values: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    """Round FP32 to BF16 up or down with the probability that makes the result exact on average; infinities and NaN stay."""
    bits = values.contiguous().view(torch.int32)
    dither = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32, device=bits.device, generator=noise)
    rounded = ((bits + dither) & -65536).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values).to(torch.bfloat16)


def noise_for(generator: torch.Generator, *, seed: int, name: str, step: int, offset: tuple[int, ...]) -> torch.Generator:
    """Seed a generator by what identifies a shard's rounding at a step."""
    return generator.manual_seed(_number(f"{seed}/{name}/{step}/{offset}"))


def rounding_seed(seed: int, name: str) -> int:
    """Return the seed of a whole parameter's rounding in kernels, which add step and element themselves."""
    return _number(f"{seed}/{name}")


def _number(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
