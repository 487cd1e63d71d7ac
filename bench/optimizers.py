"""Step time of the own optimizers beside torch's Adafactor and the authors' CAME, and measured state bytes per parameter.

    python bench/optimizers.py [--threads 2] [--rounds 30]

All optimizers step in turn on the same parameters (5.26 M, the shapes of a small decoder), so that noise of the machine meets all
alike; the figure is the lowest of the rounds, with the median beside it, in CPU time of the process where it has one thread (what others do
on the machine then counts less). The authors' CAME is the package came-pytorch 0.1.3, a second one pytorch-optimizer's; what is not
installed is left out. "compile" and "native" are ``impl``; their first step, which compiles, is timed by itself.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import torch
from torch import nn

from train.optim import build_optimizer

SHAPES = [(4096, 256)] + [(256, 256)] * 16 + [(688, 256)] * 8 + [(256, 688)] * 4 + [(256,)] * 9 + [(512, 512)] * 4
LARGE = [(32_000, 1024)] + [(1024, 1024)] * 32 + [(2816, 1024)] * 12 + [(1024,)] * 17


def parameters(shapes: list[tuple[int, ...]]) -> list[tuple[str, nn.Parameter]]:
    torch.manual_seed(0)
    named = [(f"layer{i}", nn.Parameter(torch.randn(shape) * 0.02)) for i, shape in enumerate(shapes)]
    for _, p in named:
        p.grad = torch.randn_like(p) * 1e-3
    return named


def step_times(rounds: int) -> None:
    named = parameters(SHAPES)
    tensors = [p for _, p in named]
    peers = {
        "torch Adafactor": torch.optim.Adafactor(tensors, lr=1e-4, foreach=True),
        "torch AdamW fused": torch.optim.AdamW(tensors, lr=1e-4, fused=True),
    }
    try:
        from came_pytorch import CAME
    except ImportError:
        print("came-pytorch is not installed: no comparison with the authors' CAME")
    else:
        peers["authors' CAME"] = CAME(tensors, lr=1e-4)
    try:
        import pytorch_optimizer
    except ImportError:
        print("pytorch-optimizer is not installed: no comparison with its CAME and AdaFactor")
    else:
        peers["pytorch-optimizer CAME"] = pytorch_optimizer.CAME(tensors, lr=1e-4)
        peers["pytorch-optimizer AdaFactor"] = pytorch_optimizer.AdaFactor(tensors, lr=1e-4)
    own = {
        f"own {name}": build_optimizer(name, named, lr=1e-4, warmup_steps=1) for name in ("adafactor", "came", "sophia", "lion", "adamw")
    }
    for name, impl in itertools.product(("adafactor", "came"), ("compile", "native")):
        optimizer = own[f"own {name}, {impl}"] = build_optimizer(name, named, lr=1e-4, warmup_steps=1, impl=impl)
        began = time.perf_counter()
        optimizer.step()
        print(f"own {name}, {impl}: compiled in {time.perf_counter() - began:.1f} s (less where a cache has it)")
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in peers | own}
    for turn in range(rounds + 2):
        for name, optimizer in (peers | own).items():
            began = clock()
            optimizer.step()
            if turn >= 2:
                times[name].append((clock() - began) * 1e3)
    count = sum(p.numel() for p in tensors)
    print(f"{count / 1e6:.2f} M parameters, {torch.get_num_threads()} threads, {rounds} rounds\n{'':28}{'least ms':>10}{'median ms':>11}")
    for name, values in times.items():
        print(f"{name:28}{min(values):10.2f}{statistics.median(values):11.2f}")
    pairs = [
        (f"own {mine}{how}", theirs)
        for mine, theirs in (("adafactor", "torch Adafactor"), ("came", "authors' CAME"))
        for how in ("", ", compile", ", native")
    ]
    for mine, theirs in pairs:
        if theirs in times:
            least, median = min(times[mine]) / min(times[theirs]), statistics.median(times[mine]) / statistics.median(times[theirs])
            print(f"{mine} / {theirs}: {least:.2f} (least), {median:.2f} (median)")


def billion() -> tuple[int, int, int]:
    """Parameters, rows and columns of all matrices, and elements of vectors of a decoder of a billion parameters."""
    width, inner, layers = 1792, 4864, 24
    matrices = [(50_000, width)] + [(width, width)] * (4 * layers) + [(inner, width)] * (3 * layers)
    vectors = width * (2 * layers + 1)
    return sum(r * c for r, c in matrices) + vectors, sum(r + c for r, c in matrices), vectors


def state_bytes() -> None:
    named = parameters(LARGE)
    print("\n1 B parameters as 24 layers of width 1,792 and a vocabulary of 50,000, by arithmetic: bytes of state per parameter")
    count, rows_and_columns, vectors = billion()
    for name, moment, factored in (("adamw", 8, 0), ("adafactor", 0, 1), ("came", 4, 2), ("sophia", 8, 0), ("adamw8bit", 2 + 8 / 256, 0)):
        whole = {"adafactor": 4, "came": 8}.get(name, moment)
        held = moment * (count - vectors) + factored * 4 * rows_and_columns + whole * vectors
        print(f"{name}: {held / count:.3f}")
    print(f"\n{sum(p.numel() for _, p in named) / 1e6:.1f} M parameters: bytes of state per parameter, measured after a step")
    for name, options in (
        ("adamw", {}),
        ("adamw8bit", {}),
        ("adafactor", {}),
        ("adafactor", {"beta1": 0.9, "momentum_dtype": "bfloat16"}),
        ("came", {}),
        ("came", {"momentum_dtype": "bfloat16"}),
        ("sophia", {}),
        ("lion", {}),
    ):
        try:
            optimizer = build_optimizer(name, named, lr=1e-4, warmup_steps=1, **options)
        except ValueError as error:
            print(error)
            continue
        optimizer.step()
        print(f"{name} {options or ''}: {optimizer.report()['state_bytes_per_parameter']:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    step_times(arguments.rounds)
    state_bytes()


if __name__ == "__main__":
    main()
