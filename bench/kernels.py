"""Kernels beside eager torch, torch.compile and Liger-Kernel: achieved over floor on CUDA; linear + cross-entropy on the CPU.

    python bench/kernels.py [WIDTH]

On CUDA every line gives microseconds and the share of the copy bandwidth, measured in the same run, that the floor's bytes amount to.
Without CUDA those lines read NOT RUN. WIDTH (512) is that of the hidden states of the CPU's linear + cross-entropy at 8,192 x 32,000. Every
row is also appended to kernels.jsonl as soon as it is known.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.autograd.profiler import profile

from train.kernels import (
    adafactor_step,
    adamw_step,
    add_rms_norm,
    bias_gelu_dropout,
    came_step,
    grad_norm,
    layer_norm,
    linear_cross_entropy,
    rms_norm,
    rope,
    sophia_step,
    swiglu,
)
from train.kernels.dispatch import Impl

Outputs = torch.Tensor | tuple[torch.Tensor, ...]
ROWS, WIDTH, VOCABULARY = 8192, 4096, 32000


@dataclass(frozen=True)
class Case:
    """One operation at one size: its inputs, the floor in bytes per element of ``elements``, and who computes it."""

    name: str
    inputs: tuple[torch.Tensor, ...]
    elements: int
    floor: tuple[int, int]
    ours: Callable[..., Outputs]
    peers: dict[str, Callable[..., Outputs]] = field(default_factory=dict)


def cases(device: str, rows: int, width: int) -> list[Case]:
    """Return every memory-bound operation at (rows, width) in BF16, weights in FP32."""

    def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype, requires_grad=True)

    x, other, weight, bias = made(rows, width), made(rows, width), made(width, dtype=torch.float32), made(width, dtype=torch.float32)
    q, k = made(4, rows // 4, width // 128, 128), made(4, rows // 4, max(1, width // 512), 128)
    angle = torch.rand(rows // 4, 64, device=device)
    cos, sin = angle.cos(), angle.sin()

    def gelu(x: torch.Tensor, b: torch.Tensor, impl: Impl) -> torch.Tensor:
        return bias_gelu_dropout(x, b, 0.1, 1, 2, impl=impl)

    size = rows * width
    found = [
        Case("rms_norm", (x, weight), size, (4, 6), lambda x, w, impl: rms_norm(x, w, impl=impl)),
        Case("add_rms_norm", (x, other, weight), size, (8, 8), lambda x, r, w, impl: add_rms_norm(x, r, w, impl=impl)),
        Case("layer_norm", (x, weight, bias), size, (4, 6), lambda x, w, b, impl: layer_norm(x, w, b, impl=impl)),
        Case("swiglu", (x, other), size, (6, 10), lambda gate, up, impl: swiglu(gate, up, impl=impl)),
        Case("bias_gelu_dropout", (x, bias), size, (4, 6), gelu),
        Case("rope", (q, k), q.numel() + k.numel(), (4, 4), lambda q, k, impl: rope(q, k, cos, sin, impl=impl)),
    ]
    try:
        from liger_kernel.transformers import functional as liger
    except ImportError:
        return found
    found[0].peers["liger"] = lambda x, w: liger.liger_rms_norm(x, w, 1e-6)
    found[2].peers["liger"] = lambda x, w, b: liger.liger_layer_norm(x, w, b, 1e-5)
    found[3].peers["liger"] = liger.liger_swiglu
    whole = torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None]
    found[5].peers["liger"] = lambda q, k: liger.liger_rope(q.transpose(1, 2), k.transpose(1, 2), *whole)
    return found


def on_cuda() -> None:
    """Print every memory-bound kernel beside its peers, and the multi-tensor steps."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    bandwidth = 2 * source.numel() / seconds(lambda: target.copy_(source))
    print(f"{torch.cuda.get_device_name()}: copies at {bandwidth / 1e9:,.0f} GB/s\n")
    print(f"{'operation':<20} {'':<9} {'forward us':>10} {'of floor':>9} {'backward us':>12} {'of floor':>9}")
    for case in cases("cuda", ROWS, WIDTH):
        runs: dict[str, Callable[..., Outputs]] = {name: _with(case.ours, name) for name in ("triton", "compile", "eager")}
        for name, run in {**runs, **case.peers}.items():
            forward, backward = both_ways(run, case.inputs)
            shares = [case.elements * floor / bandwidth / taken for floor, taken in zip(case.floor, (forward, backward), strict=True)]
            keep(operation=case.name, by=name, forward_us=forward * 1e6, backward_us=backward * 1e6, of_floor=shares)
            print(f"{case.name:<20} {name:<9} {forward * 1e6:>10.1f} {shares[0]:>9.1%} {backward * 1e6:>12.1f} {shares[1]:>9.1%}")
    print(f"\n{'step':<20} {'us':>10} {'of floor':>9}   100 M parameters, FP32")
    for name, step, floor in steps("cuda", 24, 2048):
        taken = seconds(step)
        keep(step=name, us=taken * 1e6, of_floor=24 * 2048 * 2048 * floor / bandwidth / taken)
        print(f"{name:<20} {taken * 1e6:>10.1f} {24 * 2048 * 2048 * floor / bandwidth / taken:>9.1%}")


def steps(device: str, count: int, width: int) -> list[tuple[str, Callable[[], object], int]]:
    """Return the multi-tensor steps over ``count`` square matrices, with their bytes per parameter."""
    weights, grads, first, second = ([torch.rand(width, width, device=device) for _ in range(count)] for _ in range(4))
    means, residuals = (tuple([torch.ones(width, device=device) for _ in range(count)] for _ in range(2)) for _ in range(2))
    tuned = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    for weight, grad in zip(weights, grads, strict=True):
        weight.grad = grad
    return [
        ("adamw", lambda: adamw_step(weights, grads, first, second, step=10, lr=1e-4), 28),
        ("adamw, torch fused", tuned.step, 28),
        ("sophia", lambda: sophia_step(weights, grads, first, second, step=10, lr=1e-4), 24),
        ("adafactor", lambda: adafactor_step(weights, grads, (means[0], means[1]), step=10), 24),
        ("came", lambda: came_step(weights, grads, first, (means[0], means[1]), (residuals[0], residuals[1]), step=10, lr=1e-4), 32),
        ("gradient norm", lambda: grad_norm(grads), 4),
    ]


def both_ways(run: Callable[..., Outputs], inputs: tuple[torch.Tensor, ...]) -> tuple[float, float]:
    """Return seconds of a forward and of a backward pass."""
    results = run(*inputs)
    outputs = results if isinstance(results, tuple) else (results,)
    upstream = [torch.randn_like(output) for output in outputs]
    backward = seconds(lambda: torch.autograd.grad(outputs, inputs, upstream, retain_graph=True))
    with torch.no_grad():
        return seconds(lambda: run(*inputs)), backward


def seconds(run: Callable[[], object]) -> float:
    """Return the median seconds of a run on CUDA, its inputs cold in L2."""
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    taken = []
    for attempt in range(35):
        flush.zero_()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        run()
        after.record()
        torch.cuda.synchronize()
        if attempt >= 5:
            taken.append(before.elapsed_time(after) / 1e3)
    return statistics.median(taken)


def linear_loss(device: str, width: int, dtype: torch.dtype, rounds: int) -> None:
    """Print linear + cross-entropy, forward and backward, naive and by chunks, turn by turn."""
    torch.manual_seed(0)
    hidden = torch.randn(ROWS, width, device=device).to(dtype).requires_grad_()
    weight = (torch.randn(VOCABULARY, width, device=device) / width**0.5).to(dtype).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (ROWS,), device=device)
    found = {
        "naive": lambda: F.cross_entropy((hidden @ weight.t()).float(), targets),
        "chunked": lambda: linear_cross_entropy(hidden, weight, targets, reduction="mean"),
    }
    if hasattr(F, "linear_cross_entropy"):
        found["torch's own"] = lambda: F.linear_cross_entropy(hidden, weight, targets)
    exact = _exact(hidden, weight, targets)
    losses, taken, peaks = {}, {name: [] for name in found}, {}
    for attempt in range(rounds + 1):
        for name, loss_of in found.items():
            hidden.grad = weight.grad = None
            if not attempt:
                peaks[name], losses[name] = peak(device, loss_of)
            else:
                _wait(device)
                started = time.perf_counter()
                loss_of().backward()
                _wait(device)
                taken[name].append(time.perf_counter() - started)
    size = f"{ROWS:,} x {VOCABULARY:,}, width {width}, {dtype}, {device}"
    print(f"\nlinear + cross-entropy, {size}, forward and backward, {rounds} rounds in turn")
    print(f"{'':<12} {'seconds':>8} {'of naive':>9} {'peak MiB':>9} {'of naive':>9} {'loss - exact':>13}")
    for name in found:
        pace = statistics.median(mine / other for mine, other in zip(taken[name], taken["naive"], strict=True))
        share = peaks[name] / peaks["naive"]
        keep(operation="linear + cross-entropy", size=size, by=name, of_naive_time=pace, of_naive_peak=share, off=losses[name] - exact)
        print(
            f"{name:<12} {statistics.median(taken[name]):>8.2f} {pace:>9.2f} {peaks[name] / 2**20:>9,.0f} {share:>9.3f} "
            f"{losses[name] - exact:>13.1e}"
        )


def peak(device: str, loss_of: Callable[[], torch.Tensor]) -> tuple[int, float]:
    """Return the most bytes allocated at once beyond the inputs, by the allocator's account, and the loss."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss = loss_of()
        loss.backward()
        return torch.cuda.max_memory_allocated() - before, loss.item()
    with profile(profile_memory=True) as record:
        loss = loss_of()
        loss.backward()
    live = most = 0
    for event in record.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most, loss.item()


def keep(**row: object) -> None:
    """Append a row to the file of results."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    with Path("kernels.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"device": device, "torch": str(torch.__version__), **row}) + "\n")


def _exact(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the mean loss in float64 of the inputs as they are, 512 rows at a time."""
    with torch.no_grad():
        wide = weight.double().t()
        return sum(
            F.cross_entropy(h.double() @ wide, t, reduction="sum").item()
            for h, t in zip(hidden.split(512), targets.split(512), strict=True)
        ) / len(targets)


def _with(function: Callable[..., Outputs], impl: str) -> Callable[..., Outputs]:
    return lambda *inputs: function(*inputs, impl=impl)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Print what this machine can measure, and name what it cannot."""
    width = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    if torch.cuda.is_available():
        on_cuda()
        linear_loss("cuda", 4096, torch.bfloat16, 10)
    else:
        names = ["rms_norm", "add_rms_norm", "layer_norm", "swiglu", "bias_gelu_dropout", "rope", "the multi-tensor steps"]
        print(f"achieved over floor of {', '.join(names)}: NOT RUN (no CUDA device)")
    for dtype in (torch.float32, torch.bfloat16):
        linear_loss("cpu", width, dtype, 3)


if __name__ == "__main__":
    main()
