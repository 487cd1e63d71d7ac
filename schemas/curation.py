"""What a recipe says of curation: signals, rules, deduplication, and documents that must not be trained on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.strict import REASON, SQL_NAME, Strict


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


class FastTextModel(Strict):
    """A supervised model in fastText's format, .bin or .ftz: a classifier, or one that tells languages."""

    path: str
    """The file, relative to the recipe's folder; nothing in it is run."""
    label: str
    """Label whose probability is the signal, with or without __label__."""


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
    fasttext: FastTextModel | None = None
    """A fastText model's probability of a label, 0 to 1; null where it knows nothing of a text."""
    losses: str | None = None
    """File of `gristmill score`, relative to the recipe's folder: the document's loss under an earlier model, null where that has none."""
    version: int = Field(default=1, ge=0)
    """Raise it when the function's results change; lakes then compute the signal anew. A .py file's own content counts without it."""
    sources: list[str] | None = None
    """Sources it is computed for, null elsewhere; null is all."""

    @model_validator(mode="after")
    def _one_kind(self) -> Signal:
        if sum(kind is not None for kind in (self.python, self.classifier, self.transformer, self.fasttext, self.losses)) != 1:
            raise ValueError("a signal has one of 'python', 'classifier', 'transformer', 'fasttext' and 'losses'")
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
    before: str | None = None
    """Edit before which the rule looks at the text (the first of that name); what fails is dropped there and not edited. Null: after all.

    Only columns of the signals table are known by then; table early_signals holds them."""
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
    """JSON lines, a JSON array, Parquet or plain text (one item a file), told by content; files, folders or globs, relative to the recipe's
    folder."""
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
    """Share of each source's documents that is drawn, of a source of two or more at least one; 0 draws none."""
    max_documents: int = Field(default=200, ge=1)
    """Most documents drawn per source."""
    threshold: float = Field(default=0.5, gt=0, le=1)
    """Exact Jaccard from which a document is too similar to a held-out one to be trained on."""
