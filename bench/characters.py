"""nanoGPT's CPU character setting: the trainer's model and step beside a loop written in nanoGPT's way, at equal tokens, in one process.

    python bench/characters.py TEXT [--steps 2000] [--seeds 1] [--threads 2]

TEXT is a file of about 1 MB, for example tiny Shakespeare; the first 90 % are trained on, the rest is validation, characters are tokens.
Both: 4 layers, width 128, 4 heads, 12 rows of 64 characters a step, AdamW with betas .9 and .99, cosine from .001 to .0001 after 100 steps.
The loop in nanoGPT's way: LayerNorm, GELU, learned positions, no dropout, eager FP32. Ours: ``train.model.Decoder`` in BF16, compiled by
block where a compiler is there. Every ``--every`` steps both losses are measured over the whole validation text, outside the clock.
"""

from __future__ import annotations

import argparse
import math
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


def train(
    make: Callable[[int, int], tuple[nn.Module, Loss]],
    vocabulary: int,
    text: np.ndarray,
    held: np.ndarray,
    options: argparse.Namespace,
    seed: int,
) -> list[tuple[int, float, float]]:
    """Steps, seconds and validation loss at each measurement."""
    model, loss = make(vocabulary, seed)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=make is ours)
    draw, seconds, found = np.random.default_rng(seed), 0.0, []
    for step in range(options.steps):
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * scale(SCHEDULE, step, options.steps)
        value = loss(*windows(text, draw.integers(0, len(text) - LENGTH, BATCH)))
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds += time.perf_counter() - began
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            with torch.no_grad():
                starts = np.arange(0, len(held) - LENGTH, LENGTH)[: len(held) // LENGTH // BATCH * BATCH]
                cut = [starts[i : i + BATCH] for i in range(0, len(starts) - BATCH + 1, BATCH)]
                measured = float(np.mean([loss(*windows(held, part)).item() for part in cut]))
            found.append((step + 1, seconds, measured))
            print(f"  {make.__name__:<6} step {step + 1:>5}  {seconds:7.1f} s  validation {measured:.4f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if not options.text.is_file():
        print(f"skipped: no {options.text}")
        return
    torch.set_num_threads(options.threads)
    letters, text = np.unique(np.array(list(options.text.read_text(encoding="utf-8"))), return_inverse=True)
    cut = len(text) * 9 // 10
    for seed in range(options.seeds):
        ends = {make.__name__: train(make, len(letters), text[:cut], text[cut:], options, seed)[-1] for make in (plain, ours)}
        (_, slow, theirs), (_, fast, mine) = ends["plain"], ends["ours"]
        print(
            f"seed {seed}: ours / plain: time {fast / slow:.2f} (compilation included); validation {mine:.4f} against {theirs:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
