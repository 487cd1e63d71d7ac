"""The recipe: everything a run depends on, from sources to stages, validated by pydantic."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from schemas.edits import Edit
from schemas.errors import RecipeError, nearest
from schemas.model import ModelSettings, with_size
from schemas.settings import TrainSettings, build
from schemas.strict import Strict

NAME = r"^[a-z][a-z0-9_-]{0,40}$"
REASON = r"^[A-Za-z][A-Za-z0-9_]*$"
SQL_NAME = r"^[a-z][a-z0-9_]{0,40}$"


class Repeats(Strict):
    """How often documents may be used, by quality: most * x**power * exp(rate * (x - 1)), x the rank above what is dropped, 0 to 1.

    A monotone truncated power-exponential curve, as OLMo 3 repeats its web text; fractions are drawn by hash of doc_id and seed.
    """

    by: str
    """SQL expression over signals, higher is better; the document's rank under it within the source is what counts."""
    drop: float = Field(default=0.4, ge=0, lt=1)
    """Share of the documents, the worst, that is not used."""
    most: float = Field(default=7, gt=0)
    """Uses of the best document. Above 7 needs allow_many_epochs."""
    power: float = Field(default=1, ge=0)
    """Power of the curve: 0 gives all the same, 1 a straight line."""
    rate: float = Field(default=0, ge=0)
    """Exponential rate of the curve: the higher, the more the best stand out."""


class Language(Strict):
    """Which languages a source may have; needs the extra 'text'. Every document's language is then a signal, kept or not."""

    allow: list[Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]] = []
    """Languages that stay (ISO 639, as the model names them: en, de, zh, ...); empty is all. Others fail as language_not_allowed."""
    min_score: float | None = Field(default=0.65, ge=0, le=1)
    """A probability at or below it fails as language_score, as FineWeb does; null is off."""


FINEWEB2 = {1: 1, 2: 2, 3: 3, 5: 5, 100: 8, 1000: 1}
"""FineWeb2's copies by cluster size (Penedo et al. 2025): a text found 5 to 99 times is used 5 times, one found 1000 times once."""


class Rehydration(Strict):
    """How often documents may be used, by how many duplicates they stand for: what was found often may be worth more, up to a point."""

    clusters: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0)]] | Literal["fineweb2"]
    """Uses by the least cluster size to which they apply, from 1, the kept document counted; fineweb2 is {1: 1, 2: 2, 3: 3, 5: 5, 100: 8,
    1000: 1} and, with 8, needs allow_many_epochs."""

    @property
    def weights(self) -> dict[int, float]:
        """Uses by the least cluster size, ascending."""
        return dict(sorted((FINEWEB2 if self.clusters == "fineweb2" else self.clusters).items()))

    @property
    def most(self) -> float:
        """The most uses of any document."""
        return max(self.weights.values())

    @model_validator(mode="after")
    def _from_one(self) -> Rehydration:
        if 1 not in self.weights:
            raise ValueError("'clusters' needs the uses of documents without duplicates, size 1")
        return self


class Source(Strict):
    """Where documents come from and how often they may be used."""

    reader: Literal["jsonl", "parquet", "arrow", "csv", "warc", "datasets", "text", "python"]
    """What the files are; all but parquet may be packed by gzip or Zstandard, told by content.

    jsonl; parquet; arrow (IPC, stream or file); csv (first row names the fields; comma, tab, semicolon or bar); warc (WARC, WET; HTML needs
    the extra 'web'); datasets (a folder written by save_to_disk); text (a document per file); python (text that comes with Python)."""
    paths: list[str] = []
    """Files, folders or globs, relative to the recipe's folder; not for the python reader."""
    parts: list[
        Literal["topics", "docstrings", "source", "package_source", "package_docstrings", "metadata", "licences", "docs", "po"]
    ] = []
    """What the python reader gathers."""
    text_field: str = "text"
    """Field or column that holds the text; in all field names, a.b is field b inside field a."""
    id_field: str | None = None
    """Field that holds the user's own id; a repeated id is quarantined as duplicate_id."""
    url_field: str | None = "url"
    """Field that holds the address, if any."""
    date_field: str | None = "date"
    """Field that holds the date, if any."""
    license_field: str | None = "license"
    """Field that holds the licence, if any."""
    licenses: list[str] | None = None
    """Licences allowed, without regard to case; a document with another, or none, is dropped as license_not_allowed. Null allows all."""
    language: Language | None = None
    """Languages it may have; null does not look."""
    max_document_bytes: int = Field(default=20_000_000, ge=1, le=(1 << 31) - 1)
    """A longer document is quarantined as too_large. Signals count positions in 32 bits, so 2 GiB is never reached."""
    max_bad_share: float = Field(default=0.05, ge=0, le=1)
    """The run fails when more than this share of a source's records is quarantined (duplicate ids not counted)."""
    clean: bool = False
    """Known to be clean text: may be repeated up to 4 epochs by default."""
    max_epochs: float | None = Field(default=None, gt=0)
    """How often each document may be used over the whole run; default 1, or 4 when clean. Above 7 needs allow_many_epochs.

    1.5 lets one half of the documents, drawn by hash, be used twice."""
    repeats: Repeats | Rehydration | None = None
    """Uses of each document, by quality or by the size of its cluster of duplicates, in place of max_epochs."""
    allow_many_epochs: bool = False
    """The explicit word for max_epochs above 7."""
    fill_in_the_middle: float = Field(default=0, ge=0, le=1)
    """Share of its documents, drawn by hash, that are trained on as prefix, suffix, middle; for code."""
    holdout: bool = True
    """Whether held-out documents are drawn from this source."""
    difficulty: str | None = None
    """SQL expression over signals (higher is harder) that cuts the source into difficulty bins for ordered stages."""

    @property
    def epochs(self) -> float:
        """The most uses of any of its documents."""
        if self.repeats is not None:
            return self.repeats.most
        return self.max_epochs if self.max_epochs is not None else (4 if self.clean else 1)

    @model_validator(mode="after")
    def _consistent(self) -> Source:
        if self.reader == "python":
            if not self.parts:
                raise ValueError("the python reader needs 'parts'")
            if self.paths:
                raise ValueError("the python reader takes 'parts', not 'paths'")
            if self.id_field is not None:
                raise ValueError("the python reader has no fields, so no 'id_field'")
        elif not self.paths:
            raise ValueError(f"the {self.reader} reader needs 'paths'")
        elif self.parts:
            raise ValueError(f"'parts' is for the python reader, not for {self.reader}")
        if self.repeats is not None and self.max_epochs is not None:
            raise ValueError("a source has either 'max_epochs' or 'repeats'")
        if self.epochs > 7 and not self.allow_many_epochs:
            raise ValueError(f"max_epochs {self.epochs:g} is above 7, where repetition hurts: set allow_many_epochs: true to insist")
        return self


class Transformer(Strict):
    """A classifier of the transformers library in a local folder, weights as safetensors; needs the extra 'models'."""

    path: str
    """Folder of save_pretrained(), relative to the recipe's folder; none of its code is run and nothing is fetched."""
    label: int | None = Field(default=None, ge=0)
    """Output whose probability is the signal, from 0; null is the second of two. A model with one output gives that itself."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where it runs; part of what the signal is, since results differ in their last digits."""
    batch: int = Field(default=32, ge=1, le=4096)
    """Texts of a batch; part of what the signal is, likewise."""
    max_tokens: int = Field(default=512, ge=2)
    """Tokens of a text that the model sees; not above what it was made for."""


class Signal(Strict):
    """A signal of the user's own, one number for each document, which rules and other expressions name like any signal.

    It is the result of local code or of a local model, or was measured before: a recipe that has one runs what it names, so read it as
    you would read a script.
    """

    python: str | None = None
    """package.module:function, or scorer.py:function with the file beside the recipe; called with record batches of documents.

    It returns a number (or null) for each document of the batch, from that document alone."""
    classifier: str | None = None
    """File of `gristmill classify train`, relative to the recipe's folder: the probability that a text is of the good kind, 0 to 1."""
    transformer: Transformer | None = None
    """A local transformers classifier."""
    losses: str | None = None
    """File of `gristmill score`, relative to the recipe's folder: the document's loss under an earlier model, null where that has none."""
    version: int = Field(default=1, ge=0)
    """Raise it when the function's results change; lakes then compute the signal anew. A .py file's own content counts without it."""
    sources: list[str] | None = None
    """Sources it is computed for, null elsewhere; null is all."""

    @model_validator(mode="after")
    def _one_kind(self) -> Signal:
        if sum(kind is not None for kind in (self.python, self.classifier, self.transformer, self.losses)) != 1:
            raise ValueError("a signal has one of 'python', 'classifier', 'transformer' and 'losses'")
        return self


class RuleEntry(Strict):
    """A rule set with its changes, or one rule of the recipe's own."""

    set: str | None = None
    """Name of a rule set."""
    off: list[str] = []
    """Rules of the set that are switched off."""
    thresholds: dict[str, float] = {}
    """Thresholds of the set that are changed, by reason."""
    sql: str | None = None
    """One SQL expression over signals that is true for documents to drop."""
    name: str | None = Field(default=None, pattern=REASON)
    """Reason code of the recipe's own rule: letters, digits and _."""
    sources: list[str] | None = None
    """Sources it applies to; null is all."""

    @model_validator(mode="after")
    def _one_kind(self) -> RuleEntry:
        if (self.set is None) == (self.sql is None):
            raise ValueError("a rule has either 'set' or 'sql'")
        if self.sql is not None and self.name is None:
            raise ValueError("a rule with 'sql' needs a 'name', its reason code")
        if self.sql is not None and (self.off or self.thresholds):
            raise ValueError("'off' and 'thresholds' change a rule set; a rule with 'sql' has none")
        return self


class NearDedup(Strict):
    """Near-duplicate removal: word shingles, sketches, LSH, exact Jaccard verification."""

    kind: Literal["fast_similarity", "minhash"] = "fast_similarity"
    """Sketch: FastSimilaritySketch or classic MinHash (loads into datasketch)."""
    permutations: int = Field(default=112, ge=8, le=1024)
    """Sketch length K."""
    bands: int = Field(default=18, ge=1, le=256)
    """LSH bands."""
    rows: int = Field(default=6, ge=1, le=64)
    """Rows per band; bands * rows at most permutations."""
    shingle: int = Field(default=5, ge=1, le=50)
    """Words per shingle."""
    threshold: float = Field(default=0.8, gt=0, le=1)
    """Exact Jaccard from which two documents are duplicates."""
    policy: Literal["leader", "transitive"] = "leader"
    """leader: a document goes only when a kept one is verified similar; transitive: one document per connected component stays."""

    @model_validator(mode="after")
    def _fits(self) -> NearDedup:
        if self.bands * self.rows > self.permutations:
            raise ValueError(f"bands * rows = {self.bands * self.rows} is more than permutations = {self.permutations}")
        return self


class Dedup(Strict):
    """Deduplication over all sources."""

    urls: bool = False
    """Drop all but one of the documents whose addresses lead to the same page (scheme, www., fragments and tracking left out)."""
    exact: bool = True
    """Drop exact duplicates (white space folded)."""
    near: NearDedup | None = NearDedup()
    """Near-duplicate removal; null is off."""
    prefer: list[str] = ["bytes"]
    """SQL expressions over signals and document columns, higher is kept; ties go to the earlier source, then to the smaller doc_id."""
    check: int = Field(default=0, ge=0, le=100_000)
    """Near-duplicate pairs drawn in each run whose similarity is also estimated by datasketch: table estimates. 0 is none."""


class Alarms(Strict):
    """When deduplication looks faulty: rows of the table alarms, printed after each run."""

    cluster_share: float = Field(default=0.01, gt=0, le=1)
    """A cluster of more than this share of a source's documents (those that pass the rules) raises one."""
    cluster_documents: int = Field(default=100, ge=2)
    """A smaller cluster never does."""
    drop_share: float = Field(default=0.9, gt=0, le=1)
    """More than this share of a source's new documents being duplicates raises one."""
    fatal: bool = False
    """Whether an alarm fails the run; the lake's snapshot then stays what it was."""


class EvaluationSet(Strict):
    """Evaluation items that no document may hold."""

    paths: list[str] = Field(min_length=1)
    """JSON lines, Parquet or plain text (one item a file), told by content; files, folders or globs, relative to the recipe's folder."""
    fields: list[str] = ["text"]
    """Fields that hold an item's texts (one, or a list), each compared by itself; a.b is field b inside field a."""


class Decontaminate(Strict):
    """Documents that share word n-grams with evaluation sets are dropped as contaminated_<set>; table exclusions names the item."""

    sets: dict[Annotated[str, Field(pattern=SQL_NAME)], EvaluationSet] = Field(min_length=1)
    """Evaluation sets by name; of several that match, the first is named."""
    ngram: int = Field(default=13, ge=2, le=100)
    """Words of an n-gram; an item of fewer words matches as a whole."""
    min_words: int = Field(default=3, ge=1)
    """Items of fewer words are not looked for: a 'yes' is in every document."""


class OptOut(Strict):
    """Documents that someone asked not to use: dropped as opted_out. Files hold one entry a line; lines that begin with # are comments."""

    domains: list[str] = []
    """Files of domains, which cover the domains below them; compared with the host of a document's url."""
    ids: list[str] = []
    """Files of documents, each a doc_id in hex or source:id."""


class Block(Strict):
    """URLs that are not wanted: their documents are dropped as url_blocked, and the verdict's exclusion names the list and its entry.

    Files hold one entry a line; lines that begin with # are comments, and a line that cannot be an entry is refused.
    """

    domains: list[str] = []
    """Files of domains, which cover the domains below them; lines of a hosts file (0.0.0.0 name) too."""
    urls: list[str] = []
    """Files of URLs; compared without scheme, leading www., fragment, and parameters that only track."""
    words: list[str] = []
    """Files of words; one blocks a URL that has it as a whole word, percent-decoded and in any case."""


class Choices(Strict):
    """Multiple-choice questions that every evaluation answers; accuracy is by the length-normalised likelihood of the options."""

    path: str
    """File of JSON lines, relative to the recipe's folder."""
    form: Literal["hellaswag", "arc"]
    """hellaswag: ctx, endings, label; arc: question, choices, answerKey."""
    limit: int = Field(default=200, ge=1)
    """Questions asked at most, spread over the file."""


class Holdout(Strict):
    """Held-out documents: drawn by hash of doc_id, with everything similar to them kept out of training."""

    share: float = Field(default=0.02, ge=0, le=0.5)
    """Share of each source's documents that is drawn."""
    max_documents: int = Field(default=200, ge=1)
    """Most documents drawn per source."""
    threshold: float = Field(default=0.5, gt=0, le=1)
    """Exact Jaccard from which a document is too similar to a held-out one to be trained on."""


class Tokenizer(Strict):
    """How text becomes token ids."""

    kind: Literal["bpe", "byte", "file"] = "bpe"
    """bpe: byte-level pairs trained on kept text; byte: 256 bytes; file: a tokenizer.json."""
    vocabulary: int = Field(default=4096, ge=260, le=1_000_000)
    """Vocabulary of a trained tokenizer, special tokens included."""
    sample_bytes: int = Field(default=20_000_000, ge=1000)
    """Text it is trained on: kept documents by hash order up to this many bytes."""
    path: str | None = None
    """tokenizer.json, relative to the recipe's folder, for kind file."""

    @model_validator(mode="after")
    def _path(self) -> Tokenizer:
        if (self.kind == "file") != (self.path is not None):
            raise ValueError("kind file needs 'path', and only that kind has one")
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
    """A source that learns (or exceeds) a quarter as much as the first aims at e to this power times its start, half way at once."""
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
    tokens: Annotated[int, Field(ge=1)] | Literal["rest", "chinchilla"]
    """Token positions to train on; rest: as many as the mixture allows within the budgets; chinchilla: 20 for each parameter."""
    mixture: dict[str, Annotated[float, Field(gt=0)]] | Literal["proportional", "temperature", "unimax", "adaptive"] = "proportional"
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


class Shards(Strict):
    """How the lake's tables are cut; part of what published bytes depend on."""

    bytes: int = Field(default=32_000_000, ge=1)
    """Text bytes in a documents shard, about."""


class Recipe(Strict):
    """A whole run."""

    name: str = Field(pattern=NAME)
    """Run name."""
    seed: int = Field(default=0, ge=-(1 << 63), lt=1 << 63)
    """Seed of every draw, order and initialisation."""
    sources: dict[Annotated[str, Field(pattern=NAME)], Source] = Field(min_length=1)
    """Sources by name; their order is the order of shards."""
    signals: dict[Annotated[str, Field(pattern=SQL_NAME)], Signal] = {}
    """Signals of the user's own by name, beside those of the signals table."""
    edits: list[Edit] = []
    """Steps that change text, in the order in which they run; signals, rules and all that follows see the edited text."""
    generations: Literal["one", "append"] = "one"
    """What a lake that holds a snapshot does with new files.

    one: everything is curated as if it were new. append: new files become a generation of their own: documents kept before stay kept, new
    ones are compared with them, and lots of earlier generations never change. Changed files and rules are refused."""
    rules: list[RuleEntry] = []
    """Rules in the order in which they are reported."""
    decontaminate: Decontaminate | None = None
    """Evaluation sets that no document may hold."""
    block: Block = Block()
    """Block lists of URLs."""
    opt_out: OptOut = OptOut()
    """Documents that someone asked not to use."""
    dedup: Dedup = Dedup()
    """Deduplication."""
    alarms: Alarms = Alarms()
    """When deduplication looks faulty."""
    memory_bytes: int | None = Field(default=None, ge=256 << 20)
    """Memory that steps over the whole corpus may use before they spill to the disk; null is half of the machine's. Changes no result."""
    holdout: Holdout = Holdout()
    """Held-out documents."""
    choices: dict[Annotated[str, Field(pattern=NAME)], Choices] = {}
    """Multiple-choice sets by name."""
    tokenizer: Tokenizer = Tokenizer()
    """Tokenizer."""
    pack: Pack = Pack()
    """Packing."""
    shards: Shards = Shards()
    """Shard sizes."""
    model: ModelSettings = ModelSettings()
    """Model."""
    start_from: str | None = None
    """Folder of a Hugging Face Llama or GPT-2 model (config.json, safetensors), relative to the recipe's: the first stage starts from its
    weights, and model takes its sizes from it. Its tokenizer.json must be the recipe's tokenizer."""
    training: TrainSettings = TrainSettings()
    """Training, for all stages."""
    stages: list[Stage] = []
    """Curriculum, in order."""

    @field_validator("stages")
    @classmethod
    def _unique(cls, stages: list[Stage]) -> list[Stage]:
        names = [stage.name for stage in stages]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two stages are called {name!r}")
        return stages

    @field_validator("model", mode="before")
    @classmethod
    def _named_size(cls, model: Any) -> Any:
        return with_size(model) if isinstance(model, dict) else model

    @field_validator("model")
    @classmethod
    def _fits(cls, model: ModelSettings) -> ModelSettings:
        if (mistake := model.mistake()) is not None:
            raise ValueError(": ".join(mistake))
        return model

    @model_validator(mode="after")
    def _known_sources(self) -> Recipe:
        for position, stage in enumerate(self.stages):
            if isinstance(stage.mixture, dict):
                self._know(stage.mixture, f"stages[{position}].mixture")
            self._know(stage.sources or [], f"stages[{position}].sources")
            self._check_changes(stage, position)
        for position, rule in enumerate(self.rules):
            self._know(rule.sources or [], f"rules[{position}].sources")
        for name, signal in self.signals.items():
            self._know(signal.sources or [], f"signals.{name}.sources")
        for position, edit in enumerate(self.edits):
            self._know(edit.sources or [], f"edits[{position}].sources")
        return self

    def _check_changes(self, stage: Stage, position: int) -> None:
        """What a stage says of other stages, row lengths and sources."""
        where = f"stages[{position}]"
        before = [earlier.name for earlier in self.stages[:position]]
        if stage.adaptive is not None:
            self._know(stage.adaptive.start or [], f"{where}.adaptive.start")
            if isinstance(stage.adaptive.reference, dict):
                self._know(stage.adaptive.reference, f"{where}.adaptive.reference")
        for name in stage.replay.stages if stage.replay else ():
            if name not in before:
                raise ValueError(f"{where}.replay names {name!r}, which is no earlier stage{nearest(name, before)}")
        if stage.blend is not None and not before:
            raise ValueError(f"{where}.blend: there is no stage before it")
        for length in stage.length_warmup:
            if length not in self.pack.lengths:
                raise ValueError(f"{where}.length_warmup: no rows of {length} tokens are packed; add {length} to pack.lengths")

    def training_of(self, stage: Stage, where: str = "") -> TrainSettings:
        """A stage's training settings: the recipe's, changed by the stage's own.

        Raises:
            RecipeError: a change that names no setting, has the wrong type, or leaves no rows for a step.
        """
        merged = merge(asdict(self.training), stage.training)
        where = where or f"stages.{stage.name}.training"
        settings: TrainSettings = build(TrainSettings, merged, where)
        for name in ("batch_rows", "micro_batch_rows"):
            if getattr(settings, name) < 1:
                raise RecipeError(f"{getattr(settings, name)} is below 1", where=f"{where}.{name}")
        return settings

    def _know(self, names: Any, where: str) -> None:
        for name in names:
            if name not in self.sources:
                raise ValueError(f"{where} names an unknown source {name!r}{nearest(name, self.sources)}")


def merge(base: Any, over: Any) -> Any:
    """Mappings merge field by field; anything else is replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: merge(base[key], value) if key in base else value for key, value in over.items()}}
    return over
