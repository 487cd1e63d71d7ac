"""A dry run: everything is built, one full step is done on real rows, and nothing is written."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from train.build import build_model, build_stage_optimizer
from train.compiling import compile_blocks, why_not
from train.layout import layout_for
from train.metrics import memory_bytes
from train.optim.shards import local_of
from train.parallel import Ranks
from train.precision import allow_tf32
from train.stage import Stage
from train.step import StepRules, train_step

_MIB = 1 << 20


def dry_run(root: Path, folder: str, ranks: Ranks, *, threads: int = 0) -> str:
    """Build a stage and do its first step twice; return memory by part, and time, as text."""
    stage = Stage.open(root, folder)
    training = stage.settings.training
    ranks = ranks.laid_out(layout_for(stage.settings, ranks.world))
    if threads or training.threads:
        torch.set_num_threads(threads or training.threads)
    allow_tf32(training.tf32)
    model = build_model(stage, ranks)
    optimizer = build_stage_optimizer(stage, model)
    if training.compile and not why_not(ranks.device):
        compile_blocks(model)
    batches = stage.micro_batches(stage.first_step, ranks.data_rank, ranks.data_ranks, alike=ranks.sharded)
    seconds = []
    for _ in range(2):  # the second is free of compilation and first allocations
        began = time.perf_counter()
        result = train_step(
            model,
            optimizer,
            batches,
            StepRules(training),
            ranks=ranks,
            sources=len(stage.sources),
            seed=(stage.settings.seed, stage.first_step),
        )
        seconds.append(time.perf_counter() - began)
    weights = sum(local_of(p).nbytes for p in model.parameters())
    states = sum(local_of(v).nbytes for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor))
    gradients = sum(local_of(p).numel() * (p.grad_dtype or p.dtype).itemsize for p in model.parameters())
    steps = stage.steps * seconds[1]
    return "\n".join(
        [
            f"{stage.settings.stage}: {model.parameter_count():,} parameters, {stage.steps} steps of {stage.batch_rows} rows",
            f"weights    {weights / _MIB:10.1f} MiB",
            f"gradients  {gradients / _MIB:10.1f} MiB",
            f"optimizer  {states / _MIB:10.1f} MiB",
            f"peak       {memory_bytes(ranks.device) / _MIB:10.1f} MiB (whole {'device' if ranks.device.type == 'cuda' else 'process'})",
            f"step       {seconds[1]:10.3f} s, {result.tokens.sum() / seconds[1]:.0f} tokens/s; the first took {seconds[0]:.1f} s",
            f"stage      {steps / 60:10.1f} min without evaluation and checkpoints",
            f"loss {result.loss:.3f}",
        ]
    )
