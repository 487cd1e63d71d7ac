"""How a stage is spread over several ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ParallelSettings:
    """How a stage is spread over its ranks; on one rank it runs whole, whatever is said here.

    Attributes:
        data: what is left of the ranks after the other two shares every step's rows, and either replicates parameters, gradients and
            optimizer states (replicate) or spreads them by block (shard: FSDP2).
        tensor: ranks that share every matrix, the vocabulary and the rows (Shoeybi et al. 2019); heads, kv_heads and the feed-forward's
            width must divide by it.
        sequence: of tensor: norms and the residual stream are spread over the positions of a row as well (Korthikanti et al. 2022).
        pipeline: ranks that blocks are spread over; micro-batches pass through them one after another.
        schedule: of pipeline: 1f1b (forward and backward passes by turns) or gpipe (all forward passes, then all backward ones).
    """

    __pydantic_config__ = {"extra": "forbid"}

    data: Literal["replicate", "shard"] = "replicate"
    tensor: int = 1
    sequence: bool = False
    pipeline: int = 1
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
