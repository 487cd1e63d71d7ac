"""The rule sets as data: for each rule a reason code, a value in SQL over the signals, a comparison and a default threshold.

A document fails a rule when the comparison is true; all are strict, so a value at its threshold passes. A ratio without a denominator is
NULL and fails nothing. Reasons and thresholds stay what they are within a version of a set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from curate.rules.by_language import thresholds


@dataclass(frozen=True)
class Rule:
    """One reason to drop a document.

    Attributes:
        name: Reason code, stable.
        value: SQL expression over signals; for a recipe's own rule, its whole predicate.
        comparison: How the value fails against the threshold; None for a recipe's own rule.
        threshold: What the value is compared with; None for a recipe's own rule.
        origin: The rule set and its version, or "recipe".
        by_language: Thresholds of languages in place of one for all; a language that is not among them fails nothing.
    """

    name: str
    value: str
    comparison: Literal["<", ">", "<="] | None
    threshold: float | None
    origin: str = "recipe"
    by_language: tuple[tuple[str, float], ...] = ()

    @property
    def limit(self) -> str:
        """SQL of the threshold; NULL where there is none."""
        if self.by_language:
            cases = " ".join(f"WHEN '{language}' THEN CAST('{number!r}' AS DOUBLE)" for language, number in self.by_language)
            return f"CASE language {cases} END"
        # A quoted literal is read as the nearest DOUBLE; a bare one would be a DECIMAL.
        return "CAST(NULL AS DOUBLE)" if self.threshold is None else f"CAST('{self.threshold!r}' AS DOUBLE)"

    @property
    def predicate(self) -> str:
        """SQL that is TRUE for a document that fails and never NULL."""
        if self.comparison is None:
            return f"coalesce(({self.value}\n), FALSE)"
        return f"coalesce(CAST(({self.value}) AS DOUBLE) {self.comparison} ({self.limit}), FALSE)"


@dataclass(frozen=True)
class RuleSet:
    """Rules that belong together, in the order in which the first failing one names the reason.

    Attributes:
        name: What a recipe calls it.
        version: Raised when a reason, value or default changes; documents are then judged anew.
        source: Where its rules come from.
        rules: The rules in order.
    """

    name: str
    version: int
    source: str
    rules: tuple[Rule, ...]


def _ratio(numerator: str, denominator: str) -> str:
    return f"CAST({numerator} AS DOUBLE) / nullif({denominator}, 0)"


def _set(name: str, version: int, source: str, *rules: tuple[str, str, Literal["<", ">"], float]) -> RuleSet:
    return RuleSet(name, version, source, tuple(Rule(*rule, origin=f"{name}/{version}") for rule in rules))


_EMPTY: tuple[str, str, Literal["<", ">"], float] = ("empty", "n_chars", "<", 1.0)

GOPHER_QUALITY = _set(
    "gopher_quality",
    1,
    "Rae et al. 2021, Scaling Language Models (Gopher), appendix A.1, as datatrove applies it",
    _EMPTY,
    ("gopher_short_doc", "n_content_words", "<", 50.0),
    ("gopher_long_doc", "n_content_words", ">", 100_000.0),
    ("gopher_below_avg_threshold", _ratio("content_word_chars", "n_content_words"), "<", 3.0),
    ("gopher_above_avg_threshold", _ratio("content_word_chars", "n_content_words"), ">", 10.0),
    ("gopher_too_many_hashes", _ratio("n_hashes", "n_words"), ">", 0.1),
    ("gopher_too_many_ellipsis", _ratio("n_ellipses", "n_words"), ">", 0.1),
    ("gopher_too_many_bullets", _ratio("n_bullet_lines", "n_text_lines"), ">", 0.9),
    ("gopher_too_many_end_ellipsis", _ratio("n_ellipsis_lines", "n_text_lines"), ">", 0.3),
    ("gopher_below_alpha_threshold", _ratio("n_alpha_words", "n_words"), "<", 0.8),
    ("gopher_enough_stop_words", "n_stop_words", "<", 2.0),
)

GOPHER_REPETITION = _set(
    "gopher_repetition",
    1,
    "Rae et al. 2021, Scaling Language Models (Gopher), table A1, as datatrove applies it",
    _EMPTY,
    ("dup_para_frac", _ratio("n_dup_paragraphs", "n_paragraphs"), ">", 0.3),
    ("dup_para_char_frac", _ratio("dup_paragraph_chars", "n_chars"), ">", 0.2),
    ("dup_line_frac", _ratio("n_dup_lines", "n_lines"), ">", 0.3),
    ("dup_line_char_frac", _ratio("dup_line_chars", "n_chars"), ">", 0.2),
    ("top_2_gram", _ratio("top_2_gram_chars", "n_chars"), ">", 0.20),
    ("top_3_gram", _ratio("top_3_gram_chars", "n_chars"), ">", 0.18),
    ("top_4_gram", _ratio("top_4_gram_chars", "n_chars"), ">", 0.16),
    ("duplicated_5_n_grams", _ratio("dup_5_gram_chars", "n_chars"), ">", 0.15),
    ("duplicated_6_n_grams", _ratio("dup_6_gram_chars", "n_chars"), ">", 0.14),
    ("duplicated_7_n_grams", _ratio("dup_7_gram_chars", "n_chars"), ">", 0.13),
    ("duplicated_8_n_grams", _ratio("dup_8_gram_chars", "n_chars"), ">", 0.12),
    ("duplicated_9_n_grams", _ratio("dup_9_gram_chars", "n_chars"), ">", 0.11),
    ("duplicated_10_n_grams", _ratio("dup_10_gram_chars", "n_chars"), ">", 0.10),
)

FINEWEB = _set(
    "fineweb",
    1,
    "Penedo et al. 2024, The FineWeb Datasets, section 3.5, as datatrove applies it",
    ("empty", "n_full_lines", "<", 1.0),
    ("line_punct_ratio", _ratio("n_terminal_lines", "n_full_lines"), "<", 0.12),
    ("short_line_ratio", _ratio("n_short_lines", "n_full_lines"), ">", 0.67),
    ("char_dup_ratio", _ratio("dup_full_line_chars", "n_chars - n_newlines"), ">", 0.01),
    ("list_ratio", _ratio("n_newlines", "n_words"), ">", 0.3),
)

CODE = _set(
    "code",
    1,
    "Li et al. 2023, StarCoder, section 3.1 (line lengths and alphanumeric share); the last two are our own",
    _EMPTY,
    ("code_long_line", "max_line_chars", ">", 1_000.0),
    ("code_mean_line", _ratio("n_chars - n_newlines", "n_newlines + 1"), ">", 100.0),
    ("code_low_alphanumeric", _ratio("n_alpha_chars + n_digit_chars", "n_chars"), "<", 0.25),
    ("code_unbalanced_brackets", _ratio("n_unbalanced_brackets", "n_lines"), ">", 0.2),
    ("code_mixed_indents", _ratio("n_mixed_indents", "n_lines"), ">", 0.2),
)

DAMAGED_CODE = _set(
    "damaged_code",
    1,
    "our own: blocks, names, ends, long lines, commas and indentation weighed together (bench/code_signals.py)",
    _EMPTY,
    (
        "code_damaged",
        f"10 * {_ratio('n_unopened_lines + n_unfilled_blocks', 'n_code_lines + 1')} + 2 * n_unfinished"
        f" + 20 * greatest({_ratio('n_rough_names', 'n_ascii_names + 1')} - 0.05, 0)"
        f" + {_ratio('n_commas_tight', 'n_commas_spaced + n_commas_tight + 1')}"
        f" + 20 * {_ratio('n_long_lines', 'n_newlines + 1')} + 4 * {_ratio('n_uneven_indents', 'n_space_indents + 1')}",
        ">",
        2.0,
    ),
)

REDPAJAMA = _set(
    "redpajama",
    1,
    "Weber et al. 2024, RedPajama-v2: its signals under Gopher's rules (its data card's thresholds; repetition by Rae et al., table A1)",
    _EMPTY,
    ("rps_short_doc", "rps_words", "<", 50.0),
    ("rps_long_doc", "rps_words", ">", 10_000.0),
    ("rps_short_words", _ratio("rps_word_chars", "rps_words"), "<", 3.0),
    ("rps_long_words", _ratio("rps_word_chars", "rps_words"), ">", 10.0),
    ("rps_symbols", _ratio("rps_symbols", "rps_raw_words"), ">", 0.1),
    ("rps_bullets", _ratio("rps_bullet_lines", "rps_lines"), ">", 0.9),
    ("rps_ellipses", _ratio("rps_ellipsis_lines", "rps_lines"), ">", 0.3),
    ("rps_no_alpha_words", _ratio("rps_raw_words - rps_alpha_words", "rps_raw_words"), ">", 0.2),
    ("rps_lorem_ipsum", "rps_lorem_ipsum", ">", 0.0),
    *(
        (f"rps_top_{n}_gram", _ratio(f"rps_top_{n}_gram_chars", "rps_word_chars"), ">", most)
        for n, most in ((2, 0.20), (3, 0.18), (4, 0.16))
    ),
    *((f"rps_dup_{n}_grams", _ratio(f"rps_dup_{n}_gram_chars", "rps_word_chars"), ">", (20 - n) / 100) for n in range(5, 11)),
)


def _fineweb2() -> RuleSet:
    """Gopher repetition without paragraph rules, FineWeb without short lines, and Gopher quality, with thresholds by language."""
    known = {rule.name: rule for rules in (GOPHER_QUALITY, GOPHER_REPETITION, FINEWEB) for rule in rules.rules}
    for_all = [known["empty"], replace(known["char_dup_ratio"], threshold=0.1)]
    for_each = [replace(known[reason], threshold=None, by_language=numbers) for reason, numbers in thresholds().items()]
    origin = "fineweb2/1"
    rules = tuple(replace(rule, origin=origin) for rule in (*for_all, *for_each))
    return RuleSet("fineweb2", 1, "Penedo et al. 2025, FineWeb2, its published thresholds; without stop words and language scores", rules)


RULE_SETS: dict[str, RuleSet] = {
    rules.name: rules for rules in (GOPHER_QUALITY, GOPHER_REPETITION, FINEWEB, CODE, DAMAGED_CODE, REDPAJAMA, _fineweb2())
}
"""Every rule set by the name that recipes use."""
