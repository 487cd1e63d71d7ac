"""Passes of its own by which an optimizer estimates curvature: sampled labels (Sophia-G, K-FAC) or second derivatives (Sophia-H)."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from train.clipping import global_norm
from train.kernels import grad_norm
from train.kernels.dispatch import second_derivatives
from train.optim.kfac import KFAC
from train.optim.sophia import Sophia
from train.passes import Passes, forward, to_device


def update_curvature(optimizer: Sophia | KFAC, passes: Passes) -> None:
    """Let the optimizer estimate curvature; leaves the step's gradients in place.

    An estimate that is not finite is left out, on every rank alike.
    """
    parameters = [p for p in passes.model.parameters() if p.requires_grad]
    own = [p.grad for p in parameters]
    if isinstance(optimizer, Sophia) and optimizer.param_groups[0]["estimator"] == "hutchinson":
        _second_derivatives(optimizer, passes)
    else:
        _sampled_labels(optimizer, passes)
    for parameter, gradient in zip(parameters, own, strict=True):
        parameter.grad = gradient


def _sampled_labels(optimizer: Sophia | KFAC, passes: Passes) -> None:
    """Gradients of the mean loss for labels drawn from the model: Sophia's Gauss-Newton-Bartlett estimate, K-FAC's factors."""
    model = passes.model
    model.zero_grad(set_to_none=True)
    with optimizer.observe(model) if isinstance(optimizer, KFAC) else nullcontext():
        for batch in passes.inputs():
            with passes.context():
                losses = model.sampled_loss(*to_device(batch, passes.ranks.device))
            passes.backward(losses)
    passes.sum_gradients()
    finite = math.isfinite(float(global_norm(list(model.parameters()), passes.ranks)))
    if isinstance(optimizer, KFAC):
        optimizer.update_curvature(labels=passes.count / passes.scale, keep=finite)
    elif finite:
        optimizer.update_curvature(tokens=int(passes.count))


def _second_derivatives(optimizer: Sophia, passes: Passes) -> None:
    """Hutchinson's estimate of the Hessian's diagonal, summed over micro-batches and ranks; attention has a second derivative in MATH."""
    ranks = passes.ranks
    total = [torch.zeros_like(p) for group in optimizer.param_groups for p in group["params"]]
    for batch in passes.inputs():
        with passes.context(), sdpa_kernel(SDPBackend.MATH), second_derivatives():
            products = optimizer.products(forward(passes.model, batch, ranks.device).sum() / passes.count)
        torch._foreach_add_(total, products)
    if ranks.world > 1:
        flat = ranks.sum(torch.cat([part.reshape(-1) for part in total]))
        total = [part.view_as(own) for part, own in zip(torch.split(flat, [t.numel() for t in total]), total, strict=True)]
    if math.isfinite(float(grad_norm(total))):
        optimizer.update_curvature(products=total)
