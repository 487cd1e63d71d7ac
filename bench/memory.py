"""A plan's memory (weights, gradients, optimizer, activations) against the bytes of tensors alive in a real step, by recomputation policy.

    python bench/memory.py [--layers 8] [--width 256] [--length 256] [--rows 4]

Each model does three micro-batches with AdamW, its state there from the second on; the most bytes alive in the third are what is compared.
``wide`` is attention in FP32, which CPUs without AMX do over short rows and the plan leaves out: on a GPU it does not happen.
"""

from __future__ import annotations

import argparse
import sys

import torch
from live_bytes import LiveBytes

from pipelines.memory import memory
from schemas.settings import ModelSettings, TrainSettings
from train import attention
from train.model import Decoder
from train.optim import build_optimizer
from train.policy import named_policy
from train.precision import precision_context

WORDS = 4096


def peak(settings: ModelSettings, recompute: str, precision: str, rows: int, length: int) -> tuple[int, int]:
    """Parameters, and the most bytes alive in a micro-batch once gradients and the optimizer's state are there."""
    numbers = torch.zeros((rows, length), dtype=torch.int64)
    with LiveBytes() as live:
        model = Decoder(settings, WORDS, length, recompute=named_policy(recompute, settings.layers))
        optimizer = build_optimizer("adamw", model.named_parameters(), lr=1e-3)
        for micro in range(3):
            with precision_context(precision, torch.device("cpu")):
                loss = model(numbers, numbers, numbers, numbers).sum()
            loss.backward()
            del loss
            if micro == 1:
                optimizer.step()
                live.peak = live.now
    return model.parameter_count(), live.peak


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in {"layers": 8, "width": 256, "length": 256, "rows": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    settings = ModelSettings(layers=options.layers, width=options.width, heads=options.width // 64)
    usual = attention._WIDE_TO
    print(f"{options.layers} layers of {options.width}, {options.rows} rows of {options.length} tokens; MiB")
    for precision in ("fp32", "bf16"):
        for recompute in ("none", "full", "every_2", "every_4", "sqrt", "selective"):
            line = f"{precision:5s} {recompute:10s}"
            for name, wide in (("narrow", 0), ("wide", usual)):
                attention._WIDE_TO = wide
                count, found = peak(settings, recompute, precision, options.rows, options.length)
                training = TrainSettings(precision=precision, recompute=recompute, micro_batch_rows=options.rows)
                said = memory(settings, training, count, WORDS, options.length).total or 0
                line += f"   {name} plan {said / 2**20:7.1f} measured {found / 2**20:7.1f} ratio {said / found:.3f}"
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
