"""The optimizers by name, and the one function that builds any of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from schemas.errors import nearest
from train.optim.adafactor import Adafactor
from train.optim.adamw import adamw, sgd
from train.optim.came import CAME
from train.optim.groups import parameter_groups
from train.optim.kfac import KFAC
from train.optim.lbfgs import LBFGS
from train.optim.lion import Lion
from train.optim.muon import Muon
from train.optim.packaged import adamw8bit, schedule_free, soap
from train.optim.sophia import Sophia

Factory = Callable[..., torch.optim.Optimizer]

OPTIMIZERS: dict[str, Factory] = {
    "adamw": adamw,
    "adamw8bit": adamw8bit,
    "adafactor": Adafactor,
    "came": CAME,
    "sophia": Sophia,
    "muon": Muon,
    "lion": Lion,
    "sgd": sgd,
    "kfac": KFAC,
    "lbfgs": LBFGS,
    "soap": soap,
    "schedule_free": schedule_free,
}
"""Name to factory. A factory takes parameter groups; its keyword arguments are the optimizer's options."""

BY_RATE = ("adamw", "adamw8bit", "came", "lion", "schedule_free", "sophia")
"""Optimizers that move an element by about the learning rate, whatever the gradient's size and the weight's."""


def build_optimizer(
    name: str,
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float = 0.0,
    embedding_lr: float | None = None,
    warmup_steps: int | None = None,
    compiled: bool = False,
    width_ratio: float = 1.0,
    **options: Any,
) -> torch.optim.Optimizer:
    """Build the named optimizer over groups of parameters (``train.optim.groups``).

    Every group carries ``initial_lr``: a schedule sets ``group["lr"] = group["initial_lr"] * scale``.

    Args:
        name: a key of ``OPTIMIZERS``.
        named_parameters: as ``model.named_parameters()`` gives them; the frozen are left out.
        lr: peak learning rate.
        weight_decay: decoupled weight decay of matrices.
        embedding_lr: peak learning rate of embeddings; ``lr`` where None.
        warmup_steps: steps of warm-up in the schedule; only a rule that demands them looks.
        compiled: let a rule that can compile its step on the CPU do so, unless its options say who computes.
        width_ratio: of muP: what divides the learning rate of hidden matrices, for rules whose updates have its size.
        options: the optimizer's own, as its factory names them.

    Raises:
        ValueError: an unknown name or option (with the nearest and the allowed), or a value out of range.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {name!r}{nearest(name, OPTIMIZERS)} (allowed: {', '.join(sorted(OPTIMIZERS))})")
    factory = OPTIMIZERS[name]
    known = set(inspect.signature(factory).parameters) - {"groups", "lr", "weight_decay"}
    allowed = known - {"warmup_steps"}
    for option in options:
        if option not in allowed:
            raise ValueError(
                f"optimizer {name!r} has no option {option!r}{nearest(option, allowed)} (allowed: {', '.join(sorted(allowed))})"
            )
    if "warmup_steps" in known:
        options["warmup_steps"] = warmup_steps
    if width_ratio != 1 and name not in BY_RATE:
        raise ValueError(f"muP's learning rates are for {', '.join(BY_RATE)}, not {name}: leave model.mup_base_width out")
    groups = parameter_groups(named_parameters, lr=lr, weight_decay=weight_decay, embedding_lr=embedding_lr, width_ratio=width_ratio)
    on_cpu = all(p.device.type == "cpu" for group in groups for _, p in group["params"])
    if compiled and on_cpu and isinstance(factory, type) and "impl" in known:
        options.setdefault("impl", "native" if factory in (Adafactor, CAME) else "compile")
    return factory(groups, **options)
