"""What a plan costs: compute, GPU-hours, energy, money, disk; what a compute budget buys; and advice from the usual checklist."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from curate.model_size import CHINCHILLA
from schemas.errors import GristmillError
from schemas.recipe import Recipe

FLOPS_PER_TOKEN = 6
"""Of forward and backward pass, for each parameter (Kaplan et al. 2020, section 2.1); attention over the row is not counted."""
BIG_MODEL = 1_000_000_000
"""Parameters above which activations are usually computed again."""


@dataclass(frozen=True)
class Rates:
    """What a GPU does, draws and costs; the defaults are stated values for one H100 or H200 and are printed with the estimate.

    Attributes:
        tflops: dense BF16 operations a second, in 10^12, by the data sheet.
        mfu: share of them that training reaches.
        tokens_per_second: a measured rate of one GPU, in place of the two above; 0 is none.
        watts: power of one GPU.
        price: of one GPU-hour, in whatever currency.
    """

    tflops: float = 989.0
    mfu: float = 0.4
    tokens_per_second: float = 0.0
    watts: float = 700.0
    price: float = 2.5

    def check(self) -> None:
        """Refuse what no GPU has.

        Raises:
            GristmillError: names the option of the command line.
        """
        least = {"--rate": self.tokens_per_second, "--watts": self.watts, "--price": self.price}
        for option, value in {"--tflops": self.tflops, "--mfu": self.mfu, **least}.items():
            most = 1.0 if option == "--mfu" else 1e12
            if not (0 <= value <= most and (value or option in least)):
                from_0 = "from 0" if option in least else "above 0"
                raise GristmillError(f"{value:g} is not a number {from_0} to {most:g}", where=option)


STATED = Rates()


@dataclass(frozen=True)
class Cost:
    """What training comes to.

    Attributes:
        flops: floating-point operations.
        gpu_hours: hours of one GPU; evaluation and checkpoints not counted.
        kwh: energy of the GPUs alone.
        money: in the currency of the rate.
    """

    flops: float
    gpu_hours: float
    kwh: float
    money: float


def cost(parameters: int, tokens: int, rates: Rates) -> Cost:
    """Cost of training a model on a number of tokens."""
    flops = float(FLOPS_PER_TOKEN * parameters * tokens)
    seconds = tokens / rates.tokens_per_second if rates.tokens_per_second else flops / (rates.tflops * 1e12 * rates.mfu)
    hours = seconds / 3600
    return Cost(flops, hours, hours * rates.watts / 1000, hours * rates.price)


def bought(compute: float, parameters: int) -> dict[str, float]:
    """What a compute budget buys: parameters and tokens of the compute-optimal model (C = 6 N D, D = 20 N), and this model's tokens."""
    best = math.sqrt(compute / (FLOPS_PER_TOKEN * CHINCHILLA))
    mine = compute / (FLOPS_PER_TOKEN * parameters)
    return {"compute": compute, "parameters": best, "tokens": CHINCHILLA * best, "tokens_of_this_model": mine}


def disk_bytes(recipe: Recipe, state_bytes: int) -> int:
    """Bytes of checkpoints when the last stage has ended: the kept ones and the best of each stage, weights and optimizer state."""
    return sum((recipe.training_of(stage).keep_last + 1) * state_bytes for stage in recipe.stages)


def advice(recipe: Recipe, steps: Mapping[str, int], parameters: int) -> list[str]:
    """What the usual checklist would change: a sentence for each, with the stage it is about."""
    found = []
    for stage in recipe.stages:
        training, count = recipe.training_of(stage), steps.get(stage.name, 0)
        schedule, warmup = training.schedule, training.schedule.warmup_steps
        if schedule.start != "continue" and warmup == 0:
            found.append(f"{stage.name}: no warm-up; schedule.warmup_steps of about 1 % of the steps ({max(1, count // 100)}) is usual")
        elif schedule.start != "continue" and warmup > count / 2:
            found.append(f"{stage.name}: warm-up takes {warmup} of {count} steps; lower schedule.warmup_steps")
        if training.precision == "fp32":
            found.append(f"{stage.name}: precision fp32; bf16 halves the products' time and memory on hardware that has it")
        if training.recompute == "none" and parameters > BIG_MODEL:
            found.append(f"{stage.name}: {parameters / 1e9:.1f} B parameters without recomputation; recompute: selective or auto")
        if training.clip == 0:
            found.append(f"{stage.name}: gradients are not clipped; clip: 1.0 is usual")
        if count and not 0 < training.checkpoint_every <= count:
            found.append(f"{stage.name}: nothing is saved before its end (checkpoint_every {training.checkpoint_every}, {count} steps)")
    return found
