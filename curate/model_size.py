"""The size of a model, counted from its settings."""

from __future__ import annotations

from schemas.settings import ModelSettings

CHINCHILLA = 20
"""Training tokens per parameter of a compute-optimal model (Hoffmann et al. 2022)."""


def parameters(model: ModelSettings, vocabulary: int) -> int:
    """Parameters of a decoder: embedding, blocks of attention, SwiGLU and two norms, last norm, and the head where it is not tied."""
    width = model.width
    inner = model.ff_width or -(-8 * width // (3 * 64)) * 64
    kv_width = width // model.heads * (model.kv_heads or model.heads)
    block = 2 * width * width + 2 * width * kv_width + 3 * width * inner + 2 * width
    return vocabulary * width * (1 if model.tied else 2) + model.layers * block + width
