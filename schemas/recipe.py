"""The recipe: everything a run depends on, from sources to stages, validated by pydantic."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from schemas.curation import Alarms, Block, Choices, Decontaminate, Dedup, Holdout, OptOut, RuleEntry, Signal
from schemas.edits import Edit
from schemas.errors import RecipeError, nearest
from schemas.model import ModelSettings, with_size
from schemas.settings import SCHEDULE_OPTIONS, ScheduleSettings, TrainSettings, build
from schemas.sources import Source
from schemas.stages import Pack, Stage, Tokenizer
from schemas.strict import NAME, SQL_NAME, Strict


class Shards(Strict):
    """How the lake's tables are cut; part of what published bytes depend on."""

    bytes: int = Field(default=32_000_000, ge=1)
    """Text bytes in a documents shard, about."""


class Recipe(Strict):
    """A whole run."""

    name: str = Field(pattern=NAME)
    """Run name."""
    seed: int = Field(default=0, ge=-(1 << 63), lt=1 << 63)
    """Seed of every draw, order and initialisation."""
    shuffle_window: int = Field(default=8, ge=1)
    """Row shards whose rows are shuffled together; the order of shards is shuffled too. More mix wider, fewer keep reads of rows closer."""
    sources: dict[Annotated[str, Field(pattern=NAME)], Source] = Field(min_length=1)
    """Sources by name; their order is the order of shards."""
    signals: dict[Annotated[str, Field(pattern=SQL_NAME)], Signal] = {}
    """Signals of the user's own by name, beside those of the signals table."""
    edits: list[Edit] = []
    """Steps that change text, in the order in which they run; signals, rules (without before) and all that follows see edited text."""
    generations: Literal["one", "append"] = "one"
    """What a lake that holds a snapshot does with new files.

    one: everything is curated as if it were new. append: new files become a generation of their own: documents kept before stay kept, new
    ones are compared with them, and lots of earlier generations never change. Changed files and rules are refused."""
    rules: list[RuleEntry] = []
    """Rules in the order in which they are reported."""
    decontaminate: Decontaminate | None = None
    """Evaluation sets that no document may hold."""
    block: Block = Block()
    """Block lists of URLs."""
    opt_out: OptOut = OptOut()
    """Documents that someone asked not to use."""
    dedup: Dedup = Dedup()
    """Deduplication."""
    alarms: Alarms = Alarms()
    """When deduplication looks faulty."""
    memory_bytes: int | None = Field(default=None, ge=256 << 20)
    """Memory that steps over the whole corpus may use before they spill to the disk; null is half of the machine's. Changes no result."""
    holdout: Holdout = Holdout()
    """Held-out documents."""
    choices: dict[Annotated[str, Field(pattern=NAME)], Choices] = {}
    """Multiple-choice sets by name."""
    tokenizer: Tokenizer = Tokenizer()
    """Tokenizer."""
    pack: Pack = Pack()
    """Packing."""
    shards: Shards = Shards()
    """Shard sizes."""
    model: ModelSettings = ModelSettings()
    """Model."""
    start_from: str | None = None
    """Folder of a Hugging Face Llama or GPT-2 model (config.json, safetensors), relative to the recipe's: the first stage starts from its
    weights, and model takes its sizes from it. Its tokenizer.json must be the recipe's tokenizer."""
    training: TrainSettings = TrainSettings()
    """Training, for all stages."""
    stages: list[Stage] = []
    """Curriculum, in order."""

    @field_validator("stages")
    @classmethod
    def _unique(cls, stages: list[Stage]) -> list[Stage]:
        names = [stage.name for stage in stages]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two stages are called {name!r}")
        return stages

    @field_validator("model", mode="before")
    @classmethod
    def _named_size(cls, model: Any) -> Any:
        return with_size(model) if isinstance(model, dict) else model

    @field_validator("model")
    @classmethod
    def _fits(cls, model: ModelSettings) -> ModelSettings:
        if (mistake := model.mistake()) is not None:
            raise ValueError(": ".join(mistake))
        return model

    @model_validator(mode="after")
    def _known_sources(self) -> Recipe:
        for position, stage in enumerate(self.stages):
            if isinstance(stage.mixture, dict):
                self._know(stage.mixture, f"stages[{position}].mixture")
            self._know(stage.sources or [], f"stages[{position}].sources")
            self._check_changes(stage, position)
        for position, rule in enumerate(self.rules):
            self._know(rule.sources or [], f"rules[{position}].sources")
            if rule.before is not None and rule.before not in (names := [edit.edit for edit in self.edits]):
                raise ValueError(
                    f"rules[{position}].before names {rule.before!r}, which is no edit of the recipe{nearest(rule.before, names)}"
                )
        for name, signal in self.signals.items():
            self._know(signal.sources or [], f"signals.{name}.sources")
        for position, edit in enumerate(self.edits):
            self._know(edit.sources or [], f"edits[{position}].sources")
        return self

    def _check_changes(self, stage: Stage, position: int) -> None:
        """What a stage says of other stages, row lengths and sources."""
        where = f"stages[{position}]"
        before = [earlier.name for earlier in self.stages[:position]]
        if stage.adaptive is not None:
            self._know(stage.adaptive.start or [], f"{where}.adaptive.start")
            if isinstance(stage.adaptive.reference, dict):
                self._know(stage.adaptive.reference, f"{where}.adaptive.reference")
        for name in stage.replay.stages if stage.replay else ():
            if name not in before:
                raise ValueError(f"{where}.replay names {name!r}, which is no earlier stage{nearest(name, before)}")
            self._refuse_once(self.stages[before.index(name)], where)
        if stage.blend is not None and not before:
            raise ValueError(f"{where}.blend: there is no stage before it")
        for length in stage.length_warmup:
            if length not in self.pack.lengths:
                raise ValueError(f"{where}.length_warmup: no rows of {length} tokens are packed; add {length} to pack.lengths")

    def _refuse_once(self, replayed: Stage, where: str) -> None:
        """Refuse to replay documents that no budget allows a second time, which is known before anything is read."""
        for name in replayed.mixture if isinstance(replayed.mixture, dict) else ():
            if self.sources[name].repeats is None and self.sources[name].epochs <= 1:
                anew = " and generations to one, if the lake has documents of it" if self.generations == "append" else ""
                raise ValueError(
                    f"{where}.replay: stage {replayed.name!r} uses source {name!r}, whose documents may be used once: "
                    f"set sources.{name}.max_epochs to 2{anew}, or leave out the replay"
                )

    def training_of(self, stage: Stage, where: str = "") -> TrainSettings:
        """A stage's training settings: the recipe's, changed by the stage's own.

        Raises:
            RecipeError: a change that names no setting, has the wrong type, or leaves no rows for a step.
        """
        base, own = asdict(self.training), stage.training.get("schedule")
        if isinstance(own, dict) and own.get("name", base["schedule"]["name"]) != base["schedule"]["name"]:
            base["schedule"] |= {name: getattr(ScheduleSettings, name) for name in SCHEDULE_OPTIONS}  # another schedule has no such options
        merged = merge(base, stage.training)
        where = where or f"stages.{stage.name}.training"
        settings: TrainSettings = build(TrainSettings, merged, where)
        for name in ("batch_rows", "micro_batch_rows"):
            if getattr(settings, name) < 1:
                raise RecipeError(f"{getattr(settings, name)} is below 1", where=f"{where}.{name}")
        _refuse_no_amount(asdict(settings), where)
        return settings

    def _know(self, names: Any, where: str) -> None:
        for name in names:
            if name not in self.sources:
                raise ValueError(f"{where} names an unknown source {name!r}{nearest(name, self.sources)}")


def _refuse_no_amount(value: Any, where: str) -> None:
    """Refuse numbers that are infinite, none, or below 0: no setting of the trainer but optimizers' own has a meaning for them.

    Raises:
        RecipeError: names the field.
    """
    for name, inner in value.items() if isinstance(value, dict) else ():
        if name != "options":
            _refuse_no_amount(inner, f"{where}.{name}")
    if isinstance(value, float | int) and not 0 <= value < math.inf:
        raise RecipeError(f"{value} is no number from 0 on", where=where)


def merge(base: Any, over: Any) -> Any:
    """Mappings merge field by field; anything else is replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: merge(base[key], value) if key in base else value for key, value in over.items()}}
    return over
