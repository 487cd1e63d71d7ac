"""The loop: one for every stage, from the newest checkpoint to the stage's outcome.

What a step does is a function of the state before it and of the step's number; everything else (rows, learning rate, dropout) is computed.
The state is the model, the optimizer, and ``Trainer.state``; a checkpoint holds all of it. Evaluation and early stopping happen between
steps and are part of that state, so a process that dies anywhere repeats exactly what came after its last checkpoint.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch

from schemas.errors import RecipeError
from schemas.settings import Outcome
from schemas.store import lock, publish_json, remove_temporary
from train.checkpoint import Checkpoint, checkpoint_path, newest, prune, save
from train.compiling import compile_blocks, why_not
from train.early_stop import EarlyStop
from train.evaluate import evaluate
from train.interrupt import Interrupt, Interrupted
from train.ledger import Recorder, next_attempt
from train.model import Decoder
from train.optim import OPTIMIZERS, build_optimizer
from train.parallel import Ranks
from train.progress import Progress
from train.recompute import group_size
from train.resume import check_resume, earlier_checkpoint, facts, restore
from train.schedule import scale
from train.stage import Stage
from train.step import StepResult, train_step


def run_stage(
    root: Path, folder: str, ranks: Ranks, interrupt: Interrupt, *, threads: int = 0, allow_mismatch: bool = False
) -> Outcome | None:
    """Train a stage from where it is to its end; None when it had already ended.

    Args:
        root: the lake.
        folder: the stage's folder in it, which holds ``stage.json``.
        ranks: all ranks.
        interrupt: asks to save and leave.
        threads: torch threads; 0 takes the stage's setting.
        allow_mismatch: resume even where the loss sequence will not be that of an uninterrupted run.

    Raises:
        GristmillError: whatever the user can act on.
        Interrupted: asked to leave; everything is saved.
    """
    if (root / folder / "outcome.json").is_file():
        return None
    if not ranks.first:
        return Trainer(Stage.open(root, folder), ranks, interrupt, threads=threads, allow_mismatch=allow_mismatch).run()
    with lock((root / folder).parent / "train.lock", f"training {folder}"):
        remove_temporary(root / folder)
        return Trainer(Stage.open(root, folder), ranks, interrupt, threads=threads, allow_mismatch=allow_mismatch).run()


DRIVEN = ("adafactor", "adamw", "came", "lion", "muon", "sgd", "sophia")
"""Optimizers the loop can drive and resume bit for bit. The others need more than a gradient a step (``lbfgs`` evaluates the loss again,
``schedule_free`` changes its weights to evaluate) or keep state of classes that checkpoints do not load (packages' own)."""


class Trainer:
    """Trains one stage; see ``run_stage``."""

    def __init__(self, stage: Stage, ranks: Ranks, interrupt: Interrupt, *, threads: int = 0, allow_mismatch: bool = False) -> None:
        self.stage, self.ranks, self.interrupt, self.settings = stage, ranks, interrupt, stage.settings
        self.training = training = stage.settings.training
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(threads or training.threads or max(1, (os.cpu_count() or 1) // local_ranks))
        self.model = build_model(stage, ranks)
        self.optimizer = build_stage_optimizer(stage, self.model)
        self.stop = EarlyStop(training.early_stop)
        self.step, self.evaluated, self.skipped = stage.first_step, stage.first_step, 0
        self.heldout: dict[str, float] = {}
        self.best: str | None = None
        self.first_losses = [0.0, 0.0]
        self.recent: deque[tuple[float, float]] = deque(maxlen=training.log_every)
        notices = self._start(allow_mismatch)
        self.progress = Progress(stage.settings.stage, self.step - stage.first_step, stage.steps, shown=ranks.first)
        for notice in notices:
            self.progress.line(notice)

    def _start(self, allow_mismatch: bool) -> list[str]:
        """Load what there is to start from, begin the attempt's records, and return what to tell the user."""
        stage, notices = self.stage, []
        missing = why_not(self.ranks.device) if self.training.compile else ""
        if missing:
            notices.append(f"training without torch.compile: {missing}")
        compiled = self.training.compile and not missing
        self.computed, self.circumstances = facts(stage, compiled=compiled, world=self.ranks.world, device=self.ranks.device)
        checkpoint, faults = newest(stage.root, self.settings.folder)
        notices += [f"passed over a checkpoint: {fault}" for fault in faults]
        if checkpoint is not None:
            different = check_resume(checkpoint, stage, self.computed, self.circumstances, allow_mismatch=allow_mismatch)
            if different:
                notices.append(f"resuming with {different}")
            self._resume(checkpoint)
            notices.append(f"resumed {self.settings.stage} before step {self.step - stage.first_step} of {stage.steps}")
        elif (earlier := earlier_checkpoint(stage)) is not None:
            restore(earlier, self.model, self.optimizer, self.model.as_dict(), same_stage=False)
        if compiled:
            compile_blocks(self.model)
        self.attempt = self.ranks.broadcast(next_attempt((stage.root / self.settings.folder).parent) if self.ranks.first else None)
        self.recorder = Recorder(stage.root, self.settings.folder, self.attempt, self.step, stage.sources, stage.order.lots, self.ranks)
        self.saved = checkpoint.path if checkpoint else None
        self._event("resumed" if checkpoint else "started", self.step, **self.circumstances, passed_over=[str(f) for f in faults])
        self.recorder.flush(self.step)
        return notices

    def run(self) -> Outcome:
        """Train to the stage's end."""
        try:
            while True:
                if self._evaluation_due():
                    self._evaluate()
                if self.stop.fire(self.step, self.stage.first_step, self.stage.end_step) and self.stop.until > self.step:
                    self._event("cooldown", max(self.stage.first_step, self.step - 1), until=self.stop.until)
                if self.step == self.stop.end(self.stage.end_step):
                    return self._finish()
                every = self.training.checkpoint_every
                if every and self.step > self.stage.first_step and (self.step - self.stage.first_step) % every == 0:
                    self._save()
                self._pause()
                self._step()
        except Interrupted:
            self._event("interrupted", max(self.stage.first_step, self.step - 1))
            self._save()
            self.recorder.flush(self.step)
            self.progress.line(f"saved before step {self.step - self.stage.first_step} of {self.stage.steps}; the same command goes on")
            raise
        finally:
            self.progress.close()

    def _pause(self) -> None:
        if self.ranks.any(self.interrupt.came):
            raise Interrupted

    def _step(self) -> None:
        began = time.perf_counter()
        stage, training, step = self.stage, self.training, self.step
        done = step - stage.first_step
        batches = stage.micro_batches(step, self.ranks.rank, self.ranks.world)
        waited = time.perf_counter() - began
        rate = scale(training.schedule, done, stage.steps) * self.stop.factor(step)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate
        result = train_step(
            self.model,
            self.optimizer,
            batches,
            ranks=self.ranks,
            sources=len(stage.sources),
            precision=training.precision,
            clip=training.clip,
            seed=(self.settings.seed, step),
        )
        self.recorder.rows(step, stage.span(step)[0], stage.rows(step))
        for micro, sums in zip(batches, result.pieces, strict=True):
            self.recorder.pieces(step, micro, sums)
        if result.skipped:
            self.skipped += 1
            self._event("skipped", step, loss=repr(result.loss), grad_norm=repr(result.grad_norm))
            self.progress.line(f"step {done}: loss {result.loss}, gradient norm {result.grad_norm}: skipped, nothing was changed")
        else:
            self._count(result)
        self._measure(step, result, rate, time.perf_counter() - began, waited)
        self.step = step + 1

    def _count(self, result: StepResult) -> None:
        """Add a step to the means over the stage's first and last ``log_every`` steps."""
        pair = (float(result.nats.sum()), float(result.tokens.sum()))
        if self.step - self.stage.first_step < self.training.log_every:
            self.first_losses = [a + b for a, b in zip(self.first_losses, pair, strict=True)]
        self.recent.append(pair)

    def _measure(self, step: int, result: StepResult, rate: float, seconds: float, waited: float) -> None:
        tokens = float(result.tokens.sum())
        values = {"loss": result.loss, "grad_norm": result.grad_norm, "lr": self.training.optimizer.lr * rate}
        values |= {
            f"loss/{source}": float(nats / count)
            for source, nats, count in zip(self.stage.sources, result.nats, result.tokens, strict=True)
            if count
        }
        done = step - self.stage.first_step + 1
        if done % self.training.log_every == 0:
            values |= {"tokens_per_second": tokens / seconds, "data_wait_seconds": waited, "skipped_steps": float(self.skipped)}
        if self.ranks.first:
            self.recorder.metrics(step, values)
        self.progress.step(done, result.loss, tokens / seconds)

    def _evaluation_due(self) -> bool:
        done, every = self.step - self.stage.first_step, self.training.eval_every
        due = self.step == self.stop.end(self.stage.end_step) or (every > 0 and done > 0 and done % every == 0)
        return due and self.evaluated != self.step and bool(self.stage.holdout.lots) and self.training.eval_rows > 0

    def _evaluate(self) -> None:
        found = evaluate(
            self.model,
            self.stage.holdout,
            rows_per_source=self.training.eval_rows,
            height=self.stage.micro_rows(self.ranks.world),
            precision=self.training.precision,
            ranks=self.ranks,
            pause=self._pause,
        )
        self.evaluated, self.heldout = self.step, found
        if self.ranks.first:
            self.recorder.metrics(self.step - 1, found)
        value = found[self.stop.monitor]
        if self.stop.update(self.step, value):
            self.best = checkpoint_path(self.settings.folder, self.attempt, self.step)
            self._save()
        sources = "".join(f", {name[8:]} {loss:.3f}" for name, loss in found.items() if name.startswith("heldout/"))
        self.progress.line(
            f"{self.settings.stage}  {self.step - self.stage.first_step}/{self.stage.steps}  held out {found['heldout']:.3f}{sources}"
        )

    def _save(self) -> str:
        """Save a checkpoint before the current step, unless there is one; returns its path."""
        path = checkpoint_path(self.settings.folder, self.attempt, self.step)
        if self.saved == path:
            return path
        began = time.perf_counter()
        self.recorder.flush(self.step)
        if self.ranks.first:
            save(self.stage.root, path, {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, self.state())
        self.ranks.broadcast(None)
        self.saved = path
        if self.ranks.first:
            prune(self.stage.root, self.settings.folder, {self.best or path}, self.training.keep_last)
        self._event("checkpoint", max(self.stage.first_step, self.step - 1), path=path, seconds=round(time.perf_counter() - began, 3))
        return path

    def state(self) -> dict[str, Any]:
        """All state besides the tensors, as JSON."""
        return {
            "run": self.settings.run,
            "stage": self.settings.stage,
            "attempt": self.attempt,
            "step": self.step,
            "row": self.stage.next_row(self.step),
            "past": self.stage.past(self.step),
            "model": self.model.as_dict(),
            "optimizer": type(self.optimizer).__name__,
            "computed": self.computed,
            "circumstances": self.circumstances,
            "early_stop": self.stop.state(),
            "best": self.best,
            "evaluated": self.evaluated,
            "heldout": self.heldout,
            "skipped": self.skipped,
            "first_losses": self.first_losses,
            "recent": list(self.recent),
        }

    def _resume(self, checkpoint: Checkpoint) -> None:
        restore(checkpoint, self.model, self.optimizer, self.model.as_dict(), same_stage=True)
        state = checkpoint.state
        self.step, self.evaluated, self.skipped = state["step"], state["evaluated"], state["skipped"]
        self.heldout, self.best, self.first_losses = state["heldout"], state["best"], state["first_losses"]
        self.recent.extend((nats, tokens) for nats, tokens in state["recent"])
        self.stop.load(state["early_stop"])

    def _finish(self) -> Outcome:
        stage, stop = self.stage, self.training.early_stop
        last = self._save()
        step = self.step
        early = step < stage.end_step
        if stop is not None and stop.restore_best and self.best is not None:
            last, step = self.best, self.stop.best_step
        outcome = Outcome(
            reason="early_stop" if early else "finished",
            detail=self._why(early, step),
            next_row=stage.next_row(step),
            next_step=step,
            checkpoint=last,
            first_loss=self.first_losses[0] / self.first_losses[1] if self.first_losses[1] else math.nan,
            last_loss=sum(n for n, _ in self.recent) / sum(t for _, t in self.recent) if self.recent else math.nan,
            heldout={"all" if name == "heldout" else name[8:]: loss for name, loss in self.heldout.items() if name.startswith("heldout")},
            returned=tuple((a.lot, a.start, a.stop) for a in stage.leftover(step)),
        )
        self._event(outcome.reason, max(stage.first_step, self.step - 1), detail=outcome.detail)
        self.recorder.flush(self.step)
        if self.ranks.first:
            publish_json(stage.root, f"{self.settings.folder}/outcome.json", dataclasses.asdict(outcome))
        self.ranks.broadcast(None)
        self.progress.line(outcome.detail)
        return outcome

    def _why(self, early: bool, step: int) -> str:
        done = self.step - self.stage.first_step
        text = f"{self.settings.stage} trained all its {done} steps"
        if early:
            text = (
                f"{self.settings.stage} stopped early after {done} of {self.stage.steps} steps: {self.stop.monitor} did not fall below "
                f"{self.stop.reference:.4f} in {self.stop.waited} evaluations"
            )
            cooled = self.stop.until - self.stop.fired_at
            text += f"; its last {cooled} steps cooled down" if cooled else ""
        return (
            text if step == self.step else f"{text}; the next stage starts from the best checkpoint, after {step - self.stage.first_step}"
        )

    def _event(self, kind: str, step: int, **detail: Any) -> None:
        if self.ranks.first:
            self.recorder.event(step, kind, **detail)


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
