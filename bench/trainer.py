"""The trainer's step beside a hand-written loop with the same settings and a nanoGPT-style eager FP32 loop, in turn in one process.

    python bench/trainer.py [--rounds 6] [--steps 4]
    python bench/trainer.py --recompute [--processor]

About 5 M parameters in 4 layers, 16 rows of 256 tokens, BF16 autocast and torch.compile by block on the CPU. The hand-written loop has the
same model, fused AdamW, clipping and schedule, its batches prepared before the clock starts, and records nothing. The eager loop is FP32
with whole logits, causal attention and torch's default AdamW. Accuracy: losses of the first two are compared step by step. Last, the run is
saved, resumed by a new trainer, and both continue: the losses must be equal bit for bit.

With ``--recompute`` instead: 16 blocks, forward and backward, eager BF16, under each recomputation policy in turn: the most bytes alive at
once beside weights and gradients (there from a pass before, and the tied embedding's two on their way to them), the time, and whether the
gradients are those without recomputation bit for bit. ``--processor`` takes the processor's time of one thread in place of the clock, on a
machine that others use too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from live_bytes import LiveBytes
from loader import write_lot

from schemas.segments import Allotment, Segment, SourceShare, Stream, segments_hash, write_segments
from schemas.settings import ModelSettings, OptimizerSettings, ScheduleSettings, StageSettings, TrainSettings
from schemas.store import publish_json
from train.callbacks import Callback, StepReport
from train.compiling import compile_blocks
from train.interrupt import Interrupt
from train.loop import Trainer
from train.model import Decoder
from train.parallel import Ranks
from train.policy import choose_policy, named_policy
from train.recompute import measure_block
from train.schedule import scale
from train.stage import Stage

VOCABULARY, LENGTH, BATCH, ROWS = 8192, 256, 16, 16 * 400
MODEL = ModelSettings(layers=4, width=256, heads=4)
TRAINING = TrainSettings(
    precision="bf16",
    compile=True,
    batch_rows=BATCH,
    micro_batch_rows=BATCH,
    eval_every=0,
    checkpoint_every=0,
    log_every=10,
    optimizer=OptimizerSettings(lr=1e-3),
    schedule=ScheduleSettings(warmup_steps=20),
)


def write_stage(root: Path) -> Stage:
    ranks = np.random.default_rng(0).zipf(1.3, (ROWS, LENGTH)) % VOCABULARY
    lot = write_lot(root, "code", "code", ranks.astype(np.uint16), VOCABULARY, documents_per_row=2)
    segment = Segment("bench", 0, ROWS, 0, BATCH, 1, 4, (SourceShare("code", 1, (Stream(1, (Allotment("code", 0, ROWS),)),)),))
    write_segments(root, "runs/r/segments.json", [segment])
    stage = StageSettings(
        "r", "bench", 0, "runs/r/0-bench", "runs/r/segments.json", segments_hash([segment]), 0, 0, None, 1, VOCABULARY, LENGTH,
        MODEL, TRAINING, (lot,), (),
    )  # fmt: skip
    publish_json(root, "runs/r/0-bench/stage.json", json.loads(json.dumps(dataclasses.asdict(stage))))
    return Stage.open(root, "runs/r/0-bench")


def hand_written(stage: Stage, steps: int) -> Callable[[int], float]:
    """The same computation with nothing around it."""
    model = Decoder(MODEL, VOCABULARY, LENGTH, stage.settings.seed)
    compile_blocks(model)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
    batches = []
    for step in range(steps):
        batch = stage.micro_batches(step, 0, 1)[0].batch
        inputs = [torch.from_numpy(a) for a in (batch.tokens, batch.targets(), batch.documents(), batch.positions())]
        batches.append((inputs, batch.valid_tokens))

    def step(number: int) -> float:
        inputs, count = batches[number]
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * scale(TRAINING.schedule, number, stage.steps)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(*inputs).sum() / count
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


class Plain(torch.nn.Module):
    """The decoder's weights and sizes, computed as nanoGPT does: causal attention over the whole row, whole logits, mean loss."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder
        self.cos, self.sin = decoder.cos[None, None], decoder.sin[None, None]

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * self.cos - second * self.sin, second * self.cos + first * self.sin], -1)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.decoder.embedding(tokens)
        size = (*tokens.shape, MODEL.heads, MODEL.width // MODEL.heads)
        for block in self.decoder.blocks:
            y = torch.nn.functional.rms_norm(x, (MODEL.width,), block.attention_norm.weight, 1e-5)
            q, k, v = (part(y).view(size).transpose(1, 2) for part in (block.attention.q, block.attention.k, block.attention.v))
            y = torch.nn.functional.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)
            x = x + block.attention.out(y.transpose(1, 2).reshape(x.shape))
            y = torch.nn.functional.rms_norm(x, (MODEL.width,), block.feed_forward_norm.weight, 1e-5)
            y = torch.nn.functional.silu(block.feed_forward.gate(y)) * block.feed_forward.up(y)
            x = x + block.feed_forward.down(y)
        x = torch.nn.functional.rms_norm(x, (MODEL.width,), self.decoder.norm.weight, 1e-5)
        logits = x @ self.decoder.embedding.weight.T
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def eager(stage: Stage, steps: int) -> Callable[[int], float]:
    """The same model, eager FP32."""
    model = Plain(Decoder(MODEL, VOCABULARY, LENGTH, stage.settings.seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    batches = [stage.micro_batches(step, 0, 1)[0].batch for step in range(steps)]
    inputs = [(torch.from_numpy(b.tokens), torch.from_numpy(b.targets())) for b in batches]

    def step(number: int) -> float:
        loss = model(*inputs[number])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


class LastLoss(Callback):
    """The loss of the last step, in place of what is shown."""

    loss = float("nan")

    def on_step(self, run: Trainer, report: StepReport) -> None:
        self.loss = report.result.loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=4, help="steps of a round")
    parser.add_argument("--recompute", action="store_true", help="measure recomputation only")
    parser.add_argument("--processor", action="store_true", help="of --recompute: the processor's time of one thread")
    options = parser.parse_args()
    if options.recompute:
        if options.processor:
            torch.set_num_threads(1)
        recomputation(options.rounds, time.process_time if options.processor else time.perf_counter)
        return
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), options.rounds, options.steps)


def run(root: Path, rounds: int, steps: int) -> None:
    stage, ranks = write_stage(root), Ranks(0, 1, torch.device("cpu"))
    began = time.perf_counter()
    trainer = Trainer(stage, ranks, Interrupt())
    trainer.callbacks[:] = [last := LastLoss()]

    def ours(number: int) -> float:
        assert trainer.step == number
        trainer._step()
        return last.loss

    total = (rounds + 1) * steps
    engines = {"gristmill": ours, "hand-written": hand_written(stage, total), "eager FP32": eager(stage, total)}
    times: dict[str, list[float]] = {name: [] for name in engines}
    losses: dict[str, list[float]] = {name: [] for name in engines}
    print(f"{trainer.model.parameter_count() / 1e6:.2f} M parameters, {BATCH} x {LENGTH} tokens, {torch.get_num_threads()} threads")
    for round_ in range(rounds + 1):
        for name in engines if round_ % 2 else reversed(engines):
            for number in range(round_ * steps, (round_ + 1) * steps):
                tick = time.perf_counter()
                losses[name].append(engines[name](number))
                if round_:
                    times[name].append(time.perf_counter() - tick)
        if not round_:
            print(f"compiled and warm after {time.perf_counter() - began:.1f} s")
    middle = {name: statistics.median(values) for name, values in times.items()}
    for name, seconds in middle.items():
        print(f"{name:14s} {seconds * 1e3:7.1f} ms/step  {BATCH * LENGTH / seconds:7.0f} tokens/s  last loss {losses[name][-1]:.4f}")
    ratios = [a / b for a, b in zip(times["gristmill"], times["hand-written"], strict=True)]
    paired = 1 / statistics.median(ratios)
    print(f"hand-written over gristmill {middle['hand-written'] / middle['gristmill']:.3f} (median of paired ratios {paired:.3f})")
    print(f"eager FP32 over gristmill   {middle['eager FP32'] / middle['gristmill']:.2f}")
    worst = max(abs(a - b) for a, b in zip(losses["gristmill"], losses["hand-written"], strict=True))
    print(f"largest difference of loss from the hand-written loop: {worst:.2e}")
    trainer._save()
    resumed = Trainer(stage, ranks, Interrupt())
    resumed.callbacks[:] = [again := LastLoss()]
    pairs = []
    for _ in range(steps):
        trainer._step()
        resumed._step()
        pairs.append((last.loss, again.loss))
    same = all(a == b for a, b in pairs) and all(map(torch.equal, trainer.model.parameters(), resumed.model.parameters()))
    print(f"resumed losses and weights equal bit for bit over {steps} steps: {same}")
    sys.exit(not same)


def recomputation(rounds: int, clock: Callable[[], float]) -> None:
    policies = ("none", "selective", "halves", "full", "every_2", "sqrt", "every_8", "every_16", "auto")
    model = Decoder(dataclasses.replace(MODEL, layers=16, dropout=0.1), VOCABULARY, LENGTH, 1)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, VOCABULARY, (4, LENGTH)))
    rest = (tokens.roll(-1, 1), torch.zeros_like(tokens), torch.arange(LENGTH).expand(tokens.shape))

    with torch.autocast("cpu", torch.bfloat16):
        sizes = measure_block(model.blocks[0], torch.zeros(4, LENGTH, MODEL.width), model.packing(rest[1], rest[2]))
    print(f"auto: {choose_policy(sizes, 16)}, of a block's input of {sizes.boundary:,} bytes and {sizes.inside:,} inside")

    def gradients(policy: str, *, fresh: bool = True) -> list[torch.Tensor | None]:
        model.set_recompute(named_policy(policy, 16) or choose_policy(sizes, 16))
        model.zero_grad(set_to_none=fresh)
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(tokens, *rest).sum()
        loss.backward()
        return [p.grad for p in model.parameters()]

    expected = gradients("none")
    peaks, equal = {}, {}
    for policy in policies:
        equal[policy] = all(map(torch.equal, expected, gradients(policy)))
        with LiveBytes() as live:
            gradients(policy, fresh=False)
        peaks[policy] = live.peak - 2 * model.embedding.weight.nbytes
    times: dict[str, list[float]] = {policy: [] for policy in policies}
    for round_ in range(rounds):
        for policy in policies if round_ % 2 else reversed(policies):
            tick = clock()
            gradients(policy)
            times[policy].append(clock() - tick)
    for policy in policies:
        slower = statistics.median(a / b for a, b in zip(times[policy], times["none"], strict=True))
        print(
            f"{policy:8s} {peaks[policy] / (1 << 20):7.1f} MiB ({peaks[policy] / peaks['none']:4.0%})  "
            f"{slower:.2f} of the time (median of paired ratios)  gradients equal bit for bit: {equal[policy]}"
        )
    sys.exit(not all(equal.values()))


if __name__ == "__main__":
    main()
