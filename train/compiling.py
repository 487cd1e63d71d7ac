"""torch.compile by block, or eager where it cannot work."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import torch

from train.model import Decoder


def why_not(device: torch.device) -> str:
    """Return what torch.compile lacks on this machine, empty when nothing: on a CPU a C++ compiler and Python's headers."""
    if device.type != "cpu":
        return ""
    compiler = os.environ.get("CXX") or "g++"
    if not any(shutil.which(name) for name in (compiler, "g++", "clang++")):
        return f"no C++ compiler ({compiler})"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "no Python headers (Python.h)"
    return ""


def compile_blocks(model: Decoder) -> None:
    """Compile each block on its own, for fixed shapes: blocks are alike, so one compilation serves all."""
    for block in model.blocks:
        block.compile(dynamic=False)
