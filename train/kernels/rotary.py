"""Rotary position embedding of queries and keys together."""

from __future__ import annotations

import torch

from train.kernels.dispatch import Impl, arithmetic, choose, compiled


def rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, impl: Impl = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate pairs (i, i + D/2) of q and k by their position's angles (Su et al. 2021, equation 34, in the half-split layout of LLaMA).

    Bytes moved per element of BF16: 4 forward and 4 backward (the rotation by the opposite angle; nothing of q or k is saved); both are
    the floor.

    Args:
        q: (B, T, H, D), any strides.
        k: (B, T, K, D); K may differ from H.
        cos: (T, D/2), or (B, T, D/2) where rows have positions of their own (packed documents); not differentiated.
        sin: the shape of cos.
        impl: see ``train.kernels.dispatch``.

    Returns:
        The rotated q and k, in their own dtypes.
    """
    _check(q, k, cos, sin)
    chosen = choose(impl, q)
    if chosen == "triton":
        from train.kernels.fused import rotary

        return rotary.rope(q, k, cos, sin)
    rotate = compiled(_rotate) if chosen == "compile" else _rotate
    return rotate(q, cos, sin), rotate(k, cos, sin)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    dtype = arithmetic(x)
    first, second = x.to(dtype).chunk(2, dim=-1)
    cos, sin = cos.detach().to(dtype).unsqueeze(-2), sin.detach().to(dtype).unsqueeze(-2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _check(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    if q.ndim != 4 or k.ndim != 4 or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3] or q.shape[3] % 2:
        raise ValueError(f"rope: q (B, T, H, D) and k (B, T, K, D) must agree and D be even; got {tuple(q.shape)}, {tuple(k.shape)}")
    batch, length, _, width = q.shape
    if cos.shape != sin.shape or cos.shape not in {(length, width // 2), (batch, length, width // 2)}:
        raise ValueError(
            f"rope: cos and sin must be ({length}, {width // 2}) or ({batch}, {length}, {width // 2}) for q {tuple(q.shape)}; "
            f"got {tuple(cos.shape)}, {tuple(sin.shape)}"
        )
