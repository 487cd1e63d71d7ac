"""Settings of the trainer: plain dataclasses, so that ``train`` needs nothing beyond torch, numpy and pyarrow.

The recipe validates the same classes through pydantic. A stage's resolved file (``stage.json``) holds one ``StageSettings`` and is all
that ``python -m train`` reads besides the lake's shards. ``__pydantic_config__`` makes pydantic
refuse unknown keys; it is inert without it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from schemas.adaptive import AdaptiveSettings
from schemas.errors import RecipeError, nearest
from schemas.model import ModelSettings as ModelSettings
from schemas.parallel import ParallelSettings
from schemas.store import read_json


@dataclass(frozen=True)
class OptimizerSettings:
    """An optimizer by name, with parameter groups (no decay on norms, biases and other vectors).

    Attributes:
        name: which of them.
        lr: peak learning rate.
        weight_decay: decoupled weight decay.
        embedding_lr: learning rate of the embeddings; null means ``lr``.
        options: further options of the named optimizer.
    """

    __pydantic_config__ = {"extra": "forbid"}

    name: Literal["adafactor", "adamw", "adamw8bit", "came", "kfac", "lbfgs", "lion", "muon", "schedule_free", "sgd", "soap", "sophia"] = (
        "adamw"
    )
    lr: float = 1e-3
    weight_decay: float = 0.1
    embedding_lr: float | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScheduleSettings:
    """Learning rate over a stage's steps.

    Attributes:
        name: cosine, linear, constant, step, inverse_sqrt or wsd (constant, then a cool-down), after a linear warm-up.
        warmup_steps: steps of warm-up; none under ``start: continue``.
        min_ratio: least learning rate after the warm-up, over its peak; cosine, linear and wsd end at it.
        decay_every: of ``step``: steps between falls.
        decay_factor: of ``step``: what each fall multiplies the learning rate by.
        cooldown: of ``wsd``: steps of the cool-down at the stage's end; below 1, its share of the stage's steps.
        cooldown_shape: of ``wsd``: linear, cosine or one_minus_sqrt.
        start: fresh (warm-up from 0), rewarm (warm-up from the learning rate the earlier stage ended with), or continue (no warm-up: the
            earlier stage's last learning rate takes the place of the peak, so that ``constant`` goes on at it and ``linear`` cools down).
    """

    __pydantic_config__ = {"extra": "forbid"}

    name: Literal["cosine", "linear", "constant", "step", "inverse_sqrt", "wsd"] = "cosine"
    warmup_steps: int = 20
    min_ratio: float = 0.1
    decay_every: int = 100
    decay_factor: float = 0.5
    cooldown: float = 0.2
    cooldown_shape: Literal["linear", "cosine", "one_minus_sqrt"] = "linear"
    start: Literal["fresh", "rewarm", "continue"] = "fresh"


SCHEDULE_OPTIONS = {"decay_every": "step", "decay_factor": "step", "cooldown": "wsd", "cooldown_shape": "wsd"}
"""Options that one schedule alone has."""


@dataclass(frozen=True)
class EarlyStopSettings:
    """End a stage when held-out loss stops falling; what it did not use goes back to the budgets.

    Attributes:
        monitor: ``heldout`` (all sources) or ``heldout/<source>``.
        patience: evaluations in a row without improvement before it fires.
        min_delta: least fall, in nats per token, that counts as improvement.
        min_steps: steps of the stage before it may fire.
        on_stop: next (end at once), cooldown (train on while the learning rate falls to 0, as a schedule cut short never does), or
            restore_best (the next stage starts from the best checkpoint rather than the last, however this one ends).
        cooldown: of ``on_stop: cooldown``: steps that the stage still trains after it fires.
    """

    __pydantic_config__ = {"extra": "forbid"}

    monitor: str = "heldout"
    patience: int = 3
    min_delta: float = 0.0
    min_steps: int = 0
    on_stop: Literal["next", "cooldown", "restore_best"] = "next"
    cooldown: int = 0


@dataclass(frozen=True)
class PlateauSettings:
    """Lower the learning rate when held-out loss stops falling; multiplies the schedule, which is usually ``constant``.

    Attributes:
        monitor: ``heldout`` (all sources) or ``heldout/<source>``.
        factor: what each fall multiplies the learning rate by.
        patience: evaluations in a row without improvement before a fall.
        min_delta: least fall, in nats per token, that counts as improvement.
        min_ratio: the multiplier never falls below it.
    """

    __pydantic_config__ = {"extra": "forbid"}

    monitor: str = "heldout"
    factor: float = 0.5
    patience: int = 2
    min_delta: float = 0.0
    min_ratio: float = 0.01


@dataclass(frozen=True)
class SpikeSettings:
    """Skip a step whose loss or gradient norm lies far above those of the steps before it.

    Attributes:
        window: steps that median and deviation are taken over; it acts once it is full.
        threshold: how many deviations (1.4826 times the median absolute deviation) above the median are too many.
        rewinds: how often a stage goes back by itself to its last checkpoint and on without the rows since then, the spike's included
            (Chowdhery et al. 2022, section 5.1); spikes beyond that are skipped, as all are where it is 0.
    """

    __pydantic_config__ = {"extra": "forbid"}

    window: int = 64
    threshold: float = 8.0
    rewinds: int = 0


@dataclass(frozen=True)
class TrainSettings:
    """How a stage is trained.

    Attributes:
        precision: bf16 (autocast), bf16_weights (matrices kept in BF16 beside an FP32 master, or rounded stochastically under
            ``optimizer.options.rounding: stochastic``), fp16 (autocast with dynamic loss scaling) or fp32.
        tf32: let FP32 products on CUDA round their operands to TF32.
        compile: torch.compile by block.
        recompute: which activations are computed again in the backward pass rather than kept: none, full (every block), every_<k> (k blocks
            together), sqrt (as every_<k> with k the square root of the number of blocks, rounded up), selective (all but products and
            attention), halves (attention and feed-forward each alone, what attention gave is kept; faster than any k), or auto (by a
            measurement at the start: halves where that keeps at most a fifth, else the k of least memory). Results do not depend on it.
        recompute_budget_mib: of ``recompute: auto``: MiB that the blocks' activations may take; the fastest policy within them is chosen.
        batch_rows: rows per optimizer step, over all ranks.
        micro_batch_rows: rows per forward pass on one rank; the rest is accumulated.
        z_loss: weight of the squared log-partition, added to each token's training loss (and to what is recorded of it) so that logits do
            not drift; PaLM has 1e-4, 0 is off. Held-out losses never have it.
        clip: global gradient norm above which gradients are scaled down; 0 is off.
        max_skips: steps in a row whose loss or gradient is not finite, after which training stops with an error.
        eval_every: steps between evaluations on held-out rows; 0 is only at the end.
        eval_rows: held-out rows per source in an evaluation.
        checkpoint_every: steps between checkpoints; 0 is only at the best and at the end.
        checkpoint_async: make checkpoints durable while training goes on; it holds a copy of weights and optimizer in the CPU's memory.
        keep_last: checkpoints kept besides the best.
        keep_every: checkpoints before steps of the run that are multiples of it are kept as well; 0 is none.
        parallel: of several ranks: replicate (each holds everything), shard (parameters, gradients and optimizer states are spread over
            ranks, by block: FSDP2), or a layout with tensor and pipeline parallelism besides.
        log_every: steps between lines of output and metric rows.
        threads: torch threads; 0 means all cores. They are part of what a bit-exact resume needs.
        optimizer: the optimizer.
        schedule: the learning-rate schedule.
        plateau: reduce the learning rate on a plateau; null is off.
        spikes: skip steps that are spikes; null is off. Steps that are not finite are skipped in any case.
        early_stop: early stopping; null is off.
        trackers: where metrics go besides the lake's table: tensorboard, wandb (offline without a key); each needs its package.
        callbacks: local code told of steps, evaluations, checkpoints and the end: ``package.module:function``s that return a
            ``train.callbacks.Callback``.
    """

    __pydantic_config__ = {"extra": "forbid"}

    precision: Literal["bf16", "bf16_weights", "fp16", "fp32"] = "bf16"
    tf32: bool = False
    compile: bool = False
    recompute: str = "none"
    recompute_budget_mib: int = 0
    batch_rows: int = 16
    micro_batch_rows: int = 16
    z_loss: float = 0.0
    clip: float = 1.0
    max_skips: int = 20
    eval_every: int = 50
    eval_rows: int = 32
    checkpoint_every: int = 100
    checkpoint_async: bool = False
    keep_last: int = 2
    keep_every: int = 0
    parallel: Literal["replicate", "shard"] | ParallelSettings = "replicate"
    log_every: int = 10
    threads: int = 0
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    plateau: PlateauSettings | None = None
    spikes: SpikeSettings | None = None
    early_stop: EarlyStopSettings | None = None
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    callbacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class LotShard:
    """One Arrow file of a lot: path relative to the lake, rows, size in bytes, BLAKE2b-128 checksum."""

    path: str
    rows: int
    bytes: int
    checksum: str


@dataclass(frozen=True)
class Lot:
    """A lot as the trainer sees it.

    Attributes:
        lot: lot id.
        source: source name.
        row_length: tokens in a row.
        shards: its files in order; row numbers run through them.
        bytes_per_token: UTF-8 bytes of text per predicted token, for bits per byte.
    """

    lot: str
    source: str
    row_length: int
    shards: tuple[LotShard, ...]
    bytes_per_token: float = 0.0

    @property
    def rows(self) -> int:
        """Rows over all shards."""
        return sum(shard.rows for shard in self.shards)


@dataclass(frozen=True)
class ChoiceSet:
    """A multiple-choice set: its name, and its Arrow file (``schemas.tables.CHOICES``)."""

    name: str
    shard: LotShard


@dataclass(frozen=True)
class StageSettings:
    """Everything the trainer needs for one stage; paths are relative to the lake.

    Attributes:
        run: run name.
        stage: stage name.
        position: place of the stage in the curriculum, from 0.
        folder: the stage's folder, ``runs/<run>/<position>-<stage>``.
        segments: the run's list of segments, ``runs/<run>/segments.json``.
        segments_hash: hash of the segments up to and with this stage's last one.
        first_segment: index of the stage's first segment.
        last_segment: index of its last, inclusive.
        init_from: folder of the earlier stage whose last (or best) checkpoint is the start, or of a model in Hugging Face's form; null
            starts from random weights.
        seed: seed of initialisation and dropout.
        vocabulary: token ids are below it.
        row_length: tokens in a row.
        model: the model.
        training: how it is trained.
        lots: every lot its segments name.
        holdout: held-out lots.
        choices: multiple-choice sets, measured at every evaluation.
        adaptive: how the stage's weights move; null where they stay.
        generations: generations of lots that it was planned from; later ones do not change it.
    """

    run: str
    stage: str
    position: int
    folder: str
    segments: str
    segments_hash: str
    first_segment: int
    last_segment: int
    init_from: str | None
    seed: int
    vocabulary: int
    row_length: int
    model: ModelSettings
    training: TrainSettings
    lots: tuple[Lot, ...]
    holdout: tuple[Lot, ...]
    choices: tuple[ChoiceSet, ...] = ()
    adaptive: AdaptiveSettings | None = None
    generations: int = 1


@dataclass(frozen=True)
class Outcome:
    """How a stage ended (``outcome.json`` in its folder).

    Attributes:
        reason: finished or early_stop.
        detail: a sentence for people.
        next_row: position in the run's order after the last row that was trained on.
        next_step: optimizer step after the last one.
        checkpoint: checkpoint folder that the next stage starts from, relative to the lake.
        first_loss: training loss over the stage's first ``log_every`` steps, nats per token.
        last_loss: the same over its last ones.
        heldout: last held-out loss by source, ``all`` included.
        returned: allotments planned but not used, in order of use.
    """

    reason: Literal["finished", "early_stop"]
    detail: str
    next_row: int
    next_step: int
    checkpoint: str
    first_loss: float
    last_loss: float
    heldout: dict[str, float]
    returned: tuple[tuple[str, int, int], ...]


def build(kind: Any, value: Any, where: str = "") -> Any:
    """Build a settings dataclass (or a value of any type used in one) from JSON.

    Raises:
        RecipeError: an unknown or missing field, or a value of the wrong type; names the field.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        kinds = [a for a in arguments if a is not type(None)]
        return build(next((a for a in kinds if dataclasses.is_dataclass(a) is isinstance(value, dict)), kinds[0]), value, where)
    if origin is Literal:
        if value not in arguments:
            raise RecipeError(f"{value!r} is no choice{nearest(str(value), map(str, arguments))}", where=where)
        return value
    if origin is tuple:
        _demand(isinstance(value, list | tuple), value, "a list", where)
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        return tuple(build(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if origin is dict:
        _demand(isinstance(value, dict), value, "a mapping", where)
        return {key: build(arguments[1], v, f"{where}.{key}") for key, v in value.items()}
    if kind is float:
        _demand(isinstance(value, int | float) and not isinstance(value, bool), value, "a number", where)
        return float(value)
    if kind is int:
        _demand(isinstance(value, int) and not isinstance(value, bool), value, "a whole number", where)
    elif kind in (str, bool):
        _demand(isinstance(value, kind), value, {str: "text", bool: "true or false"}[kind], where)
    return value


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    _demand(isinstance(value, dict), value, "a mapping", where)
    hints = typing.get_type_hints(kind)
    dot = f"{where}." if where else ""
    for name in value:
        if name not in hints:
            raise RecipeError(f"unknown field {name!r}{nearest(name, hints)}", where=f"{dot}{name}")
    for spec in dataclasses.fields(kind):
        if spec.name not in value and spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise RecipeError("missing field", where=f"{dot}{spec.name}")
    return kind(**{name: build(hints[name], v, f"{dot}{name}") for name, v in value.items()})


def _demand(holds: bool, value: Any, wanted: str, where: str) -> None:
    if not holds:
        raise RecipeError(f"{value!r} is not {wanted}", where=where)


def read_stage(path: Path) -> StageSettings:
    """Read a stage's resolved file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecipeError("no such stage file", where=str(path), fix="write it with `gristmill stage RECIPE STAGE`") from error
    except ValueError as error:
        raise RecipeError(f"not JSON: {error}", where=str(path)) from error
    stage: StageSettings = build(StageSettings, value)
    return stage


def read_outcome(folder: Path) -> Outcome | None:
    """Read how the stage in a folder ended; None while it has not."""
    path = folder / "outcome.json"
    if not path.is_file():
        return None
    outcome: Outcome = build(Outcome, read_json(path), str(path))
    return outcome
