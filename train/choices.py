"""Multiple-choice sets: the option with the highest likelihood is the model's answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from schemas.settings import ChoiceSet
from schemas.store import Published, verify
from train.data import Batch
from train.model import Decoder
from train.parallel import Ranks
from train.passes import forward
from train.precision import precision_context


class Choices:
    """One set, in memory.

    Args:
        root: the lake.
        entry: the set.

    Raises:
        LakeError: its file is missing or was changed.
    """

    def __init__(self, root: Path, entry: ChoiceSet) -> None:
        shard = entry.shard
        verify(root, Published(shard.path, shard.bytes, shard.checksum, shard.rows))
        with pa.memory_map(str(root / shard.path)) as source:
            table = pa.ipc.open_file(source).read_all()
        self.name = entry.name
        self.question = table.column("question").to_numpy()
        self.tokens = [np.array(tokens, dtype=np.int64) for tokens in table.column("tokens").to_pylist()]
        self.scored, self.bytes = table.column("scored").to_numpy(), table.column("bytes").to_numpy()
        self.right = table.column("right").to_numpy(zero_copy_only=False)

    def batch(self, options: Sequence[int], height: int, length: int) -> Batch:
        """Options as rows of one piece each, padded to a stage's shape so that nothing is compiled anew."""
        tokens = np.zeros((height, length), dtype=np.int64)
        ends = np.array([len(self.tokens[option]) for option in options], dtype=np.int64)
        for row, option in enumerate(options):
            tokens[row, : ends[row]] = self.tokens[option]
        pieces = np.minimum(np.arange(height + 1), len(options))
        return Batch(tokens, pieces, ends, np.zeros((len(options), 16), dtype=np.uint8))

    def accuracy(self, nats: NDArray[np.float64]) -> float:
        """Share of questions whose right option has the lowest of ``nats``; of equal ones the first counts."""
        answers = [group[np.argmin(nats[group])] for group in np.split(np.arange(len(nats)), np.flatnonzero(np.diff(self.question)) + 1)]
        return float(np.mean(self.right[answers]))


@torch.no_grad()
def evaluate_choices(
    model: Decoder, sets: Sequence[Choices], *, height: int, precision: str, ranks: Ranks, pause: Callable[[], None]
) -> dict[str, float]:
    """Measure the model on sets of questions.

    Args:
        model: the model; it comes back in training mode.
        sets: the sets.
        height: rows of a forward pass on one rank.
        precision: see ``train.precision``.
        ranks: options are shared among all.
        pause: called before each forward pass, on every rank equally often; may raise to abandon.

    Returns:
        ``accuracy/<set>`` by log-likelihood for each byte of the option (length-normalised), ``accuracy_raw/<set>`` by its whole
        log-likelihood.
    """
    found: dict[str, float] = {}
    model.eval()
    try:
        for one in sets:
            nats = np.zeros(len(one.tokens))
            for first in range(0, len(nats), height * ranks.data_ranks):
                pause()
                mine = range(first + ranks.data_rank, min(first + height * ranks.data_ranks, len(nats)), ranks.data_ranks)
                with precision_context(precision, ranks.device):
                    losses = forward(model, one.batch(mine, height, model.length), ranks.device).double().cpu().numpy()
                for row, option in enumerate(mine):
                    end = len(one.tokens[option]) - 1
                    nats[option] = losses[row, end - one.scored[option] : end].sum()
            nats = ranks.sum(torch.from_numpy(nats).to(ranks.device)).cpu().numpy()
            found |= {f"accuracy/{one.name}": one.accuracy(nats / one.bytes), f"accuracy_raw/{one.name}": one.accuracy(nats)}
    finally:
        model.train()
    return found
