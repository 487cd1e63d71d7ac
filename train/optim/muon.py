"""Muon for matrices with AdamW for the rest, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from train.optim.adamw import AdamW, adamw
from train.optim.groups import is_embedding
from train.optim.reporting import Reporting
from train.optim.sole import refuse_sharded


class Muon(Reporting):
    """Torch's Muon (Jordan et al. 2024) for hidden matrices; AdamW for embeddings, output layers and everything that is not a matrix.

    Both share one state and one list of groups, so that schedules and checkpoints see a single optimizer. Sharded parameters are refused:
    torch's Newton-Schulz runs in BF16 over shards and drifts from the unsharded result.

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
        groups: list[dict[str, Any]],
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
        matrices: list[dict[str, Any]] = []
        rest: list[dict[str, Any]] = []
        for group in groups:
            chosen = {
                name for name, p in group["params"] if p.ndim == 2 and not is_embedding(name) and not set(name.split(".")) & set(output)
            }
            for part, wanted in ((matrices, True), (rest, False)):
                params = [(name, p) for name, p in group["params"] if (name in chosen) is wanted]
                if params:
                    part.append({**group, "params": params})
        if not matrices:
            raise ValueError(
                "muon found no hidden matrix to work on: every parameter is a vector, an embedding or an output layer; use adamw"
            )
        adjust = "match_rms_adamw" if match_adamw else "original"
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, momentum=momentum, nesterov=nesterov, ns_steps=ns_steps, adjust_lr_fn=adjust)
        ]
        if rest:
            self._parts.append(adamw(rest, betas=betas, eps=eps))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore groups and states, and hand them to both parts."""
        super().__setstate__(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what ``closure`` does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss

    def _directions(self) -> Iterator[torch.Tensor]:
        if isinstance(self._parts[-1], AdamW):
            yield from self._parts[-1]._directions()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for part in self._parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state
