"""Recomputation policies by name, and the memory that each needs; arithmetic alone, so that plans can ask without torch.

Memory of L blocks in groups of k is about (L/k) b + k i, for b bytes of a block's input and i of what it saves inside: least near
k = sqrt(L b / i), which is sqrt(L) where the two are alike (Chen et al. 2016). Selective recomputation keeps the results of products and
attention and computes the cheap rest again (Korthikanti et al. 2022).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from schemas.errors import RecipeError

_EVERY = re.compile(r"every_([1-9][0-9]*)")


@dataclass(frozen=True)
class Policy:
    """What is recomputed: groups of ``group`` blocks (0 is none), or inside each block all but the products."""

    group: int = 0
    selective: bool = False

    def __str__(self) -> str:
        return "selective" if self.selective else f"every_{self.group}" if self.group else "none"


NONE, SELECTIVE = Policy(), Policy(selective=True)


def named_policy(recompute: str, layers: int) -> Policy | None:
    """Return the policy of a name; None for ``auto``, which has to be measured.

    Args:
        recompute: ``none``, ``full`` (each block alone), ``sqrt`` (ceil(sqrt(layers)) blocks), ``every_<k>``, ``selective`` or ``auto``.
        layers: blocks of the model.

    Raises:
        RecipeError: another name.
    """
    if (match := _EVERY.fullmatch(recompute)) is not None:
        return Policy(int(match[1]))
    named = {"none": NONE, "full": Policy(1), "sqrt": Policy(math.isqrt(layers - 1) + 1), "selective": SELECTIVE, "auto": None}
    if recompute not in named:
        raise RecipeError(
            f"{recompute!r} is not one of none, full, sqrt, every_<number of blocks>, selective, auto", where="training.recompute"
        )
    return named[recompute]


@dataclass(frozen=True)
class BlockBytes:
    """What one block holds for the backward pass, in bytes: its input, all that it saves inside, and its products alone."""

    boundary: int
    inside: int
    products: int

    def peak(self, policy: Policy, layers: int) -> int:
        """Most bytes of activations that all blocks hold at once."""
        if policy.selective:
            return layers * (self.boundary + self.products) + self.inside
        if not policy.group:
            return layers * self.inside
        return -(-layers // policy.group) * self.boundary + min(policy.group, layers) * self.inside


def choose_policy(sizes: BlockBytes, layers: int, budget: int = 0) -> Policy:
    """Return the group size of the least peak; with a budget in bytes the cheapest in time of all policies whose peak is within it.

    Raises:
        RecipeError: no policy is within the budget.
    """
    smallest = min((Policy(k) for k in range(1, layers + 1)), key=lambda policy: sizes.peak(policy, layers))
    if not budget:
        return smallest
    for policy in (NONE, SELECTIVE, smallest):
        if sizes.peak(policy, layers) <= budget:
            return policy
    raise RecipeError(
        f"{budget / 2**20:.0f} MiB do not hold the activations: {smallest} needs {sizes.peak(smallest, layers) / 2**20:.0f} MiB",
        where="training.recompute_budget_mib",
        fix="lower training.micro_batch_rows or raise the budget",
    )
