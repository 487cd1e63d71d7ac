"""One NVIDIA GPU: speed and utilisation of the trainer's step, bandwidths of the kernels, optimizer steps, the loader's stall.

    python bench/gpu.py PART [--out rows.jsonl] [--tiny]

Parts, each made to take under ten minutes; every row is appended to the file as soon as it is known:

* ``124M``, ``350M``, ``760M``, ``1B``: tokens/s and MFU, BF16 and torch.compile, under each recomputation policy; a policy that does not
  fit the memory gives a row that says so;
* ``kernels``: bytes that must move over the time it took, and that over the device's copy bandwidth, measured in the same run;
* ``optimizers``: milliseconds of a step over the 124M model;
* ``loader``: time to read and move a batch over the time of the 124M step that it feeds.

``--tiny`` runs every line on tiny sizes, on a CPU too, to show that the script works; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loader import write_lot

from schemas.model import SIZES, ModelSettings
from train.compiling import compile_blocks, why_not
from train.data import RowReader
from train.device_peak import peak_flops
from train.kernels import bias_gelu_dropout, linear_cross_entropy, rms_norm, rope, swiglu
from train.metrics import flops_per_position
from train.model import Decoder
from train.optim import build_optimizer
from train.passes import to_device
from train.policy import named_policy

POLICIES = ("none", "selective", "halves", "sqrt", "full")
OPTIMIZERS = ("adamw", "adafactor", "came", "sophia", "muon", "lion")
ROWS = {"124M": 16, "350M": 16, "760M": 8, "1B": 8}
Row = dict[str, Any]


class Bench:
    """The device and the sizes of this run."""

    def __init__(self, tiny: bool) -> None:
        self.tiny = tiny
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cpu" and not tiny:
            raise SystemExit("no CUDA device: use --tiny to try the script")
        self.name = torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU"
        self.vocabulary, self.length, self.rounds = (512, 128, 2) if tiny else (50_304, 2048, 10)

    def seconds(self, work: Callable[[], Any]) -> float:
        """Median wall time after three runs that warm up."""
        times = []
        for number in range(3 + self.rounds if not self.tiny else 2):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            if number >= (0 if self.tiny else 3):
                times.append(time.perf_counter() - began)
        return statistics.median(times)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def settings(self, size: str) -> ModelSettings:
        return ModelSettings(layers=2, width=64, heads=2) if self.tiny else ModelSettings(size=size, **SIZES[size])  # type: ignore[arg-type]

    def batch(self, rows: int) -> list[torch.Tensor]:
        tokens = torch.randint(0, self.vocabulary, (rows, self.length), device=self.device)
        half = self.length // 2  # two documents a row
        documents = (torch.arange(self.length, device=self.device) >= half).long().expand(tokens.shape)
        return [tokens, tokens.roll(-1, 1), documents, (torch.arange(self.length, device=self.device) % half).expand(tokens.shape)]


def steps(bench: Bench, size: str) -> Iterator[Row]:
    """A training step of one model under each policy."""
    settings, rows = bench.settings(size), 2 if bench.tiny else ROWS[size]
    for name in POLICIES:
        row: Row = {"part": size, "recompute": name, "rows": rows, "length": bench.length}
        try:
            row |= _trained(bench, settings, name, rows)
        except torch.OutOfMemoryError:
            row["failed"] = "out of memory"
        torch._dynamo.reset()  # graphs of other models count against the limit of recompilations
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        yield row


def _trained(bench: Bench, settings: ModelSettings, recompute: str, rows: int) -> Row:
    """Speed and memory of a model's step; the model is gone when it returns, or fails."""
    policy = named_policy(recompute, settings.layers)
    assert policy is not None
    model = Decoder(settings, bench.vocabulary, bench.length, seed=1, recompute=policy).to(bench.device)
    if not bench.tiny and not why_not(bench.device):
        compile_blocks(model)
    optimizer = build_optimizer("adamw", model.named_parameters(), lr=1e-4)
    batch = bench.batch(rows)
    tokens = rows * bench.length / bench.seconds(lambda: _step(bench, model, optimizer, batch))
    found = {"tokens_per_second": tokens, "mfu": tokens * flops_per_position(model) / peak_flops(bench.device, torch.bfloat16)}
    return {**found, "memory_gib": torch.cuda.max_memory_allocated() / 2**30} if bench.device.type == "cuda" else found


def _step(bench: Bench, model: Decoder, optimizer: torch.optim.Optimizer, batch: list[torch.Tensor]) -> None:
    with torch.autocast(bench.device.type, torch.bfloat16):
        loss = model(*batch).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def kernels(bench: Bench) -> Iterator[Row]:
    """Forward and backward of each kernel against the bytes that must move."""
    count, width = (64, 64) if bench.tiny else (16_384, 4096)
    make = lambda *shape: torch.randn(*shape, device=bench.device, dtype=torch.bfloat16, requires_grad=True)  # noqa: E731
    source, target = (torch.empty(count * width, dtype=torch.bfloat16, device=bench.device) for _ in range(2))
    copy = 2 * source.nbytes / bench.seconds(lambda: target.copy_(source))
    yield {"part": "kernels", "kernel": "copy", "gb_per_second": copy / 1e9}
    x, up, gain = make(count, width), make(count, width), make(width)
    q, k = make(1, count, width // 64, 64), make(1, count, width // 64, 64)
    angles = torch.rand(count, 32, device=bench.device)
    cases: dict[str, tuple[Callable[[], Any], int]] = {
        "rms_norm": (lambda: rms_norm(x, gain, 1e-5), 10),
        "swiglu": (lambda: swiglu(x, up), 16),
        "bias_gelu_dropout": (lambda: bias_gelu_dropout(x, gain, 0.1, 1, 1), 10),
        "rope": (lambda: sum(part.sum() for part in rope(q, k, angles.cos(), angles.sin())), 16),
    }
    for name, (work, floor) in cases.items():
        seconds = bench.seconds(lambda run=work: torch.autograd.backward(run().sum()))
        rate = floor * count * width / seconds
        yield {"part": "kernels", "kernel": name, "floor_bytes": floor, "gb_per_second": rate / 1e9, "of_copy": rate / copy}
    weight, targets = make(bench.vocabulary, width), torch.randint(0, bench.vocabulary, (count,), device=bench.device)
    seconds = bench.seconds(lambda: linear_cross_entropy(x, weight, targets, reduction="mean").backward())
    flops = 6 * count * width * bench.vocabulary / seconds
    yield {"part": "kernels", "kernel": "linear_cross_entropy", "of_peak_flops": flops / peak_flops(bench.device, torch.bfloat16)}


def optimizers(bench: Bench) -> Iterator[Row]:
    """A step of each optimizer."""
    for name in OPTIMIZERS:
        model = Decoder(bench.settings("124M"), bench.vocabulary, bench.length, seed=1).to(bench.device)
        optimizer = build_optimizer(name, model.named_parameters(), lr=1e-4, warmup_steps=10)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        seconds = bench.seconds(optimizer.step)
        yield {"part": "optimizers", "optimizer": name, "milliseconds": seconds * 1e3, "parameters": model.parameter_count()}


def loader(bench: Bench) -> Iterator[Row]:
    """Reading and moving a batch, over the step that it feeds."""
    rows = 2 if bench.tiny else ROWS["124M"]
    model = Decoder(bench.settings("124M"), bench.vocabulary, bench.length, seed=1).to(bench.device)
    optimizer = build_optimizer("adamw", model.named_parameters(), lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        tokens = np.random.default_rng(0).integers(0, bench.vocabulary, (rows * 32, bench.length)).astype(np.uint16)
        reader = RowReader(Path(folder), [write_lot(Path(folder), "a", "a", tokens, bench.vocabulary, documents_per_row=2)])
        numbers = np.random.default_rng(1).permutation(rows * 32)[:rows]
        read = bench.seconds(lambda: to_device(reader.read(np.zeros(rows, dtype=np.int64), numbers, rows), bench.device))
    batch = bench.batch(rows)
    step = bench.seconds(lambda: _step(bench, model, optimizer, batch))
    yield {"part": "loader", "read_ms": read * 1e3, "step_ms": step * 1e3, "stall": read / step}


def main() -> None:
    parts: dict[str, Callable[[Bench], Iterator[Row]]] = {
        **{size: lambda bench, size=size: steps(bench, size) for size in ROWS},
        "kernels": kernels,
        "optimizers": optimizers,
        "loader": loader,
    }
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=[*parts, "all"])
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"))
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    bench = Bench(options.tiny)
    for part in parts if options.part == "all" else [options.part]:
        for row in parts[part](bench):
            line = json.dumps({"device": bench.name, "torch": str(torch.__version__), "tiny": options.tiny, **row})
            with options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main()
