"""Fused operations of the trainer: each one function that chooses an implementation by device; triton is optional."""

from train.kernels.activation import bias_gelu_dropout, swiglu
from train.kernels.linear_loss import linear_cross_entropy
from train.kernels.linear_loss_parallel import vocabulary_parallel_linear_cross_entropy
from train.kernels.norm import add_rms_norm, layer_norm, rms_norm
from train.kernels.rotary import rope
from train.kernels.steps import adafactor_step, adamw_step, came_step, grad_norm, sophia_step

__all__ = [
    "adafactor_step",
    "adamw_step",
    "add_rms_norm",
    "bias_gelu_dropout",
    "came_step",
    "grad_norm",
    "layer_norm",
    "linear_cross_entropy",
    "rms_norm",
    "rope",
    "sophia_step",
    "swiglu",
    "vocabulary_parallel_linear_cross_entropy",
]
