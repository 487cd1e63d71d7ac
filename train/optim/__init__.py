"""Optimizers by name: own memory-efficient ones, torch's, and packages' where they are well kept."""

from train.optim.build import OPTIMIZERS, build_optimizer

__all__ = ["OPTIMIZERS", "build_optimizer"]
