"""The figures of a step, by the names that the metrics table, the live line and the trackers show."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence

import torch

from train.compiling import CompileCount
from train.device_peak import peak_flops
from train.model import Decoder
from train.parallel import Ranks
from train.precision import PRODUCTS
from train.step import StepResult


def step_values(result: StepResult, sources: Sequence[str], *, lr: float) -> dict[str, float]:
    """Loss over all and by source, gradient norm and learning rate of a step."""
    by_source = zip(sources, result.nats, result.tokens, strict=True)
    values = {"loss": result.loss, "grad_norm": result.grad_norm, "lr": lr}
    return values | {f"loss/{source}": float(nats / count) for source, nats, count in by_source if count}


def flops_per_position(model: Decoder) -> float:
    """FLOPs of a training step for each position of a row, forward and backward, without recomputation (Chowdhery et al. 2022, appendix B).

    6 for each weight of a product, and 12 L d T for attention over rows of T. An embedding that is not also the output layer is a
    look-up and does not count.
    """
    lookup = 0 if model.settings.tied else model.vocabulary * model.settings.width
    return 6.0 * (model.parameter_count(matrices=True) - lookup) + 12.0 * model.settings.layers * model.settings.width * model.length


class Meter:
    """Measures what is logged every few steps: speed, utilisation, memory, and what was lost to waiting, compiling and saving.

    Args:
        model: the model.
        optimizer: its optimizer; one that reports on itself gives the RMS of its update before the learning rate.
        precision: see ``train.precision``.
        ranks: all ranks.
    """

    def __init__(self, model: Decoder, optimizer: torch.optim.Optimizer, precision: str, ranks: Ranks) -> None:
        self.optimizer, self.ranks, self.dtype = optimizer, ranks, PRODUCTS[precision]
        self.flops = flops_per_position(model)
        self.compiles = CompileCount()
        self._positions = self._seconds = self._waited = self._saving = 0.0
        self._tokens = 0.0

    def step(self, result: StepResult, positions: int, seconds: float, waited: float) -> None:
        """Take in a step: positions of its rows over all ranks, its wall time, and how much of that was waiting for rows."""
        self._tokens += float(result.tokens.sum())
        self._positions += positions
        self._seconds += seconds
        self._waited += waited

    def saved(self, seconds: float) -> None:
        """Take in how long a checkpoint held the training up."""
        self._saving += seconds

    def values(self) -> dict[str, float]:
        """Figures since the last call; every rank must call.

        ``tokens_per_second`` (valid tokens, all ranks, checkpoints and evaluations left out), ``mfu`` (share of the peak of all ranks'
        devices), ``memory_bytes`` (most so far, of the device or the process), ``data_wait_seconds`` and ``checkpoint_seconds`` (sums),
        ``compiled_graphs`` and ``compile_seconds`` (so far), and what the optimizer reports:
        ``update_rms``, ``share_clipped`` (1 - Sophia's win rate), ``state_bytes`` of this rank, ``state_bytes_per_parameter``.
        """
        peak = peak_flops(self.ranks.device, self.dtype) * self.ranks.world
        values = {
            "tokens_per_second": self._tokens / self._seconds,
            "mfu": self._positions * self.flops / self._seconds / peak,
            "memory_bytes": memory_bytes(self.ranks.device),
            "data_wait_seconds": self._waited,
            "checkpoint_seconds": self._saving,
            "compiled_graphs": float(self.compiles.graphs),
            "compile_seconds": self.compiles.seconds,
        }
        self._positions = self._seconds = self._waited = self._saving = self._tokens = 0.0
        report = getattr(self.optimizer, "report", None)
        return values | (report() if report is not None else {})


def memory_bytes(device: torch.device) -> float:
    """Most memory so far: allocated on the device, or resident of the process on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
