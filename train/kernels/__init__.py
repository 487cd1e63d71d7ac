"""Fused operations of the trainer: each one function that chooses an implementation by device; triton is optional."""

from train.kernels.activation import bias_gelu_dropout, swiglu
from train.kernels.linear_loss import linear_cross_entropy
from train.kernels.norm import add_rms_norm, layer_norm, rms_norm
from train.kernels.rotary import rope

__all__ = ["add_rms_norm", "bias_gelu_dropout", "layer_norm", "linear_cross_entropy", "rms_norm", "rope", "swiglu"]
