"""Torch's own steps over parameters that lie on different meshes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


@contextmanager
def one_mesh_a_group(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within it the parameters of every group lie on one mesh, or none.

    Torch's fused and foreach steps take a group's tensors in one call, which mixes neither meshes (FSDP over tensor parallel) nor whole
    tensors with DTensors. Groups as users and checkpoints know them stay as they are.
    """
    groups = optimizer.param_groups
    divided = []
    for group in groups:
        parts: dict[DeviceMesh | None, list[torch.Tensor]] = {}
        for parameter in group["params"]:
            parts.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
        divided += [{**group, "params": part} for part in parts.values()]
    optimizer.param_groups = divided
    try:
        yield
    finally:
        optimizer.param_groups = groups
