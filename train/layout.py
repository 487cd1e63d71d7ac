"""Which layout a stage has on so many ranks, and what of its settings a layout cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.errors import RecipeError
from schemas.parallel import ParallelSettings
from schemas.settings import StageSettings

_WHERE = "training.parallel"
_PIPED = ("adamw", "adafactor", "came", "lion", "sgd", "muon")
"""Optimizers whose rule takes each parameter by itself, from the step's gradient alone."""


def layout_for(settings: StageSettings, world: int) -> ParallelSettings:
    """The layout of a stage on ``world`` ranks; on one rank it is whole.

    Raises:
        RecipeError: a layout that the ranks or the model do not divide by, or a setting that it cannot do; by field.
    """
    parallel = settings.training.parallel
    layout = ParallelSettings(parallel) if isinstance(parallel, str) else parallel
    _check_numbers(layout)
    if world == 1:
        return ParallelSettings()
    group = layout.tensor * layout.pipeline
    if world % group:
        raise RecipeError(
            f"{layout.tensor} tensor ranks by {layout.pipeline} pipeline ranks do not divide {world} ranks",
            where=_WHERE,
            fix=f"start a multiple of {group} ranks, or change the layout",
        )
    for field, wrong in _mistakes(settings, layout, sharded=layout.data == "shard" and world > group):
        raise RecipeError(wrong, where=f"training.{field}", fix="change it, or training.parallel")
    return layout


def _check_numbers(layout: ParallelSettings) -> None:
    for field, value in (("tensor", layout.tensor), ("pipeline", layout.pipeline)):
        if value < 1:
            raise RecipeError(f"{value} is below 1", where=f"{_WHERE}.{field}")
    if layout.sequence and layout.tensor == 1:
        raise RecipeError("positions are split over the ranks of tensor, and there is one", where=f"{_WHERE}.sequence", fix="set tensor")
    if layout.schedule != "1f1b" and layout.pipeline == 1:
        raise RecipeError("there is no pipeline that it could order", where=f"{_WHERE}.schedule", fix="set pipeline")


def _mistakes(settings: StageSettings, layout: ParallelSettings, *, sharded: bool) -> Iterator[tuple[str, str]]:
    """(field of ``training``, what is wrong) of everything that a layout cannot do."""
    model, training = settings.model, settings.training
    optimizer, tensor = training.optimizer, layout.tensor
    for name, value in (("heads", model.heads), ("kv_heads", model.all_kv_heads), ("ff_width", model.inner_width)):
        if value % tensor:
            yield "parallel.tensor", f"{tensor} does not divide the model's {name}, {value}"
    if layout.sequence and settings.row_length % tensor:
        yield "parallel.tensor", f"{tensor} does not divide the row length, {settings.row_length}, whose positions are split"
    if layout.pipeline > model.layers:
        yield "parallel.pipeline", f"{layout.pipeline} ranks for {model.layers} blocks: each needs one"
    split, piped = sharded or tensor > 1, layout.pipeline > 1
    if training.precision == "bf16_weights" and (split or piped):
        yield "precision", "it keeps weights of two types, and parameters that are spread over ranks have one"
    if training.compile and (split or piped):
        yield "compile", "it has not been shown to work with blocks that are spread over ranks"
    if optimizer.name in ("kfac", "lbfgs") and (split or piped):
        yield "optimizer.name", f"{optimizer.name} needs the gradients of the whole model on every rank"
    if piped and optimizer.name not in (*_PIPED, "kfac", "lbfgs"):
        yield "optimizer.name", f"a pipeline takes {', '.join(_PIPED)}, not {optimizer.name}"
    if optimizer.options.get("estimator") == "hutchinson" and split:
        yield "optimizer.options", "second derivatives need whole parameters"
