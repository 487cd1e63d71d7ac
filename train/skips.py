"""What follows a skipped step: an event, an end after too many, or after a spike the wish to be rewound.

Failure model. Whoever planned the stage plans it anew from the checkpoint that the trainer names before it leaves. What is asked for is a
function of the stage's state, so a process that dies before or after the file is written asks for the same again; the file goes when the
rewind is done, or a trainer begins.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from schemas.errors import REWIND, GristmillError
from schemas.store import publish_json

if TYPE_CHECKING:
    from train.loop import Trainer
    from train.step import StepResult

ASKED = "rewind.json"


@dataclass(frozen=True)
class Asked:
    """Back to the checkpoint before step ``to``, without the rows of the steps from there to ``spike``, inclusive."""

    to: int
    spike: int


class GoBack(GristmillError):
    """The stage wants to go on from an earlier checkpoint without some rows."""

    exit_code = REWIND


def note_skip(run: Trainer, result: StepResult) -> None:
    """Note a step that changed nothing; its rows stay in the ledger.

    Raises:
        GristmillError: so many in a row were not finite that training cannot recover by itself.
        GoBack: a spike, where the stage rewinds by itself.
    """
    guard, scale, number = run.rules.guard, run.rules.scale, run.step - run.stage.first_step
    if guard.spiked and run.rewinds_left > 0:
        _go_back(run)
    run.skipped += 1
    of_scale = {"loss_scale": scale.value} if scale.dynamic else {}
    run.event("skipped", run.step, why=result.skipped, loss=repr(result.loss), grad_norm=repr(result.grad_norm), **of_scale)
    run.progress.line(
        f"step {number}: loss {result.loss:.4g}, gradient norm {result.grad_norm:.4g}: skipped ({result.skipped}), nothing was changed"
    )
    if guard.in_a_row >= run.training.max_skips:
        run.recorder.flush(run.step + 1)
        raise GristmillError(
            f"the last {guard.in_a_row} steps had a loss or gradient that is not finite",
            where=f"stage {run.settings.stage!r}, step {number}",
            fix="lower optimizer.lr or lengthen schedule.warmup_steps, or use bf16 in place of fp16; a rerun goes on from the last "
            "checkpoint",
        )


def _go_back(run: Trainer) -> None:
    """Leave after a spike, to go on from the last checkpoint without the rows since then."""
    asked = Asked(int(run.saved[-8:]) if run.saved else run.stage.first_step, run.step)
    run.saver.wait()
    run.event("spike", run.step, to=asked.to)
    run.recorder.flush(run.step + 1)
    if run.ranks.first:
        publish_json(run.stage.root, f"{run.settings.folder}/{ASKED}", asdict(asked))
    run.ranks.broadcast(None)
    raise GoBack(
        f"a spike at step {asked.spike}: the stage goes on from step {asked.to} without the rows since then",
        where=f"stage {run.settings.stage!r} of run {run.settings.run!r}",
        fix=f"gristmill run and train do that by themselves; else gristmill rewind {run.settings.run} --to {asked.to} "
        f"--exclude {asked.to}..{asked.spike}",
    )


def asked_back(folder: Path) -> Asked | None:
    """The wish in a stage's folder, if there is one."""
    path = folder / ASKED
    return Asked(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def times_back(folder: Path) -> int:
    """How often a stage has asked to be rewound so far."""
    parts = (pq.read_table(path, columns=["kind"]).column("kind").to_pylist() for path in sorted((folder / "events").glob("*.parquet")))
    return sum(kind == "spike" for kinds in parts for kind in kinds)
