"""The figures of a step, by the names the metrics table has."""

from __future__ import annotations

from collections.abc import Sequence

from train.step import StepResult


def step_values(result: StepResult, sources: Sequence[str], *, lr: float) -> dict[str, float]:
    """Loss over all and by source, gradient norm and learning rate of a step."""
    by_source = zip(sources, result.nats, result.tokens, strict=True)
    values = {"loss": result.loss, "grad_norm": result.grad_norm, "lr": lr}
    return values | {f"loss/{source}": float(nats / count) for source, nats, count in by_source if count}
