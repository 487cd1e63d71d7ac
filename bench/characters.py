"""nanoGPT's CPU character setting: the trainer's model and step beside a loop written in nanoGPT's way, at equal tokens, in one process.

    python bench/characters.py TEXT [--steps 2000] [--seeds 1] [--first 0] [--threads 2]
    python bench/characters.py TEXT --time 40 [--threads 2]

TEXT is a file of about 1 MB, for example tiny Shakespeare; the first 90 % are trained on, the rest is validation, characters are tokens.
Both: 4 layers, width 128, 4 heads, 12 rows of 64 characters a step, AdamW with betas .9 and .99, cosine from .001 to .0001 after 100 steps.
The loop in nanoGPT's way: LayerNorm, GELU, learned positions, no dropout, eager FP32. Ours: ``train.model.Decoder`` in BF16, compiled by
block where a compiler is there. Every ``--every`` steps both losses are measured over the whole validation text, outside the clock.
Losses do not depend on how busy the machine is, times do: ``--time`` takes that many rounds of ten steps of each in turn, in one process,
after twenty steps of both, and prints milliseconds a step, the ratio of each pair of rounds, and what compiling took.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from schemas.settings import ModelSettings, ScheduleSettings
from train.compiling import compile_blocks, why_not
from train.model import Decoder
from train.precision import precision_context
from train.schedule import scale

LENGTH, BATCH, LAYERS, WIDTH, HEADS = 64, 12, 4, 128, 4
SCHEDULE = ScheduleSettings("cosine", warmup_steps=100, min_ratio=0.1)
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (part.view(rows, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Plain(nn.Module):
    """The model in nanoGPT's way."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, vocabulary, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                scaled = 0.02 / math.sqrt(2 * LAYERS) if name.endswith(("out.weight", "down.weight")) else 0.02
                nn.init.normal_(weight, std=scaled)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def plain(vocabulary: int, seed: int) -> tuple[nn.Module, Loss]:
    torch.manual_seed(seed)
    model = Plain(vocabulary)
    return model, model


def ours(vocabulary: int, seed: int) -> tuple[nn.Module, Loss]:
    model = Decoder(ModelSettings(layers=LAYERS, width=WIDTH, heads=HEADS), vocabulary, LENGTH, seed)
    device = torch.device("cpu")
    if not why_not(device):
        compile_blocks(model)

    def loss(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        document = torch.zeros_like(tokens)
        place = torch.arange(tokens.shape[1]).expand_as(tokens).contiguous()
        with precision_context("bf16", device):
            return model(tokens, targets, document, place).mean()

    return model, loss


def windows(text: np.ndarray, starts: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.from_numpy(text[starts[:, None] + np.arange(LENGTH + 1)])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Run:
    """A model, its optimizer and the text it draws from.

    Attributes:
        step: steps done.
        seconds: what they took.
    """

    def __init__(
        self, make: Callable[[int, int], tuple[nn.Module, Loss]], vocabulary: int, text: np.ndarray, steps: int, seed: int
    ) -> None:
        self.model, self.loss = make(vocabulary, seed)
        decay = [p for p in self.model.parameters() if p.ndim > 1]
        rest = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=make is ours)
        self.draw, self.text, self.steps, self.step, self.seconds = np.random.default_rng(seed), text, steps, 0, 0.0

    def advance(self) -> None:
        """Do one step."""
        began = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * scale(SCHEDULE, self.step, self.steps)
        value = self.loss(*windows(self.text, self.draw.integers(0, len(self.text) - LENGTH, BATCH)))
        self.optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.seconds += time.perf_counter() - began
        self.step += 1

    @torch.no_grad()
    def measure(self, held: np.ndarray) -> float:
        """Loss over the whole validation text."""
        starts = np.arange(0, len(held) - LENGTH, LENGTH)[: len(held) // LENGTH // BATCH * BATCH]
        cut = [starts[i : i + BATCH] for i in range(0, len(starts) - BATCH + 1, BATCH)]
        return float(np.mean([self.loss(*windows(held, part)).item() for part in cut]))


def train(
    make: Callable[[int, int], tuple[nn.Module, Loss]],
    vocabulary: int,
    text: np.ndarray,
    held: np.ndarray,
    options: argparse.Namespace,
    seed: int,
) -> tuple[float, float]:
    """Seconds and validation loss at the end."""
    run = Run(make, vocabulary, text, options.steps, seed)
    while run.step < options.steps:
        run.advance()
        if run.step % options.every == 0 or run.step == options.steps:
            measured = run.measure(held)
            print(f"  {make.__name__:<6} step {run.step:>5}  {run.seconds:7.1f} s  validation {measured:.4f}", flush=True)
    return run.seconds, measured


def in_turn(vocabulary: int, text: np.ndarray, steps: int, rounds: int) -> None:
    """Steps of both in turn, ten at a time."""
    runs = [Run(make, vocabulary, text, steps, 0) for make in (plain, ours)]
    for run in runs:
        for _ in range(20):
            run.advance()
    print(f"first twenty steps, compilation included: plain {runs[0].seconds:.1f} s, ours {runs[1].seconds:.1f} s")
    took: list[list[float]] = [[], []]
    for round_ in range(rounds):
        for which in (0, 1) if round_ % 2 else (1, 0):
            before = runs[which].seconds
            for _ in range(10):
                runs[which].advance()
            took[which].append((runs[which].seconds - before) * 100)
    slow, fast = (statistics.median(values) for values in took)
    ratio = statistics.median(b / a for a, b in zip(*took, strict=True))
    print(f"plain {slow:.1f} ms a step (least {min(took[0]):.1f}), ours {fast:.1f} (least {min(took[1]):.1f}); ours / plain {ratio:.2f}")
    extra = runs[1].seconds - sum(took[1]) / 100 - 20 * fast / 1e3
    print(f"over {steps} steps: plain {steps * slow / 1e3:.0f} s, ours {steps * fast / 1e3 + extra:.0f} s, {extra:.0f} of them to compile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time", type=int, default=0, help="rounds of ten steps of each in turn, in place of training")
    options = parser.parse_args()
    if not options.text.is_file():
        print(f"skipped: no {options.text}")
        return
    torch.set_num_threads(options.threads)
    letters, text = np.unique(np.array(list(options.text.read_text(encoding="utf-8"))), return_inverse=True)
    cut = len(text) * 9 // 10
    if options.time:
        in_turn(len(letters), text[:cut], options.steps, options.time)
        return
    for seed in range(options.first, options.first + options.seeds):
        ends = {make.__name__: train(make, len(letters), text[:cut], text[cut:], options, seed) for make in (plain, ours)}
        (slow, theirs), (fast, mine) = ends["plain"], ends["ours"]
        print(
            f"seed {seed}: ours / plain: time {fast / slow:.2f} (compilation included); validation {mine:.4f} against {theirs:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
