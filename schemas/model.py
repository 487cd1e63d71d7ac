"""Settings of the model: its kind, its sizes, and the sizes that have names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class RopeScaling:
    """Rotary frequencies stretched for rows longer than a model was first trained with.

    Attributes:
        kind: linear (every frequency over ``factor``; Chen et al. 2023) or llama3 (only long waves, with a ramp between the two bounds).
        factor: what long waves are stretched by.
        low_freq_factor: of llama3: waves longer than ``original_length`` over this are stretched by the whole factor.
        high_freq_factor: of llama3: waves shorter than ``original_length`` over this stay.
        original_length: of llama3: row length of the first training.
    """

    __pydantic_config__ = {"extra": "forbid"}

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192


@dataclass(frozen=True)
class ModelSettings:
    """A decoder, Llama-style (RMSNorm, RoPE, SwiGLU, grouped-query attention) or GPT-2-style (LayerNorm, learned positions, GELU, biases).

    Attributes:
        kind: llama or gpt2.
        size: a size by name, which gives layers, width and heads (and where the size has them kv_heads, ff_width and tied); numbers
            given beside it win. Vocabulary, and of gpt2 the positions, come on top: 124M is named as GPT-2 is.
        layers: number of blocks.
        width: model width d.
        heads: query heads; width must divide by it, and under rotary positions the head width be even.
        kv_heads: key and value heads of llama; heads must divide by it. 0 means as many as heads.
        ff_width: width inside the feed-forward; 0 means 8/3 of width rounded up to a multiple of 64 (llama), 4 times width (gpt2).
        rope_theta: base of the rotary frequencies.
        rope_scaling: of llama: how rotary frequencies are stretched; null is not at all.
        attention: what a token sees of a packed row: the tokens before it in its own document, or all before it in the row. A document's
            first token is never a target.
        positions: where positions begin at 0: in each document, or in each row.
        gelu: of gpt2: exact, or tanh, its approximation, which OpenAI's GPT-2 was trained with.
        norm_eps: epsilon of the norms.
        tied: the output layer shares the embedding.
        dropout: probability on both residual branches, of gpt2 on the embeddings too.
        init_std: standard deviation of the weights; residual projections have it over sqrt(2 * layers) (Radford et al. 2019), biases are 0.
        mup_base_width: 0 is the standard parametrisation. Another number is the width at which learning rate and init_std were tuned, and
            carries them over to this one by muP (Yang et al. 2022, table 8): with m = width / mup_base_width, hidden matrices have init_std
            over sqrt(m) and the learning rate over m, logits are divided by m, and attention by its head width times 1/8 in place of the
            width's root.
    """

    __pydantic_config__ = {"extra": "forbid"}

    kind: Literal["llama", "gpt2"] = "llama"
    size: Literal["", "124M", "350M", "760M", "1B", "3B", "7B", "70B"] = ""
    layers: int = 4
    width: int = 256
    heads: int = 4
    kv_heads: int = 0
    ff_width: int = 0
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    attention: Literal["document", "row"] = "document"
    positions: Literal["document", "row"] = "document"
    gelu: Literal["exact", "tanh"] = "exact"
    norm_eps: float = 1e-5
    tied: bool = True
    dropout: float = 0.0
    init_std: float = 0.02
    mup_base_width: int = 0

    @property
    def width_ratio(self) -> float:
        """M of muP: how much wider it is than the model that was tuned; 1 in the standard parametrisation."""
        return self.width / self.mup_base_width if self.mup_base_width else 1.0

    @property
    def attention_scale(self) -> float:
        """What products of queries and keys are multiplied by; muP's is the standard one at heads of 64."""
        head = self.width / self.heads
        return 8 / head if self.mup_base_width else head**-0.5

    @property
    def inner_width(self) -> int:
        """Width inside the feed-forward."""
        return self.ff_width or (4 * self.width if self.kind == "gpt2" else -(-8 * self.width // (3 * 64)) * 64)

    @property
    def all_kv_heads(self) -> int:
        """Key and value heads."""
        return self.kv_heads or self.heads

    def mistake(self) -> tuple[str, str] | None:
        """The first field whose value does not fit the others, and what is wrong with it; None where all fit."""
        llama = self.kind == "llama"
        scaling = self.rope_scaling
        rules = (
            ("layers", self.layers >= 1, "below 1"),
            ("width", self.width >= 1, "below 1"),
            ("heads", self.heads >= 1 and self.width % self.heads == 0, f"not a divisor of width {self.width}"),
            ("kv_heads", llama or not self.kv_heads, "for kind llama only"),
            ("kv_heads", self.all_kv_heads >= 1 and self.heads % self.all_kv_heads == 0, f"not a divisor of heads {self.heads}"),
            ("ff_width", self.ff_width >= 0, "below 0"),
            ("mup_base_width", self.mup_base_width >= 0, "below 0"),
            ("dropout", 0 <= self.dropout < 1, "not in [0, 1)"),
            ("gelu", not llama or self.gelu == "exact", "for kind gpt2 only"),
            ("rope_scaling", llama or scaling is None, "for kind llama only"),
            ("rope_scaling", scaling is None or scaling.factor >= 1, "of a factor below 1"),
            ("rope_scaling", scaling is None or 0 < scaling.low_freq_factor < scaling.high_freq_factor, "with factors out of order"),
        )
        for field, fits, wrong in rules:
            if not fits:
                return field, f"{getattr(self, field)} is {wrong}"
        if llama and self.width // self.heads % 2:
            return "width", f"heads of {self.width // self.heads} are not even, as rotary positions need"
        return None


# Layers, width and heads of GPT-3's table 2.1 (Brown et al. 2020) up to 3B, of Llama 2 (Touvron et al. 2023) above.
SIZES: dict[str, dict[str, Any]] = {
    "124M": {"layers": 12, "width": 768, "heads": 12},
    "350M": {"layers": 24, "width": 1024, "heads": 16},
    "760M": {"layers": 24, "width": 1536, "heads": 16},
    "1B": {"layers": 24, "width": 2048, "heads": 16},
    "3B": {"layers": 32, "width": 2560, "heads": 32},
    "7B": {"layers": 32, "width": 4096, "heads": 32, "ff_width": 11008, "tied": False},
    "70B": {"layers": 80, "width": 8192, "heads": 64, "kv_heads": 8, "ff_width": 28672, "tied": False},
}


def with_size(given: dict[str, Any]) -> dict[str, Any]:
    """Fill in what a size's name gives, under what is given beside it."""
    named = SIZES.get(str(given.get("size", "")), {})
    if given.get("kind") == "gpt2":
        named = {name: value for name, value in named.items() if name not in ("kv_heads", "ff_width")}
    return {**named, **given}
