"""Cross-entropy of a block of logits, whose gradient takes the logits' place: the part of linear + cross-entropy between the products."""

from __future__ import annotations

import torch


def row_loss_(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int, z_loss: float, scale: torch.Tensor | None, grads: bool
) -> torch.Tensor:
    """Return each row's loss, lse - logit[target] + z_loss lse^2, and put d(scale * loss)/d(logits) over the logits.

    Args:
        logits: (C, V) of the arithmetic's dtype; lost.
        targets: (C,) of int64.
        ignore_index: rows with this target have loss 0 and gradient 0.
        z_loss: weight of lse^2 (Chowdhery et al. 2022, section 5).
        scale: (C,) factors of the rows' gradients, or None for 1.
        grads: where False the logits end as anything.

    Returns:
        (C,) of the logits' dtype.
    """
    valid = targets != ignore_index
    index = torch.where(valid, targets, 0).unsqueeze(-1)
    largest = logits.amax(-1, keepdim=True)
    chosen = logits.gather(-1, index)
    # One pass in place; the largest probability is 1 / sum(exp(logits - largest)), which gives lse without another.
    probabilities = torch.softmax(logits, -1, out=logits)
    lse = largest - probabilities.amax(-1, keepdim=True).log()
    loss = torch.where(valid.unsqueeze(-1), lse - chosen + z_loss * lse.square(), 0).squeeze(-1)
    if grads:
        factor = valid.to(logits.dtype) if scale is None else torch.where(valid, scale.to(logits.dtype), 0)
        if z_loss:
            probabilities.mul_(factor.unsqueeze(-1) * (1 + 2 * z_loss * lse))
        elif scale is not None or not bool(valid.all()):
            probabilities.mul_(factor.unsqueeze(-1))
        probabilities.scatter_add_(-1, index, -factor.unsqueeze(-1))
    return loss
