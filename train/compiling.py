"""torch.compile by block, or eager where it cannot work."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch

from train.model import Decoder

EXPECTED_GRAPHS = 2
"""Graphs of a run without recompilations: a block's for training and its for evaluation."""


def why_not(device: torch.device) -> str:
    """Return what torch.compile lacks on this machine, empty when nothing: on a CPU a compiler, headers, paths it can quote."""
    if device.type != "cpu":
        return ""
    compiler = os.environ.get("CXX") or "g++"
    if not any(shutil.which(name) for name in (compiler, "g++", "clang++")):
        return f"no C++ compiler ({compiler})"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "no Python headers (Python.h)"
    for path in (tempfile.gettempdir(), torch.__file__, sysconfig.get_paths()["include"]):
        if " " in path:
            return f"torch gives the compiler no path with a space ({path})"
    return ""


def compile_blocks(model: Decoder) -> None:
    """Compile each block on its own, for fixed shapes: blocks are alike, so one compilation serves all."""
    for block in model.blocks:
        block.compile(dynamic=False)


class CompileCount:
    """Counts this process's compilations since it was made.

    Training and evaluation are compiled apart, once each, since shapes are fixed; more graphs than that are recompilations.
    """

    def __init__(self) -> None:
        self._graphs, self._seconds = _compiled()

    @property
    def graphs(self) -> int:
        """Graphs compiled."""
        return _compiled()[0] - self._graphs

    @property
    def seconds(self) -> float:
        """Seconds spent on them, or on loading them from the cache."""
        return _compiled()[1] - self._seconds


def _compiled() -> tuple[int, float]:
    if "torch._dynamo.utils" not in sys.modules:
        return 0, 0.0
    from torch._dynamo.utils import compilation_time_metrics, counters

    return counters["stats"]["unique_graphs"], sum(compilation_time_metrics.get("_compile.compile_inner", ()))
