"""Builds a stage's model and optimizer from its settings."""

from __future__ import annotations

import inspect

import torch

from schemas.errors import RecipeError
from train.compiling import why_not
from train.model import Decoder
from train.optim import OPTIMIZERS, build_optimizer
from train.parallel import Ranks
from train.policy import BlockBytes, choose_policy, named_policy
from train.precision import PRODUCTS, precision_context, store_weights
from train.recompute import measure_block
from train.sharding import shard_model
from train.stage import Stage
from train.tensor_parallel import split_model


def build_model(stage: Stage, ranks: Ranks) -> Decoder:
    """Build the stage's model with its seeded random weights, on the rank's device."""
    settings = stage.settings
    training, layers = settings.training, settings.model.layers
    policy = named_policy(training.recompute, layers)
    if policy is not None and training.recompute_budget_mib:
        raise RecipeError("only recompute: auto has a budget", where="training.recompute_budget_mib")
    model = Decoder(settings.model, settings.vocabulary, settings.row_length, settings.seed, z_loss=training.z_loss)
    store_weights(model.parameters(), training.precision)
    mesh, layout = ranks.mesh, ranks.layout
    if mesh is not None and layout.pipeline > 1:
        from train.pipeline import Pipeline, cut_model  # others need not import torch.distributed.pipelining

        cut_model(model, mesh.get_local_rank("pipeline"), layout.pipeline)
        layers = len(model.own_blocks)
        policy = named_policy(training.recompute, layers)
    model.to(ranks.device)
    if mesh is not None and layout.tensor > 1:
        split_model(model, mesh["tensor"], sequence=layout.sequence)
    if policy is None:
        policy = choose_policy(block_bytes(stage, model, ranks), layers, training.recompute_budget_mib << 20)
    model.set_recompute(policy)
    if mesh is not None and ranks.sharded:
        shard_model(model, mesh["data"], PRODUCTS[training.precision])
    if mesh is not None and layout.pipeline > 1:
        model.pipeline = Pipeline(model, mesh, layout.schedule, lambda: precision_context(training.precision, ranks.device))
    return model


def block_bytes(stage: Stage, model: Decoder, ranks: Ranks) -> BlockBytes:
    """Measure what a block holds for the backward pass, on the stage's largest shape."""
    shape = (stage.micro_rows(ranks.data_ranks), stage.settings.row_length)
    numbers = torch.zeros(shape, dtype=torch.int64, device=ranks.device)
    x = torch.zeros(*shape, stage.settings.model.width, device=ranks.device)
    if model.split is not None:
        x = model.split.positions(x)
    with precision_context(stage.settings.training.precision, ranks.device):
        return measure_block(model.own_blocks[0], x, model.packing(numbers, numbers))


def build_stage_optimizer(stage: Stage, model: Decoder) -> torch.optim.Optimizer:
    """Build the stage's optimizer.

    Raises:
        RecipeError: an unknown optimizer or option.
    """
    training = stage.settings.training
    settings = training.optimizer
    twice = settings.options.get("estimator") == "hutchinson"
    if training.compile and (settings.name == "kfac" or twice):
        raise RecipeError(
            f"{settings.name}{' with estimator: hutchinson' * twice} looks into the model's passes, which compiled blocks do not let it",
            where="training.compile",
            fix="set it to false",
        )
    if twice and training.recompute != "none":
        raise RecipeError("second derivatives need every activation", where="training.recompute", fix="set it to none")
    if twice:
        model.flex = False  # flex attention has no second derivative
    options = dict(settings.options)
    if training.precision == "bf16_weights":
        able = [name for name, factory in OPTIMIZERS.items() if "rounding" in inspect.signature(factory).parameters]
        if settings.name in OPTIMIZERS and settings.name not in able:
            raise RecipeError(
                f"{settings.name!r} cannot write weights of precision bf16_weights",
                where="training.optimizer.name",
                fix=f"use bf16, which keeps FP32 weights, or one of {', '.join(sorted(able))}",
            )
        options = {"rounding": "master", **options}
    try:
        return build_optimizer(
            settings.name,
            model.named_parameters(),
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            embedding_lr=settings.embedding_lr,
            warmup_steps=training.schedule.warmup_steps,
            width_ratio=stage.settings.model.width_ratio,
            compiled=training.compile and not why_not(next(model.parameters()).device),
            **options,
        )
    except (ValueError, TypeError) as error:
        raise RecipeError(str(error), where="training.optimizer") from error
