"""What a recipe says of tokens, rows and the curriculum's stages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from schemas.strict import NAME, Strict


class Tokenizer(Strict):
    """How text becomes token ids."""

    kind: Literal["bpe", "byte", "file", "tiktoken"] = "bpe"
    """bpe: byte-level pairs trained on kept text; byte: 256 bytes; file: a tokenizer.json, or a folder of save_pretrained() with one;
    tiktoken: a file of ranks, which needs the extra 'text'."""
    vocabulary: int = Field(default=4096, ge=260, le=1_000_000)
    """Vocabulary of a trained tokenizer, special tokens included."""
    sample_bytes: int = Field(default=20_000_000, ge=1000)
    """Text it is trained on: kept documents by hash order up to this many bytes."""
    path: str | None = None
    """The file or folder, relative to the recipe's folder, for kinds file and tiktoken. It must give every text back."""
    pattern: str | None = None
    """For tiktoken: how text is split, as gpt2, cl100k (the default) or o200k do, or a regular expression of one's own."""
    special: dict[str, Annotated[int, Field(ge=0)]] = {}
    """For tiktoken: ids of special tokens, such as <|endoftext|>; without any, BOS, EOS and PAD come after the ranks."""

    @model_validator(mode="after")
    def _path(self) -> Tokenizer:
        if (self.kind in ("file", "tiktoken")) != (self.path is not None):
            raise ValueError("kinds file and tiktoken need 'path', and only they have one")
        if self.kind != "tiktoken" and (self.pattern is not None or self.special):
            raise ValueError("'pattern' and 'special' are for kind tiktoken")
        return self


class Pack(Strict):
    """How documents become rows."""

    row_length: int = Field(default=256, ge=8, le=1 << 20)
    """Tokens in a row."""
    lengths: dict[Annotated[int, Field(ge=8)], Annotated[float, Field(gt=0, lt=1)]] = {}
    """Share of each source's documents, drawn by hash, that is packed into shorter rows instead, by row length; for length_warmup.

    A document is in rows of one length only, so budgets hold over all of them. Each divides row_length."""
    rows_per_shard: int = Field(default=4096, ge=1)
    """Rows in an Arrow shard, about: documents are cut into pack shards by input order and size."""
    bos: bool = True
    """Each document begins with the BOS token."""
    eos: bool = True
    """Each document ends with the EOS token."""
    bins: int = Field(default=4, ge=1, le=100)
    """Difficulty bins of sources that declare a difficulty."""
    min_tail: int = Field(default=8, ge=1)
    """Shorter pieces of cut documents are discarded (and counted)."""
    max_padding: float = Field(default=0.005, ge=0, le=1)
    """Share of empty positions above which documents that fit into a row are cut to fill gaps; 1 never cuts them."""

    @model_validator(mode="after")
    def _shorter(self) -> Pack:
        for length in self.lengths:
            if length >= self.row_length or self.row_length % length:
                raise ValueError(f"lengths: {length} is no shorter divisor of a row of {self.row_length} tokens")
        if sum(self.lengths.values()) >= 1:
            raise ValueError("lengths: the shares leave no documents for rows of row_length")
        return self


class BatchRamp(Strict):
    """A batch that grows: twice the rows each time, until it is training.batch_rows."""

    start: int = Field(ge=1)
    """Rows of the first steps."""
    share: float = Field(default=0.25, gt=0, le=1)
    """Share of the stage, from its beginning, over which it grows; each size has as many rows of it."""


class Replay(Strict):
    """Documents that earlier stages trained on, once more, within their budgets."""

    stages: list[str] = Field(min_length=1)
    """Earlier stages; their sources come in the proportions in which they were used there."""
    share: float = Field(gt=0, lt=1)
    """Share of the stage's rows."""


class Adaptive(Strict):
    """How the weights of an adaptive mixture move with the held-out loss of each source, within the budgets."""

    by: Literal["speed", "excess"] = "speed"
    """speed: more of what is being learnt fastest; excess: more of what is furthest above its reference (DoReMi)."""
    start: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Weights at the beginning; null is proportional to what is left of each source."""
    reference: dict[str, float] | str | None = None
    """For excess: losses by source in nats per token, or the name of a run in the same lake that has ended."""
    every: int = Field(default=1, ge=0)
    """Evaluations between decisions; 0 decides only where the stage begins, from the losses at the end of the adaptive stage before."""
    rate: float = Field(default=3.0, gt=0)
    """With the full signal (speed: a quarter of the largest fall; excess: the largest) a source aims at e to this power times its start."""
    least: float = Field(default=0.25, ge=0, le=1)
    """Least weight of a source, as a share of its starting one."""

    @model_validator(mode="after")
    def _reference(self) -> Adaptive:
        if (self.by == "excess") != (self.reference is not None):
            raise ValueError("by: excess needs 'reference', and only that has one")
        return self


class Stage(Strict):
    """One stage of the curriculum."""

    name: str = Field(pattern=NAME)
    """Stage name."""
    tokens: Annotated[int, Field(ge=1, le=10**15)] | Literal["rest", "chinchilla"]
    """Token positions to train on; rest: as many as the mixture allows within the budgets; chinchilla: 20 for each parameter."""
    mixture: (
        Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=1)]
        | Literal["proportional", "temperature", "unimax", "adaptive"]
    ) = "proportional"
    """Weight by source in tokens; or by a law over sources.

    proportional: to what is left of each; temperature: to the size of each to the power of exponent; unimax: the same of each, as far as
    its budget goes; adaptive: weights that move with the held-out loss of each."""
    adaptive: Adaptive | None = None
    """How the weights of mixture: adaptive move."""
    sources: list[str] | None = None
    """Sources that a law shares the stage among; null is all that have anything left. Not for weights, which name their sources."""
    exponent: float | None = Field(default=None, ge=0, le=1)
    """Exponent of the temperature mixture, by default 0.5; 1 is proportional to size, 0 the same of each."""
    order: Literal["shuffled", "easy_to_hard", "hard_to_easy"] = "shuffled"
    """Order of difficulty bins within each source."""
    pacing: Literal["linear", "root", "exponential", "step"] | None = None
    """How an ordered stage opens its bins: rows are drawn from all that are open. Null goes through one bin after another.

    The open share rises from pacing_start to 1 over the stage: linearly, as a square root, exponentially, or at once halfway."""
    pacing_start: float | None = Field(default=None, gt=0, lt=1)
    """Share of the bins open from the start, by default 0.25; at least one bin."""
    batch_ramp: BatchRamp | None = None
    """Begins with smaller batches."""
    length_warmup: dict[int, Annotated[float, Field(gt=0, lt=1)]] = {}
    """Share of the stage's tokens to be trained on in shorter rows first, by row length (of pack.lengths), the shortest first.

    A step has as many tokens as at the full length."""
    blend: float | None = Field(default=None, gt=0, le=1)
    """Share of the stage over which its mixture comes, in 8 steps, out of that with which the stage before ended."""
    replay: Replay | None = None
    """Documents of earlier stages once more."""
    training: dict[str, Any] = {}
    """Changes to the recipe's training settings for this stage."""

    @model_validator(mode="before")
    @classmethod
    def _adaptive_by_default(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("mixture") == "adaptive" and data.get("adaptive") is None:
            return {**data, "adaptive": {}}
        return data

    @model_validator(mode="after")
    def _no_dead_options(self) -> Stage:
        if self.sources is not None and isinstance(self.mixture, dict):
            raise ValueError("'sources' is for a mixture by law; weights name their sources")
        if self.exponent is not None and self.mixture != "temperature":
            raise ValueError("'exponent' is for mixture: temperature")
        if self.pacing is not None and self.order == "shuffled":
            raise ValueError("'pacing' is for an ordered stage: set order to easy_to_hard or hard_to_easy")
        if self.pacing_start is not None and self.pacing is None:
            raise ValueError("'pacing_start' needs 'pacing'")
        if (self.adaptive is not None) != (self.mixture == "adaptive"):
            raise ValueError("'adaptive' is for mixture: adaptive")
        if self.adaptive is not None and self.adaptive.start is not None and self.sources is not None:
            raise ValueError("adaptive.start names the sources: 'sources' is for a mixture without it")
        changes = {"pacing": self.pacing, "batch_ramp": self.batch_ramp, "length_warmup": self.length_warmup, "blend": self.blend}
        set_too = [name for name, value in changes.items() if value]
        if self.adaptive is not None and set_too:
            raise ValueError(f"an adaptive stage changes its weights alone: it cannot have {set_too[0]!r} too")
        if self.length_warmup and self.pacing is not None:
            raise ValueError("a stage has either 'pacing' or 'length_warmup'")
        if sum(self.length_warmup.values()) >= 1:
            raise ValueError("the shares of length_warmup leave nothing for rows of the full length")
        if self.tokens == "rest" and (self.replay is not None or self.length_warmup):
            raise ValueError("'replay' and 'length_warmup' are shares of a number of tokens: 'rest' has none yet")
        return self
