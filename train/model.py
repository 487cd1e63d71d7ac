"""A Llama-style decoder over packed rows: documents in one row never see each other.

RMSNorm before each branch (Zhang & Sennrich 2019), rotary positions that restart in each document (Su et al. 2021), grouped-query
attention (Ainslie et al. 2023), SwiGLU (Shazeer 2020). Norms, softmax, loss and the residual stream are FP32 whatever the precision of
the products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from schemas.errors import RecipeError
from schemas.settings import ModelSettings
from train.kernels import linear_cross_entropy, rms_norm, rope, swiglu
from train.recompute import NONE, Policy, run_blocks, run_selectively


def check_model(settings: ModelSettings) -> None:
    """Refuse sizes that do not fit together.

    Raises:
        RecipeError: names the field and its value.
    """
    kv_heads = settings.all_kv_heads
    for field, holds, wanted in (
        ("layers", settings.layers >= 1, "at least 1"),
        ("heads", settings.heads >= 1 and settings.width % settings.heads == 0, f"a divisor of width {settings.width}"),
        ("kv_heads", kv_heads >= 1 and settings.heads % kv_heads == 0, f"a divisor of heads {settings.heads}"),
        ("dropout", 0 <= settings.dropout < 1, "in [0, 1)"),
    ):
        if not holds:
            raise RecipeError(f"{getattr(settings, field)} is not {wanted}", where=f"model.{field}")
    if settings.width // settings.heads % 2:
        raise RecipeError(f"heads of {settings.width // settings.heads} are not even, as rotary positions need", where="model.width")


@dataclass(frozen=True)
class Packing:
    """What the blocks share for one batch: which positions see each other, and their rotary angles.

    Attributes:
        mask: (B, 1, L, L) bool, true where the query (third) may see the key (fourth).
        cos: (B, L, D/2) of the position within the document.
        sin: the same.
    """

    mask: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


class RMSNorm(nn.Module):
    """Root-mean-square norm with a gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise (..., d)."""
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.heads, self.kv_heads = settings.heads, settings.all_kv_heads
        self.head_width = settings.width // settings.heads
        self.q = nn.Linear(settings.width, self.heads * self.head_width, bias=False)
        self.k = nn.Linear(settings.width, self.kv_heads * self.head_width, bias=False)
        self.v = nn.Linear(settings.width, self.kv_heads * self.head_width, bias=False)
        self.out = nn.Linear(self.heads * self.head_width, settings.width, bias=False)

    def forward(self, x: torch.Tensor, packing: Packing) -> torch.Tensor:
        """Attend over (B, L, d)."""
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.heads, self.head_width)
        k = self.k(x).view(batch, length, self.kv_heads, self.head_width)
        v = self.v(x).view(batch, length, self.kv_heads, self.head_width)
        q, k = rope(q, k, packing.cos, packing.sin)
        if self.kv_heads < self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=2) for t in (k, v))
        y = scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=packing.mask)
        out: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, length, -1))
        return out


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        inner = settings.inner_width
        self.gate = nn.Linear(settings.width, inner, bias=False)
        self.up = nn.Linear(settings.width, inner, bias=False)
        self.down = nn.Linear(inner, settings.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform (B, L, d)."""
        y: torch.Tensor = self.down(swiglu(self.gate(x), self.up(x)))
        return y


class Block(nn.Module):
    """Attention and feed-forward, each normed before and added to the residual stream."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(settings.width, settings.norm_eps)
        self.attention = Attention(settings)
        self.feed_forward_norm = RMSNorm(settings.width, settings.norm_eps)
        self.feed_forward = FeedForward(settings)
        self.dropout = settings.dropout
        self.selective = False

    def forward(self, x: torch.Tensor, packing: Packing) -> torch.Tensor:
        """Transform (B, L, d)."""
        if self.selective and torch.is_grad_enabled():
            return run_selectively(self._transform, x, packing)
        return self._transform(x, packing)

    def _transform(self, x: torch.Tensor, packing: Packing) -> torch.Tensor:
        x = x + dropout(self.attention(self.attention_norm(x), packing), self.dropout, self.training)
        return x + dropout(self.feed_forward(self.feed_forward_norm(x)), self.dropout, self.training)


class Decoder(nn.Module):
    """The model.

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
        check_model(settings)
        self.settings, self.vocabulary, self.length = settings, vocabulary, length
        self.z_loss = z_loss
        self.embedding = nn.Embedding(vocabulary, settings.width)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.set_recompute(recompute)
        self.norm = RMSNorm(settings.width, settings.norm_eps)
        self.head = None if settings.tied else nn.Linear(settings.width, vocabulary, bias=False)
        half = settings.width // settings.heads // 2
        angles = torch.outer(torch.arange(length).float(), settings.rope_theta ** (-torch.arange(half).float() / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self._initialise(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        residual = self.settings.init_std / math.sqrt(2 * self.settings.layers)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                std = residual if name.endswith(("attention.out.weight", "feed_forward.down.weight")) else self.settings.init_std
                parameter.normal_(0, std, generator=generator)

    def set_recompute(self, policy: Policy) -> None:
        """Set what is computed again in the backward pass; before blocks are compiled."""
        self.recompute = policy
        for block in self.blocks:
            assert isinstance(block, Block)
            block.selective = policy.selective

    @property
    def output_weight(self) -> torch.Tensor:
        """(V, d) weight of the output layer: the embedding's where tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    def packing(self, documents: torch.Tensor, positions: torch.Tensor) -> Packing:
        """Mask and angles of a batch from (B, L) numbers of documents and positions within them."""
        same = documents[:, :, None] == documents[:, None, :]
        causal = torch.ones(same.shape[1:], dtype=torch.bool, device=same.device).tril()
        cos, sin = self.get_buffer("cos"), self.get_buffer("sin")
        return Packing((same & causal)[:, None], cos[positions], sin[positions])

    def hidden(self, tokens: torch.Tensor, documents: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(B, L, d) normed output of the last block."""
        x = self.embedding(tokens)
        if x.dtype == torch.bfloat16:  # of weights kept in it; the residual stream is FP32
            x = x.float()
        x = run_blocks(list(self.blocks), x, self.packing(documents, positions), self.recompute.group)
        y: torch.Tensor = self.norm(x)
        return y

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, documents: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(B, L) FP32 cross-entropy in nats at each position, while training with z-loss; 0 where the target is -100; all (B, L) int64."""
        hidden = self.hidden(tokens, documents, positions).flatten(0, 1)
        losses = linear_cross_entropy(hidden, self.output_weight, targets.flatten(), z_loss=self.z_loss if self.training else 0.0)
        return losses.view(tokens.shape)

    def sampled_loss(self, tokens: torch.Tensor, targets: torch.Tensor, documents: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Sum of cross-entropy with labels drawn from the model's own distribution, at the positions that have a target."""
        hidden = self.hidden(tokens, documents, positions).flatten(0, 1)
        at = (targets.flatten() >= 0).nonzero()[:, 0]
        hidden = hidden[at]
        with torch.no_grad():
            drawn = [torch.multinomial((part @ self.output_weight.T).float().softmax(-1), 1)[:, 0] for part in torch.split(hidden, 1024)]
        return linear_cross_entropy(hidden, self.output_weight, torch.cat(drawn), reduction="sum")

    def next_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, V) FP32 logits after the last token of (B, L) rows that are one document each."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        hidden = self.hidden(tokens, torch.zeros_like(tokens), positions)
        return (hidden[:, -1].float() @ self.output_weight.float().T).float()

    def parameter_count(self) -> int:
        """Number of parameters, a shared one counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def as_dict(self) -> dict[str, Any]:
        """What rebuilds the model: sizes, vocabulary and length."""
        return {"settings": dict(vars(self.settings)), "vocabulary": self.vocabulary, "length": self.length}
