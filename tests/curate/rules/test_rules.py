"""Rule sets drop what their tables say, at their thresholds, with every failing rule recorded."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.rules import RULE_SETS, Rule, evaluate, resolve_rules
from curate.rules.expression import sandbox
from curate.scores import signal_schema
from curate.signals import compute_signals
from schemas.errors import RecipeError
from schemas.families import FAMILIES
from schemas.signals import SIGNALS
from schemas.tables import FAILURE


def signals(texts: list[str], language: str | None = None) -> pa.Table:
    counted = pa.Table.from_batches([compute_signals(pa.array(texts, pa.large_string()))])
    counted = counted.append_column("language", pa.array([language] * len(texts), pa.string()))
    for family in FAMILIES.values():  # not asked for
        for field in family:
            counted = counted.append_column(field.name, pa.nulls(len(texts), field.type))
    return counted


def reasons(texts: list[str], *entries: dict[str, Any]) -> list[list[str]]:
    failed = evaluate(signals(texts), resolve_rules(entries)).column("failures").to_pylist()
    return [[failure["rule"] for failure in row] for row in failed]


def with_counts(**counts: int) -> pa.Table:
    """One document whose counts are all 1 but for those given."""
    return pa.Table.from_pylist([{name: counts.get(name, 1) for name in SIGNALS.names}], schema=SIGNALS)


GOPHER_TEXT = "The cat and the dog of that house have been with us to be here. " * 3


def test_every_reason_of_the_field_is_there_in_order() -> None:
    assert [rule.name for rule in RULE_SETS["gopher_quality"].rules] == (
        [
            "empty",
            "gopher_short_doc",
            "gopher_long_doc",
            "gopher_below_avg_threshold",
            "gopher_above_avg_threshold",
            "gopher_too_many_hashes",
            "gopher_too_many_ellipsis",
            "gopher_too_many_bullets",
            "gopher_too_many_end_ellipsis",
            "gopher_below_alpha_threshold",
            "gopher_enough_stop_words",
        ]
    )
    assert [(rule.name, rule.threshold) for rule in RULE_SETS["gopher_repetition"].rules] == (
        [("empty", 1), ("dup_para_frac", 0.3), ("dup_para_char_frac", 0.2), ("dup_line_frac", 0.3), ("dup_line_char_frac", 0.2)]
        + [("top_2_gram", 0.2), ("top_3_gram", 0.18), ("top_4_gram", 0.16)]
        + [(f"duplicated_{n}_n_grams", threshold) for n, threshold in zip(range(5, 11), (0.15, 0.14, 0.13, 0.12, 0.11, 0.1), strict=True)]
    )
    assert [(rule.name, rule.comparison, rule.threshold) for rule in RULE_SETS["fineweb"].rules] == [
        ("empty", "<", 1),
        ("line_punct_ratio", "<", 0.12),
        ("short_line_ratio", ">", 0.67),
        ("char_dup_ratio", ">", 0.01),
        ("list_ratio", ">", 0.3),
    ]


@pytest.mark.parametrize("rules", RULE_SETS.values(), ids=list(RULE_SETS))
def test_every_rule_is_an_allowed_expression_over_signals(rules: Any) -> None:
    assert len({rule.name for rule in rules.rules}) == len(rules.rules)
    assert rules.version >= 1 and all(rule.origin == f"{rules.name}/{rules.version}" for rule in rules.rules)
    with sandbox() as db:
        db.register("signals", signal_schema(()).empty_table())
        for rule in rules.rules:
            assert str(db.sql(f"SELECT {rule.predicate} FROM signals").types[0]) == "BOOLEAN"


@pytest.mark.parametrize(
    ("rule", "counts", "fails"),
    [
        ("gopher_short_doc", {"n_content_words": 50}, False),
        ("gopher_short_doc", {"n_content_words": 49}, True),
        ("gopher_long_doc", {"n_content_words": 100_000}, False),
        ("gopher_long_doc", {"n_content_words": 100_001}, True),
        ("gopher_below_avg_threshold", {"content_word_chars": 300, "n_content_words": 100}, False),
        ("gopher_below_avg_threshold", {"content_word_chars": 299, "n_content_words": 100}, True),
        ("gopher_too_many_hashes", {"n_hashes": 10, "n_words": 100}, False),
        ("gopher_too_many_hashes", {"n_hashes": 11, "n_words": 100}, True),
        ("gopher_below_alpha_threshold", {"n_alpha_words": 80, "n_words": 100}, False),
        ("gopher_below_alpha_threshold", {"n_alpha_words": 79, "n_words": 100}, True),
        ("gopher_too_many_bullets", {"n_bullet_lines": 9, "n_text_lines": 10}, False),
        ("top_3_gram", {"top_3_gram_chars": 18, "n_chars": 100}, False),
        ("top_3_gram", {"top_3_gram_chars": 19, "n_chars": 100}, True),
        ("duplicated_10_n_grams", {"dup_10_gram_chars": 10, "n_chars": 100}, False),
        ("line_punct_ratio", {"n_terminal_lines": 12, "n_full_lines": 100}, False),
        ("line_punct_ratio", {"n_terminal_lines": 11, "n_full_lines": 100}, True),
        ("short_line_ratio", {"n_short_lines": 67, "n_full_lines": 100}, False),
        ("char_dup_ratio", {"dup_full_line_chars": 1, "n_chars": 110, "n_newlines": 10}, False),
        ("list_ratio", {"n_newlines": 3, "n_words": 10}, False),
    ],
)
def test_a_value_at_its_threshold_passes(rule: str, counts: dict[str, int], fails: bool) -> None:
    every = [rule for name, rules in RULE_SETS.items() if name != "fineweb2" for rule in rules.rules]
    (chosen,) = [candidate for candidate in every if candidate.name == rule]
    failures = evaluate(with_counts(**counts), [chosen]).column("failures").to_pylist()[0]
    assert [failure["rule"] for failure in failures] == [rule] * fails


def test_ratios_compare_as_python_floats_do() -> None:
    """The threshold is the nearest double, not a decimal: k/n against it agrees with Python for every small fraction."""
    rule = RULE_SETS["fineweb"].rules[2]
    pairs = [(k, n) for n in range(1, 120) for k in range(n + 1)]
    table = pa.Table.from_pylist(
        [{**dict.fromkeys(SIGNALS.names, 1), "n_short_lines": k, "n_full_lines": n} for k, n in pairs], schema=SIGNALS
    )
    failed = [bool(row) for row in evaluate(table, [rule]).column("failures").to_pylist()]
    assert failed == [k / n > 0.67 for k, n in pairs]


def test_fineweb2_takes_each_languages_own_threshold() -> None:
    lines = "Une ligne assez longue pour compter.\n" * 2 + "Une autre ligne, assez longue aussi, et sans point\n" * 7
    told = {}
    for language in ("fr", "es", "xx", None):
        failures = evaluate(signals([lines], language), resolve_rules([{"set": "fineweb2"}])).column("failures").to_pylist()[0]
        told[language] = {failure["rule"]: failure["threshold"] for failure in failures}
    assert told["fr"]["dup_line_frac"] == 0.264 and told["es"]["dup_line_frac"] == 0.265
    assert "line_punct_ratio" not in told["fr"] and told["es"]["line_punct_ratio"] == 0.3
    assert told["xx"] == told[None] == {"char_dup_ratio": 0.1}
    one = resolve_rules([{"set": "fineweb2", "thresholds": {"line_punct_ratio": 0.5}}])
    failures = evaluate(signals([lines], None), one).column("failures").to_pylist()[0]
    assert ("line_punct_ratio", 0.5) in {(failure["rule"], failure["threshold"]) for failure in failures}


def test_the_table_of_languages_is_complete() -> None:
    tables = [dict(rule.by_language) for rule in RULE_SETS["fineweb2"].rules if rule.by_language]
    assert len(tables) == 15 and all(set(table) == set(tables[0]) for table in tables) and len(tables[0]) == 23
    assert all(0 <= number < 1 or rule.name.startswith("gopher") for rule in RULE_SETS["fineweb2"].rules for _, number in rule.by_language)


def test_empty_text_gets_its_own_verdict_in_every_set() -> None:
    for name in RULE_SETS:
        assert reasons([""], {"set": name})[0][0] == "empty"
    assert reasons(["\n \t"], {"set": "fineweb"}) == [["empty"]]
    assert reasons([" "], {"set": "gopher_repetition"}) == [[]]


def test_every_failing_rule_is_recorded_in_declared_order_with_value_and_threshold() -> None:
    table = evaluate(signals(["# # # a"]), resolve_rules([{"set": "gopher_quality"}, {"sql": "n_words < 10", "name": "tiny"}]))
    assert table.schema.field("failures").type == pa.list_(FAILURE)
    failures = table.column("failures").to_pylist()[0]
    assert [failure["rule"] for failure in failures] == (
        [
            "gopher_short_doc",
            "gopher_below_avg_threshold",
            "gopher_too_many_hashes",
            "gopher_below_alpha_threshold",
            "gopher_enough_stop_words",
            "tiny",
        ]
    )
    assert failures[2] == {"rule": "gopher_too_many_hashes", "value": 0.75, "threshold": 0.1}
    assert failures[-1] == {"rule": "tiny", "value": None, "threshold": None}


def test_a_recipe_changes_thresholds_and_switches_rules_off() -> None:
    text = [GOPHER_TEXT * 2]
    repeated = reasons(text, {"set": "gopher_repetition"})[0]
    assert "top_2_gram" not in repeated and "duplicated_10_n_grams" in repeated
    off = [rule for rule in repeated if rule != "duplicated_5_n_grams"]
    assert reasons(text, {"set": "gopher_repetition", "off": off, "thresholds": {"duplicated_5_n_grams": 1.0}}) == [[]]
    assert reasons(text, {"set": "gopher_repetition", "thresholds": {"top_2_gram": 0.0}})[0][0] == "top_2_gram"


def test_a_rule_shared_by_two_sets_is_listed_once() -> None:
    names = [rule.name for rule in resolve_rules([{"set": "gopher_quality"}, {"set": "gopher_repetition"}])]
    assert names.count("empty") == 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"set": "gopher_qualty"}, "did you mean 'gopher_quality'"),
        ({"set": "fineweb", "off": ["short_lines_ratio"]}, "did you mean 'short_line_ratio'"),
        ({"set": "fineweb", "thresholds": {"list_ration": 1}}, "did you mean 'list_ratio'"),
        ({"set": "fineweb", "thresholds": {"list_ratio": "much"}}, "'much' is no number"),
        ({"set": "fineweb", "thresholds": {"list_ratio": float("nan")}}, "nan is no number"),
        ({"set": "fineweb", "off": ["list_ratio"], "thresholds": {"list_ratio": 1}}, "is off and has a threshold"),
        ({"set": "fineweb", "treshold": 1}, "did you mean 'thresholds'"),
        ({"set": "fineweb", "sql": "n_words < 1", "name": "a"}, "either 'set' or 'sql'"),
        ({"sql": "n_words < 1"}, "needs a reason code"),
        ({"sql": "n_words < 1", "name": "list_ratio"}, "is taken"),
        ({"sql": "n_word < 1", "name": "mine"}, "did you mean 'n_words'"),
        ({}, "either 'set' or 'sql'"),
    ],
)
def test_mistakes_are_named_with_their_place_and_the_nearest_name(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as error:
        resolve_rules([{"set": "code"}, entry])
    assert message in str(error.value) and "rules[1]" in str(error.value)


def test_order_and_result_do_not_depend_on_threads_or_on_cuts() -> None:
    table = signals([f"{i} " * (i % 90) + "the and " * (i % 7) for i in range(5_000)])
    rules = resolve_rules([{"set": name} for name in RULE_SETS])
    whole = evaluate(table, rules, threads=1)
    assert evaluate(table, rules, threads=4).equals(whole)
    halves = [evaluate(table.slice(0, 1_234), rules), evaluate(table.slice(1_234), rules)]
    assert pa.concat_tables(halves).to_pylist() == whole.to_pylist()


def test_no_rules_and_no_rows() -> None:
    assert evaluate(signals(["a", "b"]), []).column("failures").to_pylist() == [[], []]
    assert evaluate(signals([]), resolve_rules([{"set": "fineweb"}])).num_rows == 0


def test_a_rule_that_overflows_is_the_users_error() -> None:
    rules = [Rule("big", "n_words * 9223372036854775807 * 9223372036854775807 > 1", None, None)]
    with pytest.raises(RecipeError, match="cannot be computed"):
        evaluate(signals(["a b c"]), rules)


@given(st.lists(st.text(max_size=40), max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_text_gets_a_verdict(texts: list[str]) -> None:
    rules = resolve_rules([{"set": name} for name in RULE_SETS])
    failures = evaluate(signals(texts), rules)
    assert failures.num_rows == len(texts) and failures.column("failures").null_count == 0


def test_rules_run_without_access_to_files(tmp_path: Any) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with sandbox() as db:
        for query in (f"SELECT * FROM '{secret}'", f"SELECT * FROM read_text('{secret}')", f"COPY (SELECT 1) TO '{tmp_path}/x.csv'"):
            with pytest.raises(duckdb.Error):
                db.sql(query).fetchall()
        with pytest.raises(duckdb.Error):
            db.sql("SET enable_external_access = true")
