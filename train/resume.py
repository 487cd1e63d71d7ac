"""Where a process starts: the stage's newest checkpoint, the earlier stage's, or random weights; and what it refuses to start from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from schemas.errors import LakeError
from schemas.settings import ModelSettings, read_outcome
from schemas.store import folder_here
from train.checkpoint import Checkpoint, load
from train.interchange import IMPORTED
from train.model import Decoder
from train.named_state import by_name, for_optimizer
from train.optim.sharded import ShardedOptimizer
from train.parallel import Ranks
from train.sharding import cut_optimizer, load_weights
from train.stage import Stage

Facts = dict[str, Any]
_SIZES = {name: value for name, value in dataclasses.asdict(ModelSettings()).items() if name != "size"}
"""What a model had that was saved before a field was there."""


def facts(stage: Stage, optimizer: torch.optim.Optimizer, *, compiled: bool, ranks: Ranks) -> tuple[Facts, Facts]:
    """What the losses depend on: settings that change what is computed, and circumstances that change its last bits."""
    training = stage.settings.training
    computed = {name: getattr(training, name) for name in ("precision", "tf32", "z_loss", "clip")}
    for name in ("optimizer", "schedule", "plateau", "spikes"):
        value = getattr(training, name)
        computed[name] = None if value is None else {k: v for k, v in dataclasses.asdict(value).items() if k != "rewinds"}
    computed["optimizer"]["options"].pop("impl", None)  # a circumstance: who computes, not what
    device, layout = ranks.device, ranks.layout
    split = {"tensor": layout.tensor, "pipeline": layout.pipeline}
    beyond = ", ".join(f"{name} {size}" for name, size in split.items() if size > 1)
    circumstances = {
        "ranks": f"{ranks.world} ({beyond}{' by positions' * layout.sequence})" if beyond else ranks.world,
        **({} if device.type == "cuda" else {"threads": torch.get_num_threads()}),  # a GPU's sums do not depend on them
        "compiled": compiled,
        **({"optimizer_impl": optimizer.computed_by} if isinstance(optimizer, ShardedOptimizer) else {}),
        "micro_batch_rows": stage.micro_rows(ranks.data_ranks),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
    }
    return json.loads(json.dumps(computed)), circumstances


def check_resume(checkpoint: Checkpoint, stage: Stage, computed: Facts, circumstances: Facts, *, allow_mismatch: bool) -> str:
    """Refuse to resume from a checkpoint with which the loss sequence would not be that of an uninterrupted run.

    Returns:
        What differs where that is allowed: another number of ranks, or anything with ``allow_mismatch``. Empty when nothing does.

    Raises:
        LakeError: the past was planned anew, or a difference that is not allowed; says what differs.
    """
    state, where = checkpoint.state, str(checkpoint.root / checkpoint.path)
    if state["past"] != stage.past(state["step"]):
        raise LakeError(
            "segments that were already trained on have changed since this checkpoint",
            where=where,
            fix="restore the run's segments.json; only segments that no step has reached may change",
        )
    before = _circumstances(state, circumstances)
    changed = _differences(_computed(state), computed)
    another = circumstances["ranks"] != before["ranks"]
    if not another:
        changed += _differences(before, circumstances)
    if changed and not allow_mismatch:
        raise LakeError(
            f"resuming would not continue the same loss sequence: {'; '.join(changed)}",
            where=where,
            fix=_fix(before, circumstances),
        )
    if another:
        changed.append(f"{circumstances['ranks']} ranks, {before['ranks']} before: the same rows, but losses may differ in their last bits")
    return "; ".join(changed)


def _computed(state: Facts) -> Facts:
    """A checkpoint's settings; those saved before ``optimizer_impl`` was a circumstance have it among the options."""
    optimizer = state["computed"]["optimizer"]
    options = {name: value for name, value in optimizer["options"].items() if name != "impl"}
    return {**state["computed"], "optimizer": {**optimizer, "options": options}}


def _circumstances(state: Facts, now: Facts) -> Facts:
    """A checkpoint's circumstances; those saved before ``optimizer_impl`` was recorded had today's, unless C++ may be new."""
    before: Facts = state["circumstances"]
    known = "optimizer_impl" in now and not (before["compiled"] and now["optimizer_impl"].startswith("native"))
    return ({"optimizer_impl": now["optimizer_impl"]} if known else {}) | before


def _fix(before: Facts, now: Facts) -> str:
    fix = "run with what the checkpoint was made with, or accept another sequence with --allow-mismatch"
    impl, asked = before.get("optimizer_impl"), now.get("optimizer_impl")
    if impl is not None and asked is not None and impl.split()[0] != asked.split()[0]:
        fix += f"; optimizer.options.impl: {impl.split()[0]} takes the checkpoint's steps"
    return fix


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [f"{name} is {now[name]}, was {before.get(name, 'not recorded')}" for name in now if before.get(name) != now[name]]


def pretrained(stage: Stage) -> Path | None:
    """Folder of the model in Hugging Face's form that the stage starts from, if it does."""
    folder = stage.settings.init_from
    return folder_here(stage.root / folder) if folder is not None and folder.startswith(f"{IMPORTED}/") else None


def earlier_checkpoint(stage: Stage) -> Checkpoint | None:
    """Open the checkpoint that a stage starts from, as the earlier stage's outcome names it; None for a first stage.

    Raises:
        LakeError: the earlier stage has not ended, its checkpoint is missing or damaged, or it ended elsewhere than this stage begins.
    """
    folder = stage.settings.init_from
    if folder is None or pretrained(stage) is not None:
        return None
    path = stage.root / folder
    outcome = read_outcome(path)
    if outcome is None:
        raise LakeError("the earlier stage has not ended", where=str(path), fix=f"train it first: python -m train {stage.root} {folder}")
    checkpoint = load(stage.root, outcome.checkpoint)
    if (outcome.next_step, outcome.next_row) != (stage.first_step, stage.segments[0].first_row):
        raise LakeError(
            f"the earlier stage ended before step {outcome.next_step}, row {outcome.next_row}; this one begins at step "
            f"{stage.first_step}, row {stage.segments[0].first_row}",
            where=str(path),
            fix="plan this stage again, now that the earlier one has ended",
        )
    return checkpoint


def restore(checkpoint: Checkpoint, model: Decoder, optimizer: torch.optim.Optimizer, shape: Facts, *, same_stage: bool) -> None:
    """Load model and optimizer; from an earlier stage the optimizer keeps its state and takes the new stage's settings.

    Raises:
        LakeError: the model or the optimizer is another.
    """
    state, where = checkpoint.state, str(checkpoint.root / checkpoint.path)
    for what, before, now in (
        ("model", {**state["model"], "settings": _SIZES | state["model"]["settings"]}, json.loads(json.dumps(shape))),
        ("optimizer", state["optimizer"], type(optimizer).__name__),
    ):
        if before != now:
            raise LakeError(
                f"the {what} is another: {now}, the checkpoint has {before}", where=where, fix=f"keep the {what} over all stages"
            )
    load_weights(model, checkpoint.tensors("model"))
    saved = checkpoint.tensors("optimizer")
    if model.absent or "settings" in saved:
        saved = for_optimizer(by_name(saved), optimizer)
    loaded = cut_optimizer(saved, optimizer)
    if not same_stage:
        fresh = optimizer.state_dict()["param_groups"]
        own = {"initial_lr", "lr", *optimizer.defaults}
        if len(fresh) != len(loaded["param_groups"]):
            raise LakeError(
                "the optimizer's parameter groups are others", where=where, fix="keep embedding_lr and weight_decay set or unset"
            )
        for group, new in zip(loaded["param_groups"], fresh, strict=True):
            group.update({name: new[name] for name in own if name in new})
    optimizer.load_state_dict(loaded)
