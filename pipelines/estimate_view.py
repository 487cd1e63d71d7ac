"""Shows what a plan costs: compute, memory, disk, advice, and what a compute budget buys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from pipelines.estimate import Rates, advice, bought, cost, disk_bytes
from pipelines.memory import memory
from schemas.recipe import Recipe

Json = Any


def estimates(recipe: Recipe, whole: Mapping[str, Json], vocabulary: int, rates: Rates, compute: float | None) -> dict[str, Json]:
    """Cost, memory, disk and advice for a forecast, and what a compute budget in FLOPs buys."""
    size, tokens = whole["parameters"], whole["tokens"]
    training = recipe.training_of(recipe.stages[0]) if recipe.stages else recipe.training
    needed = memory(recipe.model, training, size, vocabulary, recipe.pack.row_length)
    return {
        "cost": asdict(cost(size, tokens, rates)),
        "rates": asdict(rates),
        "memory": {**asdict(needed), "total": needed.total},
        "checkpoints": None if needed.optimizer is None else disk_bytes(recipe, needed.weights + needed.optimizer),
        "bought": None if compute is None else bought(compute, size),
        "advice": advice(recipe, whole["steps"], size),
    }


def print_estimates(found: dict[str, Json], console: Console) -> None:
    """Print what a plan costs, with the rates that were assumed."""

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    spent, rates, needed = found["cost"], found["rates"], found["memory"]
    measured, stated = f"{rates['tokens_per_second']:,.0f} tokens/s", f"{rates['tflops']:g} TFLOP/s at {rates['mfu']:.0%}"
    speed = measured if rates["tokens_per_second"] else stated
    energy = in_unit(spent["kwh"], {"GWh": 1e6, "MWh": 1e3, "kWh": 1.0, "Wh": 1e-3, "mWh": 1e-6})
    hours = in_unit(spent["gpu_hours"], {"GPU-hours": 1.0, "GPU-minutes": 1 / 60, "GPU-seconds": 1 / 3600, "GPU-milliseconds": 1 / 3.6e6})
    money = f"{spent['money']:,.2f}" if spent["money"] >= 0.01 or not spent["money"] else "below 0.01"
    say(f"Estimated: {spent['flops']:.2e} FLOPs, {hours}, {energy}, cost {money}")
    say(f"  for one GPU of {speed} (--tflops, --mfu, --rate or --calibrate)")
    say(f"  that draws {rates['watts']:g} W (--watts) and costs {rates['price']:g} an hour (--price)")
    say(f"  time on one: {_duration(spent['gpu_hours'])}, evaluation and checkpoints not counted")
    parts = [f"{name} {_mib(needed[name])}" for name in ("weights", "gradients", "optimizer")]
    say(f"Memory of a rank: {', '.join(parts)}; with activations ({needed['chosen']}) {_mib(needed['total'])}")
    if needed["activations"]:
        say("  activations by recomputation: " + ", ".join(f"{name} {_mib(size)}" for name, size in needed["activations"].items()))
    say(f"Disk for checkpoints: {_mib(found['checkpoints'])}")
    if (buys := found["bought"]) is not None:
        best = f"{_short(buys['parameters'])} parameters on {_short(buys['tokens'])} tokens"
        say(f"{buys['compute']:.2e} FLOPs buy {best} at the compute-optimal ratio, or {_short(buys['tokens_of_this_model'])} tokens here")
    for line in found["advice"]:
        say(f"Advice: {line}")


def in_unit(value: float, units: Mapping[str, float]) -> str:
    """A value in the largest of some units, given from the largest to the smallest, of which it is at least one."""
    name, size = next(((name, size) for name, size in units.items() if value >= size), list(units.items())[-1])
    return f"{value / size:,.0f} {name}" if value >= 1000 * size else f"{value / size:.3g} {name}"


def _duration(hours: float) -> str:
    for unit, name in ((24.0, "days"), (1.0, "h"), (1 / 60, "min"), (1 / 3600, "s")):
        if hours >= 2 * unit:
            return f"{hours / unit:,.1f} {name}"
    return in_unit(hours, {"s": 1 / 3600, "ms": 1 / 3.6e6})


def _mib(size: int | None) -> str:
    return "not known" if size is None else f"{size / 2**20:,.1f} MiB"


def _short(number: float) -> str:
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.3g}"
