"""Edits of a recipe: the steps that change text."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from schemas.strict import Strict

C4Rule = Literal[
    "too_long_word",
    "citation",
    "no_terminal_punct",
    "too_few_words",
    "lorem_ipsum",
    "javascript",
    "curly_bracket",
    "policy",
    "too_few_sentences",
]
"""C4's rules in the order in which a line meets them; the last one is the document's."""

C4_RULES: tuple[str, ...] = get_args(C4Rule)

MaskKind = Literal["email", "ip", "phone", "iban", "key"]
"""What can be masked."""

MASK_KINDS: tuple[str, ...] = get_args(MaskKind)


class _Edit(Strict):
    sources: list[str] | None = None
    """Sources it applies to; null is all."""


class C4Edit(_Edit):
    """The lines that C4's rules keep (Raffel et al. 2020, section 2.2, as datatrove applies them); its document rules drop documents."""

    edit: Literal["c4"]
    """Which edit it is."""
    off: list[C4Rule] = []
    """Rules that are switched off; FineWeb switches no_terminal_punct off."""
    thresholds: dict[Literal["too_long_word", "too_few_words", "too_few_sentences"], Annotated[int, Field(ge=1)]] = {}
    """Changes to: most code points in a word (1000), least words in a line (3), least sentences in a document (5)."""

    bad_words: list[str] = []
    """Files of words and phrases, one a line, relative to the recipe's folder; a document whose lines hold one fails as c4_bad_words.

    They match as whole words without regard to case and marks, anywhere in scripts without spaces; lines that begin with # are comments."""

    @model_validator(mode="after")
    def _no_dead_options(self) -> C4Edit:
        for rule in self.thresholds:
            if rule in self.off:
                raise ValueError(f"{rule!r} is off and has a threshold: keep one of the two")
        return self


class RepeatedUnits(_Edit):
    """Repeated lines or paragraphs are cut out; the first occurrence stays."""

    edit: Literal["lines", "paragraphs"]
    """Which edit it is. A paragraph is lines up to the next blank one."""
    within: Literal["corpus", "document"] = "corpus"
    """Where repeats are looked for: in all documents that this edit applies to, or in each one by itself."""
    min_bytes: int = Field(default=1, ge=1)
    """Shorter units always stay."""


class RepeatedSubstrings(_Edit):
    """Repeated runs of tokens are cut out wherever they begin (Lee et al. 2022); the first occurrence stays."""

    edit: Literal["substrings"]
    """Which edit it is."""
    within: Literal["corpus", "document"] = "corpus"
    """Where repeats are looked for: in all documents that this edit applies to, or in each one by itself."""
    min_tokens: int = Field(default=50, ge=5, le=1000)
    """Least tokens of a repeat. A token is a run of letters and digits, or any other visible character; white space does not count."""


class RepairEdit(_Edit):
    """Broken encodings, control characters, ligatures and HTML entities are put right by ftfy, and text is brought to Unicode form NFC.

    Typographic quotes and full-width characters stay as they are.
    """

    edit: Literal["repair"]
    """Which edit it is; needs the extra 'text'."""


class MaskEdit(_Edit):
    """Personal data and keys are replaced by their kind, as in [EMAIL]."""

    edit: Literal["mask"]
    """Which edit it is."""
    kinds: list[MaskKind] = ["email", "ip", "phone", "iban", "key"]
    """What is masked: e-mail addresses, public IP addresses, telephone numbers, IBANs whose check digits are right, keys and secrets."""


Edit = Annotated[C4Edit | RepeatedUnits | RepeatedSubstrings | RepairEdit | MaskEdit, Field(discriminator="edit")]
"""One edit of a recipe."""
