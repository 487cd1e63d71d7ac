"""Builds a stage's model and optimizer from its settings."""

from __future__ import annotations

import torch

from schemas.errors import RecipeError
from train.model import Decoder
from train.optim import OPTIMIZERS, build_optimizer
from train.parallel import Ranks
from train.recompute import group_size
from train.stage import Stage

DRIVEN = ("adafactor", "adamw", "came", "lion", "muon", "sgd", "sophia")
"""Optimizers the loop can drive and resume bit for bit. The others need more than a gradient a step (``lbfgs`` evaluates the loss again,
``schedule_free`` changes its weights to evaluate) or keep state of classes that checkpoints do not load (packages' own)."""


def build_model(stage: Stage, ranks: Ranks) -> Decoder:
    """Build the stage's model with its seeded random weights, on the rank's device."""
    settings = stage.settings
    model = Decoder(
        settings.model,
        settings.vocabulary,
        settings.row_length,
        settings.seed,
        recompute=group_size(settings.training.recompute, settings.model.layers),
        z_loss=settings.training.z_loss,
    )
    return model.to(ranks.device)


def build_stage_optimizer(stage: Stage, model: Decoder) -> torch.optim.Optimizer:
    """Build the stage's optimizer.

    Raises:
        RecipeError: an unknown optimizer or option.
    """
    settings = stage.settings.training.optimizer
    if settings.name in OPTIMIZERS and (settings.name not in DRIVEN or settings.options.get("estimator") == "hutchinson"):
        raise RecipeError(
            f"{settings.name!r} with options {settings.options} cannot be driven by the training loop",
            where="training.optimizer.name",
            fix=f"choose one of {', '.join(DRIVEN)} (sophia with its Gauss-Newton estimator)",
        )
    try:
        return build_optimizer(
            settings.name,
            model.named_parameters(),
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            embedding_lr=settings.embedding_lr,
            warmup_steps=stage.settings.training.schedule.warmup_steps,
            **settings.options,
        )
    except (ValueError, TypeError) as error:
        raise RecipeError(str(error), where="training.optimizer") from error
