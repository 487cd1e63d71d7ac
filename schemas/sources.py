"""Sources of a recipe: where documents come from, and how often each may be used."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.strict import Strict


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
    """Which languages a source may have; needs the extra 'text'. Every document's language is then a signal, kept or not.

    Words of texts in scripts without spaces (Han, kana, Thai, Lao, Khmer, Burmese, Tibetan, Ethiopic) are then cut by ICU.
    """

    allow: list[Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]] = []
    """Languages that stay (ISO 639, as the model names them: en, de, zh, ...); empty is all. Others fail as language_not_allowed."""
    min_score: float | None = Field(default=0.65, ge=0, le=1)
    """A probability at or below it fails as language_score, as FineWeb does; null is off."""


MOST_EPOCHS = 10_000
"""Beyond this a number of uses is a slip of the pen; counts of them stay far within 32 bits."""

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
    """What the files are; any may be packed by gzip or Zstandard, told by content.

    jsonl; parquet; arrow (IPC, stream or file); csv (first row names the fields; comma, tab, semicolon or bar); warc (WARC, WET; HTML needs
    the extra 'web'); datasets (a folder written by save_to_disk, or hf://datasets/OWNER/NAME: what the Hub has of it as Parquet); text (a
    document per file); python (text that comes with Python)."""
    paths: list[str] = []
    """Files, folders or globs, relative to the recipe's folder, or of s3://BUCKET/... or hf://datasets/OWNER/NAME[@REVISION]/...; not for
    the python reader."""
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
    families: list[Literal["code", "compression", "redpajama", "scripts", "structure"]] = []
    """Families of signals to compute though nothing in the recipe names a column of theirs, to look into by SQL or `what-if`."""
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
        if self.epochs > MOST_EPOCHS:
            raise ValueError(f"{self.epochs:g} epochs are above {MOST_EPOCHS:,}")
        if self.epochs > 7 and not self.allow_many_epochs:
            raise ValueError(f"max_epochs {self.epochs:g} is above 7, where repetition hurts: set allow_many_epochs: true to insist")
        return self
