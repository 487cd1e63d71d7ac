"""AdamW and SGD: torch's fused steps, or AdamW by the own kernel, with the figures every optimizer here reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from train.kernels import adamw_step
from train.optim.meshes import one_mesh_a_group
from train.optim.reporting import Reporting
from train.optim.sole import refuse_sharded
from train.optim.weights import rounding_seed

_FUSED_DEVICES = {"cpu", "cuda", "xpu", "mps"}


class AdamW(torch.optim.AdamW, Reporting):
    """Torch's AdamW (Loshchilov & Hutter 2019) that can report on itself."""

    seeds: dict[torch.Tensor, int] | None = None
    """Where the own kernel steps: the seed of each BF16 parameter's stochastic rounding. The state is the same either way."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what ``closure`` does."""
        if self.seeds is None:
            with one_mesh_a_group(self):
                return super().step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            kinds: dict[tuple[Any, ...], list[torch.Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        state["step"] = torch.zeros((), dtype=torch.float32)
                        state |= {name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("exp_avg", "exp_avg_sq")}
                    state["step"] += 1
                    kinds.setdefault((int(state["step"]), parameter.dtype, parameter.grad.dtype), []).append(parameter)
            for (step, dtype, _), chosen in kinds.items():
                adamw_step(
                    [p.detach() for p in chosen],
                    [p.grad for p in chosen if p.grad is not None],
                    [self.state[p]["exp_avg"] for p in chosen],
                    [self.state[p]["exp_avg_sq"] for p in chosen],
                    step=step,
                    seeds=[self.seeds[p] for p in chosen] if dtype == torch.bfloat16 else None,
                    impl="triton",
                    **{name: group[name] for name in ("lr", "betas", "eps", "weight_decay")},
                )
        return loss

    def _directions(self) -> Iterator[torch.Tensor]:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if state := self.state.get(parameter):
                    step = float(state["step"])
                    moment = state["exp_avg"] / (1 - beta1**step)
                    yield moment / ((state["exp_avg_sq"] / (1 - beta2**step)).sqrt() + group["eps"])


class SGD(torch.optim.SGD, Reporting):
    """Torch's SGD that can report on itself."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what ``closure`` does."""
        with one_mesh_a_group(self):
            return super().step(closure)

    def _directions(self) -> Iterator[torch.Tensor]:
        for state in self.state.values():
            if state.get("momentum_buffer") is not None:
                yield state["momentum_buffer"]


def adamw(
    groups: list[dict[str, Any]],
    *,
    betas: Sequence[float] = (0.9, 0.95),
    eps: float = 1e-8,
    fused: bool | None = None,
    impl: str = "torch",
    seed: int = 0,
) -> AdamW:
    """Build AdamW: 8 bytes of state per FP32 parameter; torch's, fused where the device has it, unless told otherwise.

    ``impl="triton"`` steps by the own kernel, for whole parameters: FP32 moments also with BF16 parameters, which are then rounded
    stochastically by ``seed`` (torch rounds both to nearest).
    """
    if impl not in ("torch", "triton"):
        raise ValueError(f"impl must be torch or triton, got {impl!r}")
    if impl == "triton":
        refuse_sharded("adamw with impl='triton'", groups)
    named = [entry for group in groups for entry in group["params"]]
    beta1, beta2 = betas
    optimizer = AdamW(groups, betas=(beta1, beta2), eps=eps, fused=impl == "torch" and _can_fuse(groups) if fused is None else fused)
    if impl == "triton":
        optimizer.seeds = {parameter: rounding_seed(seed, name) for name, parameter in named}
    return optimizer


def sgd(groups: list[dict[str, Any]], *, momentum: float = 0.9, nesterov: bool = True, fused: bool | None = None) -> SGD:
    """Build SGD with Nesterov momentum: 4 bytes. Its weight decay is torch's, added to the gradient (L2), not decoupled.

    Torch has no fused SGD for sharded parameters; those are stepped by its foreach lines.
    """
    whole = not any(isinstance(p, DTensor) for g in groups for _, p in g["params"])
    return SGD(groups, lr=1e-3, momentum=momentum, nesterov=nesterov, fused=whole and _can_fuse(groups) if fused is None else fused)


def _can_fuse(groups: list[dict[str, Any]]) -> bool:
    return all(p.device.type in _FUSED_DEVICES and p.is_floating_point() for g in groups for _, p in g["params"])
