"""A recipe's SQL is one scalar expression over signals; whatever else it could be is refused with its place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.rules import validate_expression, validate_predicate
from curate.rules.expression import sandbox
from curate.scores import signal_schema
from schemas.errors import RecipeError
from schemas.signals import SIGNALS


@pytest.mark.parametrize(
    "sql",
    [
        "n_words < 10",
        "N_WORDS < 10 AND n_chars > 0",
        "n_words / nullif(n_lines, 0) > 0.5 OR n_words BETWEEN 1 AND 3",
        "NOT n_words IN (1, 2, 3)",
        "CASE WHEN n_chars > 10 THEN n_words < 3 ELSE TRUE END",
        "coalesce(n_words, 0) IS NOT NULL",
        "CAST(n_words AS DOUBLE) > sqrt(abs(-n_chars)) ** 2",
        "greatest(n_words, n_lines) % 2 = 1",
        "n_words < 3\n",
    ],
)
def test_scalar_expressions_are_accepted(sql: str) -> None:
    validate_predicate(sql, SIGNALS)


HOSTILE = {
    "subquery": "(SELECT TRUE)",
    "subquery in a list": "n_words IN (SELECT 1)",
    "exists": "EXISTS (SELECT 1)",
    "file function": "read_text('/etc/passwd') IS NOT NULL",
    "file as a table": "n_words < 3 FROM '/etc/passwd'",
    "environment": "getenv('HOME') IS NOT NULL",
    "settings": "current_setting('threads') = 1",
    "second statement": "n_words < 3; DROP TABLE x",
    "second expression": "n_words < 3, n_chars",
    "union": "n_words < 3 UNION SELECT TRUE",
    "order": "n_words < 3 ORDER BY 1",
    "brackets that reach out": "n_words < 3) OR (TRUE",
    "comment": "n_words < 3 -- more",
    "open comment": "n_words < 3 /*",
    "alias": "n_words < 3 AS x",
    "distinct": "DISTINCT n_words < 3",
    "aggregate": "sum(n_words) > 3",
    "window": "row_number() OVER () < 3",
    "random": "random() < 0.5",
    "parameter": "n_words < ?",
    "star": "*",
    "columns": "COLUMNS('n_.*') < 3",
    "lambda": "list_filter([1], x -> x > 1) IS NULL",
    "struct": "{'a': n_words} IS NULL",
    "list": "[n_words] IS NULL",
    "string": "n_words < '3'",
    "string beside a string": "'en' = 'de'",
    "string made of a column of text": "abs(language) = 'en'",
    "odd cast": "n_words::VARCHAR IS NULL",
    "date": "DATE '2020-01-01' IS NULL",
    "interval": "INTERVAL 1 DAY IS NULL",
    "collation": "n_words COLLATE nocase < 3",
    "qualified column": "signals.n_words < 3",
    "schema": "main.abs(n_words) < 3",
    "number": "n_words + 1",
    "empty": "",
    "blank": "  ",
    "deep": "(" * 4000 + "TRUE" + ")" * 4000,
    "deep sum": "+".join(["n_words"] * 1200) + " > 1",
    "long": "n_words < 3 " + " " * 20_000,
    "nul": "n_words < 3\x00",
    "try": "TRY(n_words < 3)",
    "method": "'/etc/passwd'.read_text() IS NULL",
    "dollar quotes": "$$x$$ IS NULL",
    "blob": "x'41' IS NULL",
    "row": "(n_words, n_chars) < (1, 2)",
    "any": "n_words = ANY(SELECT 1)",
    "positional": "#1 > 1",
    "variable": "n_words < getvariable('x')",
    "table function": "(FROM read_csv('/etc/passwd')) IS NULL",
    "query": "query('SELECT 1') IS NULL",
    "pragma": "PRAGMA version",
    "attach": "n_words < 3; ATTACH '/tmp/x.db'",
    "limit": "n_words < 3 LIMIT 1",
    "group": "n_words < 3 GROUP BY ALL",
    "filter": "abs(n_words) FILTER (WHERE TRUE) < 3",
    "schema type": "CAST(n_words AS main.mine) < 3",
    "no-break space": "n_words\u00a0< 3",
    "zero width": "n_words\u200b < 3",
    "text that runs backwards": "n_words \u202e< 3",
    "look-alike": "n_w\u043erds < 3",
    "control": "n_words <\x01 3",
    "case": "CASE WHEN TRUE THEN " * 300 + "TRUE" + " END" * 300,
    "cast chain": "n_words" + "::INT" * 1900 + " > 1",
    "sequence": "nextval('s') < 3",
    "macro": "pg_typeof(n_words) IS NULL",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_everything_else_is_refused(kind: str) -> None:
    with pytest.raises(RecipeError) as error:
        validate_predicate(HOSTILE[kind], signal_schema(()), where="rules[0].sql")
    assert str(error.value).startswith("rules[0].sql: ")


def test_the_place_and_the_nearest_name_are_given() -> None:
    with pytest.raises(RecipeError, match=r"'n_wrods' does not exist; did you mean 'n_words'\? at character 17"):
        validate_predicate("n_chars > 1 AND n_wrods < 3", SIGNALS)


@pytest.mark.parametrize("sql", ["language = 'de' AND n_words < 3", "LANGUAGE NOT IN ('de', 'it''s')", "'de' <> language"])
def test_a_column_of_text_compares_with_text(sql: str) -> None:
    validate_predicate(sql, signal_schema(()))
    with pytest.raises(RecipeError, match="constant of kind string is not allowed"):
        validate_predicate(sql.lower().replace("language", "n_words"), signal_schema(()))


def test_numeric_expressions_are_told_from_predicates() -> None:
    validate_expression("n_words / n_lines + 0.5", ["n_words", "n_lines"])
    with pytest.raises(RecipeError, match="not a number"):
        validate_expression("n_words < 3", SIGNALS)
    with pytest.raises(RecipeError, match="not true or false"):
        validate_predicate("n_words", SIGNALS)


TOKENS = st.sampled_from(
    [
        "n_words",
        "n_chars",
        "1",
        "0.5",
        "(",
        ")",
        "+",
        "-",
        "<",
        "=",
        "AND",
        "NOT",
        ",",
        ";",
        "SELECT",
        "FROM",
        "'x'",
        "abs(",
        "--",
        "/*",
        "*",
        "IN",
        "CASE",
        "WHEN",
        "THEN",
        "END",
        "::INT",
        "IS NULL",
        "read_text(",
        "AS",
        '"a"',
        "$1",
        "[",
        "]",
        "{",
        "}",
        "->",
        ":",
    ]
)


@given(st.one_of(st.text(max_size=30), st.lists(TOKENS, max_size=9).map(" ".join)))
@settings(max_examples=300, deadline=None)
def test_any_text_is_accepted_or_refused_and_what_is_accepted_runs(sql: str) -> None:
    try:
        validate_predicate(sql, ["n_words", "n_chars"])
    except RecipeError:
        return
    with sandbox() as db:
        value = db.sql(f"SELECT ({sql}\n) FROM (SELECT 3::BIGINT AS n_words, 5::BIGINT AS n_chars)").fetchall()
    assert value[0][0] in (True, False, None)
