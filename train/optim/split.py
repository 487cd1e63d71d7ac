"""Two optimizers as one: a rule for hidden matrices, and AdamW for embeddings, output layers and everything that is not a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from train.optim.adamw import AdamW, adamw
from train.optim.groups import is_embedding
from train.optim.reporting import Reporting

Groups = list[dict[str, Any]]


class Split(Reporting):
    """Both parts share one state and one list of groups, so that schedules and checkpoints see a single optimizer.

    Args:
        matrices: builds the optimizer of the hidden matrices from their groups.
        groups: named parameter groups.
        name: of the rule, for errors.
        output: names whose last part but one is one of these are output layers, left to AdamW.
        largest: matrices with a longer side are left to AdamW; 0 is no bound.
        rest: settings of AdamW, and ``lr`` where it is not the matrices'.

    Raises:
        ValueError: no hidden matrix at all.
    """

    def __init__(
        self,
        matrices: Callable[[Groups], torch.optim.Optimizer],
        groups: Groups,
        *,
        name: str,
        output: Sequence[str],
        rest: dict[str, Any],
        largest: int = 0,
    ) -> None:
        hidden: Groups = []
        others: Groups = []
        rate = rest.pop("lr", None)
        for group in groups:
            chosen = {
                n
                for n, p in group["params"]
                if p.ndim == 2 and not is_embedding(n) and not set(n.split(".")) & set(output) and (not largest or max(p.shape) <= largest)
            }
            for part, wanted, changed in ((hidden, True, {}), (others, False, {} if rate is None else {"lr": rate, "initial_lr": rate})):
                params = [(n, p) for n, p in group["params"] if (n in chosen) is wanted]
                if params:
                    part.append({**group, **changed, "params": params})
        if not hidden:
            raise ValueError(
                f"{name} found no hidden matrix to work on: every parameter is a vector, an embedding or an output layer; use adamw"
            )
        self._parts: list[torch.optim.Optimizer] = [matrices(hidden)]
        if others:
            self._parts.append(adamw(others, **rest))
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
