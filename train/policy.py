"""Recomputation policies by name, and the memory that each needs; arithmetic alone, so that plans can ask without torch.

Memory of L blocks in groups of k is about (L/k) b + k i, for b bytes of a block's input and i of what it saves inside: least near
k = sqrt(L b / i), which is sqrt(L) where the two are alike (Chen et al. 2016). Selective recomputation keeps the results of products and
attention and computes the cheap rest again (Korthikanti et al. 2022). By halves, the inputs of each block's attention and feed-forward are
kept and what attention gave: attention and the products at both ends are not computed again.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from schemas.errors import RecipeError

_EVERY = re.compile(r"every_([1-9][0-9]*)")


@dataclass(frozen=True)
class Policy:
    """What is recomputed: groups of ``group`` blocks (0 is none), or inside each block all but the products, or each half of it."""

    group: int = 0
    selective: bool = False
    halves: bool = False

    def __str__(self) -> str:
        return "selective" if self.selective else "halves" if self.halves else f"every_{self.group}" if self.group else "none"


NONE, SELECTIVE, HALVES = Policy(), Policy(selective=True), Policy(halves=True)
SPARING = 5
"""``auto`` without a budget keeps at most this part (a fifth) of what no recomputation keeps, where a policy faster than groups does."""


def named_policy(recompute: str, layers: int) -> Policy | None:
    """Return the policy of a name; None for ``auto``, which has to be measured.

    Args:
        recompute: ``none``, ``full`` (each block alone), ``sqrt`` (ceil(sqrt(layers)) blocks), ``every_<k>``, ``selective``,
            ``halves`` or ``auto``.
        layers: blocks of the model.

    Raises:
        RecipeError: another name.
    """
    if (match := _EVERY.fullmatch(recompute)) is not None:
        return Policy(int(match[1]))
    named = {
        "none": NONE,
        "full": Policy(1),
        "sqrt": Policy(math.isqrt(layers - 1) + 1),
        "selective": SELECTIVE,
        "halves": HALVES,
        "auto": None,
    }
    if recompute not in named:
        raise RecipeError(
            f"{recompute!r} is not one of none, full, sqrt, every_<number of blocks>, selective, halves, auto", where="training.recompute"
        )
    return named[recompute]


@dataclass(frozen=True)
class BlockBytes:
    """What one block holds for the backward pass, in bytes.

    Attributes:
        boundary: its input.
        inside: all, its input among it.
        products: the results of its products and attention.
        attention: that of attention alone, and its dropout masks of a byte an element.
        half: what the larger of its halves saves inside; 0 where that is not known.
    """

    boundary: int
    inside: int
    products: int
    attention: int = 0
    half: int = 0

    def peak(self, policy: Policy, layers: int) -> int:
        """Most bytes of activations that all blocks hold at once."""
        if policy.selective:
            return layers * (self.boundary + self.products) + self.inside
        if policy.halves:
            return layers * (2 * self.boundary + self.attention) + (self.half or self.inside)
        if not policy.group:
            return layers * self.inside
        return -(-layers // policy.group) * self.boundary + min(policy.group, layers) * self.inside


def choose_policy(sizes: BlockBytes, layers: int, budget: int = 0) -> Policy:
    """Return the cheapest policy in time whose peak is within a budget in bytes.

    Without one, by halves where that keeps a fifth of what no recomputation keeps (``SPARING``), else the groups of the least peak.

    Raises:
        RecipeError: no policy is within the budget.
    """
    smallest = min((Policy(k) for k in range(1, layers + 1)), key=lambda policy: sizes.peak(policy, layers))
    if not budget:
        return HALVES if SPARING * sizes.peak(HALVES, layers) <= sizes.peak(NONE, layers) else smallest
    for policy in (NONE, HALVES, SELECTIVE, smallest):
        if sizes.peak(policy, layers) <= budget:
            return policy
    raise RecipeError(
        f"{budget / 2**20:.0f} MiB do not hold the activations: {smallest} needs {sizes.peak(smallest, layers) / 2**20:.0f} MiB",
        where="training.recompute_budget_mib",
        fix="lower training.micro_batch_rows or raise the budget",
    )
