"""Parameter groups: which parameters decay, and which have the embeddings' learning rate."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import nn

_EMBEDDING = re.compile(r"(^|[._])(\w*embed(ding|dings|s|_\w+)?|wte|wpe)([._]|$)")
_NO_DECAY = re.compile(r"(^|[._])(bias|\w*norm\w*|ln_\w+)([._]|$)", re.IGNORECASE)


def is_embedding(name: str) -> bool:
    """Return whether a parameter is an embedding, by its name."""
    return _EMBEDDING.search(name) is not None


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float = 0.0,
    embedding_lr: float | None = None,
    width_ratio: float = 1.0,
) -> list[dict[str, Any]]:
    """Split trainable parameters into groups by weight decay and by learning rate.

    Parameters of at most one dimension, biases and norms are not decayed. Embeddings, known by name (``embed``, ``tok_embeddings``,
    ``wte``), have ``embedding_lr`` where it is given. Matrices of blocks have the learning rate over ``width_ratio`` (muP). Frozen
    parameters are left out; a parameter that comes under two names is taken once.

    Returns:
        Groups for ``torch.optim.Optimizer``: ``params`` as (name, parameter), ``lr``, ``initial_lr`` (what a schedule scales)
        and ``weight_decay``.

    Raises:
        ValueError: no trainable parameter, or a negative rate or decay.
    """
    for label, value in (("lr", lr), ("weight_decay", weight_decay), ("embedding_lr", embedding_lr)):
        if value is not None and not value >= 0:
            raise ValueError(f"{label} must be at least 0, got {value}")
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    seen: set[int] = set()
    for name, parameter in named_parameters:
        if not parameter.requires_grad or id(parameter) in seen:
            continue
        seen.add(id(parameter))
        rate = embedding_lr if embedding_lr is not None and is_embedding(name) else lr
        if parameter.ndim > 1 and name.startswith("blocks."):
            rate /= width_ratio
        decay = 0.0 if parameter.ndim <= 1 or _NO_DECAY.search(name) else weight_decay
        group = {"params": [], "lr": rate, "initial_lr": rate, "weight_decay": decay}
        groups.setdefault((rate, decay), group)["params"].append((name, parameter))
    if not groups:
        raise ValueError("no trainable parameter: every parameter is frozen, or the model has none")
    return list(groups.values())
