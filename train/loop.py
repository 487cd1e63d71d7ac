"""The loop: one for every stage, from the newest checkpoint to the stage's outcome.

What a step does is a function of the state before it and of the step's number; everything else (rows, learning rate, dropout) is computed.
The state is the model, the optimizer, and ``Trainer.state``; a checkpoint holds all of it. Evaluation and early stopping happen between
steps and are part of that state, so a process that dies anywhere repeats exactly what came after its last checkpoint.

The tables (``Recorder``) are written by the loop itself, since a checkpoint counts only what they hold; the live line, trackers and the
user's own code are callbacks.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

import torch

from schemas.settings import Outcome
from schemas.store import publish_json
from train.adapt import adapted
from train.attempts import next_attempt
from train.build import build_model, build_stage_optimizer
from train.callbacks import Callback, StepReport, load_callbacks
from train.checkpoint import Checkpoint, checkpoint_path, newest
from train.choices import Choices, evaluate_choices
from train.compiling import compile_blocks, why_not
from train.early_stop import EarlyStop
from train.evaluate import evaluate
from train.interchange import load_pretrained
from train.interrupt import Interrupt, Interrupted
from train.layout import layout_for
from train.ledger import Recorder
from train.metrics import Meter, step_values
from train.named_state import by_name
from train.optim.packaged import weights_in_use
from train.outcome import StageLosses, stage_outcome
from train.parallel import Ranks
from train.plateau import Plateau
from train.precision import allow_tf32
from train.progress import Progress
from train.resume import check_resume, earlier_checkpoint, facts, pretrained, restore
from train.saving import Saver
from train.schedule import scale
from train.skips import note_skip, times_back
from train.stage import Stage
from train.step import StepRules, train_step
from train.trackers import TRACKERS


class Trainer:
    """Trains one stage, from where it is to its end.

    Attributes:
        stage: the stage.
        ranks: all ranks.
        model: the model.
        optimizer: its optimizer.
        step: the next step's number over the whole run.
        recorder: writes the tables.
        heldout: the last evaluation.
    """

    def __init__(self, stage: Stage, ranks: Ranks, interrupt: Interrupt, *, threads: int = 0, allow_mismatch: bool = False) -> None:
        self.stage, self.interrupt, self.settings = stage, interrupt, stage.settings
        self.ranks = ranks = ranks.laid_out(layout_for(stage.settings, ranks.world))
        self.training = training = stage.settings.training
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(threads or training.threads or max(1, (os.cpu_count() or 1) // local_ranks))
        allow_tf32(training.tf32)
        self.model = build_model(stage, ranks)
        self.optimizer = build_stage_optimizer(stage, self.model)
        self.step, self.evaluated, self.skipped = stage.first_step, stage.first_step, 0
        self.lr_before = self.lr = 0.0  # planned: the earlier stage's last one, and this one's last
        self.rules = StepRules(training)
        self.plateau = Plateau(training.plateau)
        self.stop = EarlyStop(training.early_stop)
        self.losses = StageLosses(training.log_every)
        self.heldout: dict[str, float] = {}
        self.best: str | None = None
        self.choices = [Choices(stage.root, entry) for entry in self.settings.choices]
        self.own_callbacks = load_callbacks(training.callbacks)
        trackers = [TRACKERS[name]() for name in training.trackers]
        self.meter = Meter(self.model, self.optimizer, training.precision, ranks)
        self.save_seconds: float | None = None
        self.saver = Saver(
            stage.root,
            self.settings.folder,
            ranks,
            asynchronous=training.checkpoint_async,
            last=training.keep_last,
            every=training.keep_every,
        )
        notices = self._start(allow_mismatch)
        self.progress = Progress(stage.settings.stage, self.step - stage.first_step, stage.steps, shown=ranks.first)
        self.callbacks: list[Callback] = [self.progress, *trackers, *self.own_callbacks.values()]
        for notice in notices:
            self.progress.line(notice)

    def _start(self, allow_mismatch: bool) -> list[str]:
        """Load what there is to start from, begin the attempt's records, and return what to tell the user."""
        stage, notices = self.stage, []
        missing = why_not(self.ranks.device) if self.training.compile else ""
        if missing:
            notices.append(f"training without torch.compile: {missing}")
        compiled = self.training.compile and not missing
        self.computed, self.circumstances = facts(stage, self.optimizer, compiled=compiled, ranks=self.ranks)
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
            self.lr_before = earlier.state["lr"]
        elif (model_folder := pretrained(stage)) is not None:
            load_pretrained(self.model, model_folder, self.model.as_dict(), self.settings.model)
            notices.append(f"starting from the weights in {model_folder}")
        if compiled:
            compile_blocks(self.model)
        self.attempt = self.ranks.broadcast(next_attempt((stage.root / self.settings.folder).parent) if self.ranks.first else None)
        self.recorder = Recorder(stage.root, self.settings.folder, self.attempt, self.step, stage.sources, stage.order.lots, self.ranks)
        self.saved = checkpoint.path if checkpoint else None
        rewinds = self.training.spikes.rewinds if self.training.spikes else 0
        self.rewinds_left = rewinds - times_back(stage.root / self.settings.folder) if rewinds else 0
        self.event("resumed" if checkpoint else "started", self.step, **self.circumstances, passed_over=[str(f) for f in faults])
        self.recorder.flush(self.step)
        return notices

    def run(self) -> Outcome:
        """Train to the stage's end."""
        try:
            for callback in self.callbacks:
                callback.on_start(self)
            while True:
                if self._evaluation_due():
                    self._evaluate()
                self.stage = adapted(self.stage, self.step, self.evaluated, self.heldout, self.ranks)
                if self.stop.fire(self.step, self.stage.first_step, self.stage.end_step) and self.stop.until > self.step:
                    self.event("cooldown", self._last_step, until=self.stop.until)
                if self.step == self.stop.end(self.stage.end_step):
                    return self._finish()
                if self._checkpoint_due():
                    self._save()
                self._pause()
                self._step()
        except Interrupted:
            self._leave()
            raise
        finally:
            self.saver.leave()
            self.stage.close()
            self.progress.close()

    def _step(self) -> None:
        began = time.perf_counter()
        stage, training, step = self.stage, self.training, self.step
        done = step - stage.first_step
        batches = stage.micro_batches(step, self.ranks.data_rank, self.ranks.data_ranks, alike=self.ranks.sharded)
        waited = time.perf_counter() - began
        rate = self._set_learning_rate()
        result = train_step(
            self.model,
            self.optimizer,
            batches,
            self.rules,
            ranks=self.ranks,
            sources=len(stage.sources),
            seed=(self.settings.seed, step),
        )
        rows = stage.rows(step)
        self.recorder.rows(step, stage.span(step)[0], rows)
        if self.ranks.first_of_rows:
            for micro, sums in zip(batches, result.pieces, strict=True):
                self.recorder.pieces(step, micro, sums)
        if result.skipped:
            note_skip(self, result)
        else:
            self.losses.add(result)
        values = step_values(result, stage.sources, lr=training.optimizer.lr * rate)
        seconds = time.perf_counter() - began
        self.meter.step(result, len(rows.row) * self.settings.row_length, seconds, waited)
        if (done + 1) % training.log_every == 0:
            values |= {**self.meter.values(), "skipped_steps": float(self.skipped)}
        self._record(step, values)
        self.step = step + 1
        report = StepReport(step, done + 1, batches, result, values, float(result.tokens.sum()) / seconds)
        for callback in self.callbacks:
            callback.on_step(self, report)

    def _set_learning_rate(self) -> float:
        """Set the step's learning rate and return it over its peak: what schedule and plateau plan, and an early stop's cool-down."""
        training, done = self.training, self.step - self.stage.first_step
        peak = training.optimizer.lr
        rate = scale(training.schedule, done, self.stage.steps, self.lr_before / peak if peak else 0.0) * self.plateau.factor
        self.lr = peak * rate
        rate *= self.stop.factor(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate
        return rate

    def _evaluation_due(self) -> bool:
        done, every = self.step - self.stage.first_step, self.training.eval_every
        due = self.step == self.stop.end(self.stage.end_step) or (every > 0 and done > 0 and done % every == 0)
        return due and self.evaluated != self.step and bool(self.stage.holdout.lots) and self.training.eval_rows > 0

    def _evaluate(self) -> None:
        height, precision = self.stage.micro_rows(self.ranks.data_ranks), self.training.precision
        with weights_in_use(self.optimizer):
            found = evaluate(
                self.model,
                self.stage.holdout,
                rows_per_source=self.training.eval_rows,
                height=height,
                precision=precision,
                ranks=self.ranks,
                pause=self._pause,
            )
            found |= evaluate_choices(self.model, self.choices, height=height, precision=precision, ranks=self.ranks, pause=self._pause)
        self.evaluated, self.heldout = self.step, found
        self._record(self.step - 1, self.heldout)
        if self.plateau.update(self.heldout):
            self.event("plateau", self._last_step, factor=self.plateau.factor)
        improved = self.stop.update(self.step, self.heldout[self.stop.monitor])
        for callback in self.callbacks:
            callback.on_evaluation(self, self.heldout)
        if improved:  # last, so that the checkpoint has all that the evaluation changed
            self.best = checkpoint_path(self.settings.folder, self.attempt, self.step)
            self._save()

    def _checkpoint_due(self) -> bool:
        done, every = self.step - self.stage.first_step, self.training.checkpoint_every
        return every > 0 and done > 0 and done % every == 0

    def _save(self) -> str:
        """Save a checkpoint before the current step, unless there is one; returns its path."""
        path = checkpoint_path(self.settings.folder, self.attempt, self.step)
        if self.saved == path:
            return path
        began = time.perf_counter()
        self.recorder.flush(self.step)
        with weights_in_use(self.optimizer):
            self.saver.save(
                path,
                self._tensors,
                self.state(),
                {self.best or path},
            )
        self.saved = path
        self.save_seconds, seconds = self.saver.seconds, time.perf_counter() - began
        self.meter.saved(seconds)
        self.event("checkpoint", self._last_step, path=path, seconds=round(seconds, 3))
        for callback in self.callbacks:
            callback.on_checkpoint(self, path, seconds)
        return path

    def _tensors(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict()
        return {"model": self.model.state_dict(), "optimizer": by_name(optimizer) if self.model.absent else optimizer}

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
            "best": self.best,
            "evaluated": self.evaluated,
            "heldout": self.heldout,
            "skipped": self.skipped,
            "save_seconds": self.save_seconds,
            "lr_before": self.lr_before,
            "lr": self.lr,
            "rules": self.rules.state(),
            "plateau": self.plateau.state(),
            "early_stop": self.stop.state(),
            "losses": self.losses.state(),
            "callbacks": {name: callback.state() for name, callback in self.own_callbacks.items()},
        }

    def _resume(self, checkpoint: Checkpoint) -> None:
        restore(checkpoint, self.model, self.optimizer, self.model.as_dict(), same_stage=True)
        state = checkpoint.state
        self.step, self.evaluated, self.skipped = state["step"], state["evaluated"], state["skipped"]
        self.heldout, self.best = state["heldout"], state["best"]
        self.save_seconds = state["save_seconds"]
        self.lr_before, self.lr = state["lr_before"], state["lr"]
        self.rules.load(state["rules"])
        self.plateau.load(state["plateau"])
        self.stop.load(state["early_stop"])
        self.losses.load(state["losses"])
        for name, callback in self.own_callbacks.items():
            if name in state["callbacks"]:
                callback.load(state["callbacks"][name])

    def _pause(self) -> None:
        """Leave if any rank was asked to; every rank must call."""
        if self.ranks.any(self.interrupt.came):
            raise Interrupted

    def _leave(self) -> None:
        self.event("interrupted", self._last_step)
        self._save()
        self.saver.wait()
        self.recorder.flush(self.step)
        self.progress.line(f"saved before step {self.step - self.stage.first_step} of {self.stage.steps}; the same command goes on")
        for callback in self.callbacks:
            callback.on_stop(self, None)

    def _finish(self) -> Outcome:
        stage, stop = self.stage, self.training.early_stop
        last, step = self._save(), self.step
        self.saver.wait()
        if stop is not None and stop.on_stop == "restore_best" and self.best is not None:
            last, step = self.best, self.stop.best_step
        outcome = stage_outcome(stage, self.stop, self.losses, self.heldout, end=self.step, start_next=step, checkpoint=last)
        self.event(outcome.reason, self._last_step, detail=outcome.detail)
        self.recorder.flush(self.step)
        if self.ranks.first:
            publish_json(stage.root, f"{self.settings.folder}/outcome.json", dataclasses.asdict(outcome))
        self.ranks.broadcast(None)
        for callback in self.callbacks:
            callback.on_stop(self, outcome)
        return outcome

    @property
    def _last_step(self) -> int:
        """The last step done in the stage; its first before any."""
        return max(self.stage.first_step, self.step - 1)

    def _record(self, step: int, values: dict[str, float]) -> None:
        if self.ranks.first:
            self.recorder.metrics(step, values)

    def event(self, kind: str, step: int, **detail: Any) -> None:
        """Note an event of a step in the table ``events``."""
        if self.ranks.first:
            self.recorder.event(step, kind, **detail)
