"""What follows a skipped step: an event, a line, and an end after too many that were not finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.errors import GristmillError

if TYPE_CHECKING:
    from train.loop import Trainer
    from train.step import StepResult


def note_skip(run: Trainer, result: StepResult) -> None:
    """Note a step that changed nothing; its rows stay in the ledger.

    Raises:
        GristmillError: so many in a row were not finite that training cannot recover by itself.
    """
    guard, scale, number = run.rules.guard, run.rules.scale, run.step - run.stage.first_step
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
