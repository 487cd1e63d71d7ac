"""Parameters and gradient sequences on which optimizers are compared."""

import torch
from torch import nn

STEPS = 20

SHAPES: dict[str, tuple[int, ...]] = {
    "matrix": (48, 33),
    "vector": (37,),
    "scalar": (),
    "batched": (3, 17, 12),
    "convolution": (5, 4, 3, 3),
    "one_row": (1, 29),
    "one_column": (31, 1),
    "blocks": (1100, 257),
}


def parameter(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Parameter:
    """A parameter of a named shape; ``strided`` is a transposed view of a larger tensor."""
    generator = torch.Generator().manual_seed(seed)
    if name == "strided":
        return nn.Parameter((torch.randn(40, 60, generator=generator) * 0.02).to(dtype)[:, ::2].t())
    return nn.Parameter((torch.randn(SHAPES[name], generator=generator) * 0.02).to(dtype))


def gradients(like: torch.Tensor, seed: int = 1) -> list[torch.Tensor]:
    """Twenty FP32 gradients over six decades of scale (by row, by column, by step), which share a direction as real ones do."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(like.shape, generator=generator)
    result = []
    for step in range(STEPS):
        g = (shared + 0.5 * torch.randn(like.shape, generator=generator)) * 10.0 ** (-(step % 4))
        for dim in range(like.ndim):
            decades = torch.linspace(0, -1.5, like.shape[dim])
            g = g * (10.0**decades).reshape([-1 if d == dim else 1 for d in range(like.ndim)])
        result.append(g)
    return result


def travelled_error(p: torch.Tensor, reference: torch.Tensor, start: torch.Tensor) -> float:
    """||p - reference|| / ||reference - start|| in float64."""
    p, reference, start = p.detach().double(), reference.double(), start.double()
    return float((p - reference).norm() / (reference - start).norm())
