"""Memory of a model in training, worked out from its settings: weights, gradients, optimizer, and activations by recomputation policy.

Activations are those of a Llama-style model's eager blocks, counted tensor by tensor (fused kernels and compiled blocks keep less);
``gristmill train --dry-run`` measures.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.settings import ModelSettings, TrainSettings
from train.policy import HALVES, NONE, SELECTIVE, BlockBytes, Policy, choose_policy, named_policy

_STATE = {"adamw": 8.0, "sophia": 8.0, "schedule_free": 8.0, "lion": 4.0, "sgd": 4.0, "came": 4.0, "adafactor": 0.0}
"""Bytes of optimizer state per parameter, rows and columns of factored moments not counted; others depend on more than the count."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank while it trains, each null where no formula is known.

    Attributes:
        weights: the weights.
        gradients: their gradients, FP32.
        optimizer: the optimizer's state.
        activations: by policy, beyond the three above, at the fullest moment of a step of several micro-batches.
        chosen: the policy of the settings, whose activations count.
    """

    weights: int
    gradients: int
    optimizer: int | None
    activations: dict[str, int] | None
    chosen: str

    @property
    def total(self) -> int | None:
        """All of them, under the chosen policy."""
        if self.optimizer is None or self.activations is None:
            return None
        return self.weights + self.gradients + self.optimizer + self.activations[self.chosen]


def memory(model: ModelSettings, training: TrainSettings, parameters: int, vocabulary: int, length: int) -> Memory:
    """Memory of a rank for micro-batches of ``training.micro_batch_rows`` rows of ``length`` tokens."""
    weights = parameters * (2 if training.precision == "bf16_weights" else 4)
    by_policy, chosen = None, training.recompute
    if model.kind == "llama":
        sizes = block_bytes(model, training.precision, training.micro_batch_rows, length)
        named = {"none": NONE, "full": Policy(1), "sqrt": named_policy("sqrt", model.layers) or NONE}
        named |= {"selective": SELECTIVE, "halves": HALVES}
        budget = training.recompute_budget_mib << 20
        named[chosen] = named_policy(chosen, model.layers) or choose_policy(sizes, model.layers, budget)
        rest = head_bytes(model, training.precision, training.micro_batch_rows, length, vocabulary)
        by_policy = {name: sizes.peak(policy, model.layers) + rest for name, policy in named.items()}
    return Memory(weights, 4 * parameters, optimizer_bytes(model, training, parameters, vocabulary), by_policy, chosen)


def optimizer_bytes(model: ModelSettings, training: TrainSettings, parameters: int, vocabulary: int) -> int | None:
    """Bytes of an optimizer's state (and of an FP32 master of BF16 weights); None where it depends on more than is known here."""
    optimizer = training.optimizer
    if optimizer.options.keys() & {"beta1", "momentum_dtype", "momentum", "betas"}:
        return None  # they may add a moment or leave one out
    master = 4 * parameters if training.precision == "bf16_weights" and optimizer.options.get("rounding", "master") == "master" else 0
    if optimizer.name == "muon":  # momentum for matrices, two moments for embeddings and vectors
        return 4 * parameters + 4 * vocabulary * model.width * (1 if model.tied else 2) + master
    if optimizer.name not in _STATE:
        return None
    return round(_STATE[optimizer.name] * parameters) + master


def block_bytes(model: ModelSettings, precision: str, rows: int, length: int) -> BlockBytes:
    """What one Llama-style block holds for the backward pass, for ``rows`` rows of ``length`` tokens.

    Two norms keep the normed input in FP32 and its inverse deviation; each product its operands, in its precision (under autocast cast
    anew for each product, the weights too); attention q, k, v, the result and the log-sum; SwiGLU three FP32 tensors.
    """
    tokens, width, inner = rows * length, model.width, model.inner_width
    kv_width = width // model.heads * model.all_kv_heads
    half = precision != "fp32"
    size = 2 if half else 4
    norm, mask = 4 * width + 4, width * size if model.dropout else 0
    # Inputs of q, k, v, gate and up; one each half where nothing is cast.
    attention = norm + (3 * 2 * width if half else 4 * width) + 4 * width * size + 4 * model.heads + mask
    fed = 4 * width + norm + (2 * 2 * width if half else 4 * width) + 3 * 4 * inner + inner * size + mask
    cast = 2 if precision in ("bf16", "fp16") else 0
    parts = tokens * attention + cast * 2 * (width + kv_width) * width, tokens * fed + cast * 3 * width * inner
    boundary = 4 * width
    products = size * (width + 2 * kv_width + 2 * width + 2 * inner + width) + 4 * model.heads
    result = width * size + 4 * model.heads + (2 * width if model.dropout else 0)
    return BlockBytes(tokens * boundary, tokens * boundary + sum(parts), tokens * products, tokens * result, max(parts))


def head_bytes(model: ModelSettings, precision: str, rows: int, length: int, vocabulary: int) -> int:
    """What stays outside the blocks as the backward pass begins: last norm, loss and its unit gradients, angles, mask, a gradient."""
    tokens, width = rows * length, model.width
    size = 4 if precision == "fp32" else 2
    angles = 2 * 4 * (width // model.heads // 2) + length * size
    return tokens * (4 * width + 4 * width + 2 * size * width + 2 * 4 * width + angles) + 2 * 4 * vocabulary * width
