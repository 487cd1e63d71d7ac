"""The signals of source code equal a plain Python count on any text."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.families.code import code_signals
from schemas.families import FAMILIES

WORDS = ["a", "ab", "x_y", "_z", "z_", "__", "fooBar", "Foo_Bar", "FOO", "9", "9a", "é", "漢", "😀", "\u00a0", "\u2003", "\u3000", "\x0b"]
SPACES = [" ", "  ", "\t", "\n", "\n\n", "\r\n", "\n  ", "\n\t", "\n \t", "\n   ", "\n     ", "x" * 101, "é" * 60, "y" * 130]
MARKS = ["(", ")", "[", "]", "{", "}", ",", ", ", ",\n", "=", " = ", "==", " + ", "+", "<", " >", "> "]
TEXTS = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS + SPACES + MARKS), max_size=80).map("".join))


def rows(texts: list[str]) -> list[dict[str, int]]:
    return code_signals(pa.array(texts, pa.large_string())).to_pylist()


def layout(text: str) -> dict[str, int]:
    """Indentation and line ends, line by line."""
    names = ("n_trailing_space_lines", "n_tab_indents", "n_space_indents", "n_mixed_indents", "n_uneven_indents", "n_indent_jumps")
    found, depth = dict.fromkeys(names, 0), 0
    for line in text.split("\n"):
        inside = line.lstrip(" \t")
        tabs, spaces = line[: len(line) - len(inside)].count("\t"), line[: len(line) - len(inside)].count(" ")
        inside = inside.removesuffix("\r")
        if not inside or inside[0].isspace():
            continue
        found["n_trailing_space_lines"] += inside[-1].isspace()
        if tabs:
            found["n_mixed_indents" if spaces else "n_tab_indents"] += 1
        elif spaces:
            found["n_space_indents"] += 1
            found["n_uneven_indents"] += spaces % 2
            found["n_indent_jumps"] += spaces > depth and spaces - depth not in (2, 4, 8)
        depth = spaces
    return found


def expected(text: str) -> dict[str, int]:
    lines = text.split("\n")
    names = [name for name in re.findall(r"[A-Za-z_0-9]+", text) if not name[0].isdigit()]
    operators = [(before == " ", after == " ") for before, after in re.findall(r"(?s)(?<=(.))[=+<>](?=(.))", text)]
    return layout(text) | {
        "max_line_chars": max(map(len, lines)),
        "n_long_lines": sum(len(line) > 100 for line in lines),
        "n_names": len(names),
        "name_chars": sum(map(len, names)),
        "n_short_names": sum(len(name) == 1 for name in names),
        "n_camel_names": sum(bool(re.search("[a-z][A-Z]", n)) and not re.search("[^_]_", n) for n in names),
        "n_snake_names": sum(bool(re.search("[^_]_+[a-z0-9]", n)) and not re.search("[A-Z]", n) for n in names),
        "n_unbalanced_brackets": sum(abs(text.count(a) - text.count(b)) for a, b in ("()", "[]", "{}")),
        "n_commas_spaced": len(re.findall(",[ \n]", text)),
        "n_commas_tight": len(re.findall(r"(?s),(?=[^ \n])", text)),
        "n_operators_spaced": operators.count((True, True)),
        "n_operators_tight": operators.count((True, False)) + operators.count((False, True)),
    }


@given(st.lists(TEXTS, max_size=5))
@settings(max_examples=300, deadline=None)
def test_every_count_equals_the_oracle(texts: list[str]) -> None:
    assert rows(texts) == [{name: expected(text)[name] for name in FAMILIES["code"].names} for text in texts]


@pytest.mark.parametrize("length", [1, 2, 119, 120, 121, 122, 123, 500])
def test_blocks_lose_nothing_at_their_borders(length: int) -> None:
    for piece in ("(", ")", ",", "=", " =", ", ", "= ", "a,\n"):
        text = (piece * length)[:length]
        assert rows([text])[0] == expected(text), (piece, length)


def test_layout_is_counted() -> None:
    row = rows(["def f(a, b):\n    x = a+b \n\ty=1\n \tz\n   odd\n"])[0]
    names = ("n_space_indents", "n_tab_indents", "n_mixed_indents", "n_uneven_indents", "n_trailing_space_lines", "n_commas_spaced")
    assert [row[name] for name in names] == [2, 1, 1, 1, 1, 1]
