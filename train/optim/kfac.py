"""K-FAC: the natural gradient of linear layers, by the Kronecker factors of a Fisher matrix whose labels are drawn from the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from train.optim.sole import refuse_sharded
from train.optim.split import Groups, Split

MOST_PARAMETERS = 150_000_000


class KFAC(Split):
    """K-FAC (Martens & Grosse 2015) for the weights of ``nn.Linear`` layers; AdamW for all that is not a hidden matrix.

    The Fisher block of a weight W (out, in) with inputs a and gradients g of the log-likelihood at its outputs is taken as A (x) S, with
    A = E[a a'] and S = E[g g'] over rows whose labels were drawn from the model; rows that no loss reaches are left out, and the positions
    of a sequence count as rows of their own (Eschenhagen et al. 2023, "expand"). With pi^2 = (tr A / in) / (tr S / out) (section 6.3):
    U = (S + sqrt(damping) / pi)^-1 G (A + pi sqrt(damping))^-1; all U are scaled by min(1, sqrt(kl_clip / (lr^2 sum <U, G>))) (Ba et al.
    2017, section 5); then momentum, decoupled decay and W = W - lr U.

    It estimates nothing by itself: where ``curvature_due()``, before ``step``, run a forward and backward pass of the mean loss over
    sampled labels within ``observe(model)``, then call ``update_curvature(labels=...)`` with the number of labels over all ranks, and set
    the gradients to those of the true labels again.

    State: 8 (in^2 + out^2) + 4 in out bytes for each matrix, for models of up to about 100 M parameters. FP32 or FP64 weights, unsharded.

    Args:
        groups: named parameter groups.
        momentum: of the natural gradient.
        damping: lambda.
        decay: weight of the old factors in their moving average.
        kl_clip: bound on lr^2 times the squared length of a step in the Fisher metric; 0 is none.
        every: steps from one estimate (and inversion) to the next.
        largest: matrices with a longer side are left to AdamW.
        output: names whose last part but one is one of these are output layers, left to AdamW.
        rest_lr: learning rate of AdamW.
        betas: of AdamW.
        eps: of AdamW.

    Raises:
        ValueError: sharded or BF16 weights, too many parameters, no hidden matrix, or a setting out of range.
    """

    def __init__(
        self,
        groups: Groups,
        *,
        momentum: float = 0.9,
        damping: float = 1e-3,
        decay: float = 0.95,
        kl_clip: float = 1e-2,
        every: int = 10,
        largest: int = 8192,
        output: Sequence[str] = ("lm_head", "output", "head", "unembed"),
        rest_lr: float = 1e-3,
        betas: Sequence[float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        refuse_sharded("kfac", groups)
        if not (0 <= momentum < 1 and 0 <= decay < 1 and damping > 0 and kl_clip >= 0 and every >= 1):
            raise ValueError(
                "kfac needs momentum and decay in [0, 1), damping > 0, kl_clip >= 0, every >= 1; "
                f"got {momentum}, {decay}, {damping}, {kl_clip}, {every}"
            )
        count = sum(p.numel() for group in groups for _, p in group["params"])
        if count > MOST_PARAMETERS:
            raise ValueError(f"kfac is for models of up to about 100 M parameters, this one has {count:,}: use adamw, came or muon")
        settings = {"momentum": momentum, "damping": damping, "decay": decay, "kl_clip": kl_clip, "every": every}
        rest = {"betas": betas, "eps": eps, "lr": rest_lr}
        super().__init__(lambda hidden: _Natural(hidden, settings), groups, name="kfac", output=output, rest=rest, largest=largest)
        self._seen: dict[torch.Tensor, list[torch.Tensor]] = {}
        self._rows: dict[torch.Tensor, int] = {}

    def curvature_due(self) -> bool:
        """Return whether the next step wants a fresh estimate: at the first, and then every ``every`` steps."""
        steps = [int(self.state[p]["step"]) for p in self._matrices() if "step" in self.state[p]]
        return max(steps, default=0) % int(self.param_groups[0]["every"]) == 0

    @contextmanager
    def observe(self, model: nn.Module) -> Iterator[None]:
        """Gather inputs and output gradients of the model's linear layers while passes run within."""
        wanted = set(self._matrices())
        layers = [module for module in model.modules() if isinstance(module, nn.Linear) and module.weight in wanted]
        hooks = [layer.register_forward_hook(self._watch) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def update_curvature(self, *, labels: float, keep: bool = True) -> None:
        """Move the factors towards those of the passes observed since the last call, and invert them.

        Args:
            labels: the gradients were those of the sum of the losses over so many: the sampled labels over all ranks, without a loss scale.
            keep: False forgets the passes, which were not finite, once there are factors.

        Raises:
            ValueError: no pass was observed.
        """
        if not self._seen and not dist.is_initialized():
            raise ValueError("kfac has observed no linear layer: run the passes with sampled labels within observe(model)")
        settings = self.param_groups[0]
        for weight in self._matrices():
            inputs, outputs, rows = self._sums(weight)
            state = self.state[weight]
            if rows == 0 or not (keep or "inputs" not in state):
                continue
            # The mean over rows of the log-likelihood's own gradients: those that came were divided by the number of labels.
            fresh = {"inputs": inputs / rows, "outputs": outputs * (labels**2 / rows)}
            for name, factor in fresh.items():
                state[name] = factor if name not in state else state[name].lerp(factor, 1 - settings["decay"])
            state["inputs_inverse"], state["outputs_inverse"] = damped_inverses(state["inputs"], state["outputs"], settings["damping"])
        self._seen.clear()
        self._rows.clear()

    def _matrices(self) -> list[torch.Tensor]:
        return [p for group in self._parts[0].param_groups for p in group["params"]]

    def _watch(self, layer: nn.Linear, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if output.requires_grad:
            rows = inputs[0].detach()
            output.register_hook(lambda gradient: self._add(layer.weight, rows, gradient))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _add(self, weight: torch.Tensor, inputs: torch.Tensor, gradient: torch.Tensor) -> None:
        inputs, gradient = (t.reshape(-1, t.shape[-1]).to(weight.dtype) for t in (inputs, gradient))
        reached = (gradient != 0).any(-1)
        inputs, gradient = inputs[reached], gradient[reached]
        sums = [inputs.T @ inputs, gradient.T @ gradient]
        held = self._seen.setdefault(weight, [torch.zeros_like(part) for part in sums])
        for total, part in zip(held, sums, strict=True):
            total += part
        self._rows[weight] = self._rows.get(weight, 0) + len(inputs)

    def _sums(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Sums over the rows of all ranks."""
        sizes = weight.shape[1], weight.shape[0]
        inputs, outputs = self._seen.get(weight) or [weight.new_zeros(size, size) for size in sizes]
        rows = torch.tensor([float(self._rows.get(weight, 0))], dtype=torch.float64, device=weight.device)
        if dist.is_initialized() and dist.get_world_size() > 1:
            for total in (inputs, outputs, rows):
                dist.all_reduce(total)
        return inputs, outputs, int(rows.item())


def damped_inverses(inputs: torch.Tensor, outputs: torch.Tensor, damping: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inverses of A + pi sqrt(damping) and S + sqrt(damping) / pi (Martens & Grosse 2015, section 6.3)."""
    ratio = inputs.diagonal().mean().clamp(min=1e-30) / outputs.diagonal().mean().clamp(min=1e-30)
    pi, root = float(ratio.sqrt().clamp(1e-6, 1e6)), math.sqrt(damping)
    inverses = []
    for factor, added in ((inputs, pi * root), (outputs, root / pi)):
        wide = factor.double() + added * torch.eye(len(factor), dtype=torch.float64, device=factor.device)
        inverses.append(torch.cholesky_inverse(torch.linalg.cholesky(wide)).to(factor.dtype))
    return inverses[0], inverses[1]


class _Natural(torch.optim.Optimizer):
    """The update of the matrices, from factors that ``KFAC`` keeps in the state they share."""

    def __init__(self, groups: Groups, settings: dict[str, Any]) -> None:
        for name, p in (entry for group in groups for entry in group["params"]):
            if p.dtype not in (torch.float32, torch.float64):
                raise ValueError(f"{name} is {p.dtype}, and kfac keeps FP32 weights: use BF16 by autocast, or another optimizer")
        super().__init__(groups, {**settings, "lr": 1e-3, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient and factors.

        Raises:
            ValueError: a matrix without factors.
        """
        found = []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "outputs_inverse" not in state:
                    raise ValueError(
                        f"kfac has no factors of a {tuple(p.shape)} weight: call update_curvature first, where curvature_due()"
                    )
                if "step" not in state:
                    state["step"], state["momentum_buffer"] = torch.zeros(()), torch.zeros_like(p)
                state["step"] += 1
                found.append((p, group, state["outputs_inverse"] @ p.grad @ state["inputs_inverse"]))
        length = sum(float((update * p.grad).sum()) * group["lr"] ** 2 for p, group, update in found)
        for p, group, update in found:
            bound = group["kl_clip"]
            scale = min(1.0, math.sqrt(bound / length)) if bound and length > 0 else 1.0
            moment = self.state[p]["momentum_buffer"].mul_(group["momentum"]).add_(update, alpha=scale)
            p.mul_(1 - group["lr"] * group["weight_decay"]).add_(moment, alpha=-group["lr"])
