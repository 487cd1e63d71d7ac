"""The decoder over packed rows: documents in one row never see each other.

Embedding (GPT-2-style with learned positions), blocks (``train.blocks``), a last norm, and an output layer that is never whole. The
residual stream and losses are FP32 whatever the precision of the products. Weights are drawn as GPT-2's are (``ModelSettings.init_std``),
or by muP (``ModelSettings.mup_base_width``).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import dropout, embedding

from schemas.errors import RecipeError
from schemas.settings import ModelSettings
from train.attention import Packing, document_mask, flex_runs, rotary_frequencies
from train.blocks import Block, norm
from train.kernels import linear_cross_entropy
from train.policy import NONE, Policy
from train.recompute import run_blocks
from train.tensor_split import TensorSplit, own

if TYPE_CHECKING:
    from train.pipeline import Pipeline


class Decoder(nn.Module):
    """The model.

    Attributes:
        flex: attend by flex attention, or not; None is where it runs (``train.attention.flex_runs``).
        split: how a tensor group splits it; None where it is whole.
        pipeline: runs it with the ranks that have its other blocks; None where it has all.
        absent: names of the parameters that only they have.

    Args:
        settings: its sizes.
        vocabulary: token ids are below it.
        length: longest row.
        seed: seed of the weights; the same seed gives the same weights on every device.
        recompute: what is computed again in the backward pass.
        z_loss: weight of the squared log-partition (Chowdhery et al. 2022, section 5) in losses while training.

    Raises:
        RecipeError: sizes that do not fit together.
    """

    def __init__(
        self, settings: ModelSettings, vocabulary: int, length: int, seed: int = 0, *, recompute: Policy = NONE, z_loss: float = 0.0
    ) -> None:
        super().__init__()
        if (mistake := settings.mistake()) is not None:
            raise RecipeError(mistake[1], where=f"model.{mistake[0]}")
        self.settings, self.vocabulary, self.length = settings, vocabulary, length
        self.z_loss = z_loss
        self.embedding = nn.Embedding(vocabulary, settings.width)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.set_recompute(recompute)
        self.norm = norm(settings)
        self.head = None if settings.tied else nn.Linear(settings.width, vocabulary, bias=False)
        self.position_embedding = nn.Embedding(length, settings.width) if settings.kind == "gpt2" else None
        self.flex: bool | None = None
        self.split: TensorSplit | None = None
        self.pipeline: Pipeline | None = None
        self.absent: frozenset[str] = frozenset()
        if settings.kind == "llama":
            angles = torch.outer(torch.arange(length).float(), rotary_frequencies(settings))
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
        self._initialise(torch.Generator().manual_seed(seed))
        self._counts = [parameter.numel() for parameter in self.parameters()], [p.numel() for p in self.parameters() if p.ndim > 1]

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        std, hidden = self.settings.init_std, self.settings.init_std / math.sqrt(self.settings.width_ratio)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
                own = hidden / math.sqrt(2 * self.settings.layers) if residual else hidden if name.startswith("blocks.") else std
                parameter.normal_(0, own, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()

    def set_recompute(self, policy: Policy) -> None:
        """Set what is computed again in the backward pass; before blocks are compiled."""
        self.recompute = policy
        for block in self.own_blocks:
            block.recompute = policy

    @property
    def own_blocks(self) -> list[Block]:
        """The blocks that this rank has."""
        return [block for block in self.blocks if isinstance(block, Block)]

    @property
    def copies(self) -> list[nn.Parameter]:
        """Parameters that an earlier rank of the pipeline has as well: the last one's tied embedding."""
        return [] if self.embedding is None or self.blocks[0] is not None else [self.embedding.weight]

    @property
    def output_weight(self) -> torch.Tensor:
        """(V, d) weight of the output layer: the embedding's where tied."""
        return self.embedding.weight if self.settings.tied or self.head is None else self.head.weight

    def packing(self, documents: torch.Tensor, positions: torch.Tensor) -> Packing:
        """Mask and angles of a batch from (B, L) numbers of documents and positions within them."""
        if self.settings.attention == "row":
            documents = torch.zeros_like(documents)
        positions = self._placed(positions)
        mask = document_mask(documents, flex=flex_runs(documents, self.settings) if self.flex is None else self.flex)
        if self.settings.kind == "gpt2":
            return Packing(mask, None, None)
        cos, sin = self.get_buffer("cos"), self.get_buffer("sin")
        return Packing(mask, cos[positions], sin[positions])

    def hidden(self, tokens: torch.Tensor, documents: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(B, L, d) normed output of the last block."""
        return self.normed(self._through(tokens, documents, positions))

    def _through(self, x: torch.Tensor, documents: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(B, L, d) output of this rank's last block, from tokens or from the output of the block before its first."""
        x = x if x.is_floating_point() else self.embedded(x, positions)
        return run_blocks(self.own_blocks, x, self.packing(documents, positions), self.recompute.group)

    def embedded(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(B, L, d) input of the first block; under a split by positions this rank's."""
        x: torch.Tensor = self.embedding(tokens)
        if x.dtype == torch.bfloat16:  # of weights kept in it; the residual stream is FP32
            x = x.float()
        if self.position_embedding is None:
            return x
        in_part = self.split is not None and self.split.sequence
        positions = self._placed(positions)
        positions = positions if self.split is None else self.split.positions(positions)
        return dropout(x + embedding(positions, own(self.position_embedding.weight, in_part)), self.settings.dropout, self.training)

    def _placed(self, positions: torch.Tensor) -> torch.Tensor:
        """Positions as the settings count them, from positions within documents."""
        if self.settings.positions == "document":
            return positions
        return torch.arange(positions.shape[1], device=positions.device).expand(positions.shape)

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        """(B, L, d) normed output of the last block, whole, as the output layer takes it."""
        y: torch.Tensor = self.norm(x)
        if self.settings.width_ratio != 1:
            y = y / self.settings.width_ratio
        return y if self.split is None else self.split.whole(y)

    def losses(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """(B, L) losses of a normed output, see ``forward``."""
        flat, z_loss = hidden.flatten(0, 1), self.z_loss if self.training else 0.0
        if self.split is not None:
            return self.split.losses(flat, self.output_weight, targets.flatten(), z_loss).view(targets.shape)
        return linear_cross_entropy(flat, self.output_weight, targets.flatten(), z_loss=z_loss).view(targets.shape)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, documents: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(B, L) FP32 cross-entropy in nats at each position, while training with z-loss; 0 where the target is -100; all (B, L) int64.

        A pipeline's rank is given the (B, L, d) output of the rank before it, and but for the last gives that of its own blocks.
        """
        x = self._through(tokens, documents, positions)
        return x if self.norm is None else self.losses(self.normed(x), targets)

    def sampled_loss(self, tokens: torch.Tensor, targets: torch.Tensor, documents: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Sum of cross-entropy with labels drawn from the model's own distribution, at the positions that have a target."""
        hidden = self.hidden(tokens, documents, positions).flatten(0, 1)
        at = (targets.flatten() >= 0).nonzero()[:, 0]
        hidden = hidden[at]
        with torch.no_grad():
            drawn = torch.cat([torch.multinomial(self._logits(part).float().softmax(-1), 1)[:, 0] for part in torch.split(hidden, 1024)])
        if self.split is not None:
            return self.split.losses(hidden, self.output_weight, self.split.agreed(drawn), 0.0).sum()
        return linear_cross_entropy(hidden, self.output_weight, drawn, reduction="sum")

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.output_weight.T if self.split is None else self.split.logits(hidden, self.output_weight)

    def next_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, V) FP32 logits after the last token of (B, L) rows that are one document each."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        hidden = self.hidden(tokens, torch.zeros_like(tokens), positions)
        return (hidden[:, -1].float() @ self.output_weight.float().T).float()

    def parameter_count(self, *, matrices: bool = False) -> int:
        """Number of parameters of the whole model, a shared one counted once; or of those in matrices."""
        return sum(self._counts[matrices])

    def as_dict(self) -> dict[str, Any]:
        """What rebuilds the model: sizes, vocabulary and length."""
        settings = dataclasses.asdict(self.settings)
        del settings["size"]  # a name for numbers that are there
        return {"settings": settings, "vocabulary": self.vocabulary, "length": self.length}
