"""The size of a model, counted from its settings."""

from __future__ import annotations

from schemas.settings import ModelSettings

CHINCHILLA = 20
"""Training tokens per parameter of a compute-optimal model (Hoffmann et al. 2022)."""


def parameters(model: ModelSettings, vocabulary: int, length: int) -> int:
    """Parameters of a decoder for rows of a length: embeddings, blocks, last norm, and the head where it is not tied."""
    width, inner = model.width, model.inner_width
    if model.kind == "gpt2":
        block = 4 * width * width + 2 * width * inner + 9 * width + inner
        rest = length * width + 2 * width
    else:
        kv_width = width // model.heads * model.all_kv_heads
        block = 2 * width * width + 2 * width * kv_width + 3 * width * inner + 2 * width
        rest = width
    return vocabulary * width * (1 if model.tied else 2) + model.layers * block + rest
