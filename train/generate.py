"""Samples from a model: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from train.model import Decoder


@torch.no_grad()
def generate(
    model: Decoder,
    prompt: Sequence[int],
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    stop: int | None = None,
) -> list[int]:
    """Continue a prompt; once the text is longer than the model's rows, only its end is seen.

    Args:
        model: the model.
        prompt: at least one token id, for example the one that begins a document.
        count: most tokens to add.
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_k: sample among this many likeliest tokens; 0 among all.
        seed: seed of the draws.
        stop: token id after which to end, for example the one that ends a document; it is not returned.

    Returns:
        The added token ids.

    Raises:
        ValueError: an empty prompt, an id outside the vocabulary, or a negative temperature.
    """
    if not prompt or not all(0 <= token < model.vocabulary for token in prompt) or temperature < 0:
        raise ValueError(
            f"the prompt must hold ids from 0 to {model.vocabulary - 1} and temperature be at least 0: {prompt}, {temperature}"
        )
    device = model.embedding.weight.device
    generator = torch.Generator().manual_seed(seed)
    was_training = model.training
    model.eval()
    tokens = list(prompt)
    for _ in range(count):
        logits = model.next_logits(torch.tensor([tokens[-model.length :]], device=device))[0].cpu()
        token = _draw(logits, temperature, top_k, generator)
        if token == stop:
            break
        tokens.append(token)
    model.train(was_training)
    return tokens[len(prompt) :]


def _draw(logits: torch.Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    if 0 < top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], float("-inf"))
    return int(torch.multinomial((logits / temperature).softmax(0), 1, generator=generator))
