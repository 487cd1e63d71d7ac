"""Rules that hold only for whole parameters, and packages that are imported only when asked for."""

from __future__ import annotations

import importlib
from typing import Any

from torch.distributed.tensor import DTensor


def refuse_sharded(optimizer: str, groups: list[dict[str, Any]]) -> None:
    """Refuse parameters that are sharded.

    Raises:
        ValueError: names the optimizer, the first sharded parameter and the optimizers that shard.
    """
    for group in groups:
        for name, parameter in group["params"]:
            if isinstance(parameter, DTensor):
                raise ValueError(
                    f"{optimizer} works on whole parameters, and {name} is sharded: set training.parallel to replicate, "
                    "or use adamw, came, adafactor, sophia, lion or sgd"
                )


def package(name: str, *, pip: str, optimizer: str) -> Any:
    """Import a package that only one optimizer needs.

    Raises:
        ValueError: it is not installed; says how to get it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"optimizer {optimizer!r} needs the package {pip}, which is not installed: pip install {pip}") from error
