"""Muon for matrices with AdamW for the rest, as one optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from train.optim.sole import refuse_sharded
from train.optim.split import Groups, Split


class Muon(Split):
    """Torch's Muon (Jordan et al. 2024) for hidden matrices; AdamW for embeddings, output layers and everything that is not a matrix.

    Sharded parameters are refused: torch's Newton-Schulz runs in BF16 over shards and drifts from the unsharded result.

    Args:
        groups: named parameter groups.
        momentum: of Muon.
        nesterov: look ahead.
        ns_steps: Newton-Schulz iterations.
        match_adamw: scale matrices' updates to AdamW's RMS, so that one learning rate serves both (Liu et al. 2025).
        output: names whose last part but one is one of these are output layers, left to AdamW.
        betas: of AdamW.
        eps: of AdamW.
    """

    def __init__(
        self,
        groups: Groups,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        match_adamw: bool = True,
        output: Sequence[str] = ("lm_head", "output", "head", "unembed"),
        betas: Sequence[float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        refuse_sharded("muon", groups)
        adjust = "match_rms_adamw" if match_adamw else "original"

        def muon(hidden: Groups) -> torch.optim.Optimizer:
            return torch.optim.Muon(hidden, momentum=momentum, nesterov=nesterov, ns_steps=ns_steps, adjust_lr_fn=adjust)

        super().__init__(muon, groups, name="muon", output=output, rest={"betas": betas, "eps": eps})
