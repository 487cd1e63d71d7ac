"""The size of a model, counted from its settings."""

from __future__ import annotations

from schemas.settings import ModelSettings

CHINCHILLA = 20
"""Training tokens per parameter of a compute-optimal model (Hoffmann et al. 2022)."""


def parameters(model: ModelSettings, vocabulary: int) -> int:
    """Parameters of a decoder: embedding, blocks of attention, SwiGLU and two norms, last norm, and the head where it is not tied."""
    width = model.width
    kv_width = width // model.heads * model.all_kv_heads
    block = 2 * width * width + 2 * width * kv_width + 3 * width * model.inner_width + 2 * width
    return vocabulary * width * (1 if model.tied else 2) + model.layers * block + width
