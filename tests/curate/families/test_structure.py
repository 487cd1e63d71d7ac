"""Damaged copies of source score higher than the source, and what counts as damage is what a plain count says."""

from __future__ import annotations

import random
import re
import sysconfig
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.code_signals import DAMAGES, auc
from curate.families.code import code_signals
from curate.families.structure import structure_signals
from curate.rules import RULE_SETS
from curate.rules.expression import sandbox
from curate.signals import compute_signals
from schemas.families import FAMILIES

CASES = [
    ("def f():\n    return 1\n", {"n_code_lines": 2, "n_ascii_names": 3}),
    ("x = 1\n    y = 2\n", {"n_code_lines": 2, "n_unopened_lines": 1, "n_ascii_names": 2}),
    ("if x:\ny = 2", {"n_code_lines": 2, "n_unfilled_blocks": 1, "n_ascii_names": 3, "n_unfinished": 1}),
    ("xkqzw = a1b + a1\n", {"n_code_lines": 1, "n_ascii_names": 3, "n_rough_names": 2}),
]


@pytest.mark.parametrize(("text", "counts"), CASES)
def test_what_is_counted(text: str, counts: dict[str, int]) -> None:
    told = structure_signals(pa.array([text], pa.large_string())).to_pylist()[0]
    assert told == dict.fromkeys(FAMILIES["structure"].names, 0) | counts


@given(st.lists(st.one_of(st.text(max_size=30), st.text("ab_1 :\n\t{", max_size=40)), max_size=6))
@settings(max_examples=100, deadline=None)
def test_names_and_lines_equal_a_plain_count_in_any_batch(texts: list[str]) -> None:
    for text, row in zip(texts, structure_signals(pa.array(texts, pa.large_string())).to_pylist(), strict=True):
        names = re.findall(r"[A-Za-z][A-Za-z0-9_]*", text)
        assert row["n_ascii_names"] == len(names)
        rough = re.compile(r"[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ]{5}|[0-9]+[A-Za-z]")
        assert row["n_rough_names"] == sum(bool(rough.search(name)) for name in names)
        assert row["n_code_lines"] == sum(bool(line.strip(" \t\r")) for line in text.split("\n"))
        assert row["n_unfinished"] == int(text != "" and not text.endswith("\n"))


def damage_scores(texts: list[str]) -> list[float]:
    column = pa.array(texts, pa.large_string())
    parts = [count(column) for count in (compute_signals, code_signals, structure_signals)]
    _, rule = RULE_SETS["damaged_code"].rules
    with sandbox() as db:
        db.register("signals", pa.table({name: part.column(name) for part in parts for name in part.schema.names}))
        return [value for (value,) in db.sql(f"SELECT CAST({rule.value} AS DOUBLE) FROM signals").fetchall()]


def test_every_kind_of_damage_is_told_from_clean_source() -> None:
    source = random.Random(1)
    found = [path for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")) if 2000 <= path.stat().st_size <= 30000]
    texts = [path.read_text("utf-8", "ignore") for path in source.sample(found, 60)]
    clean = damage_scores(texts)
    for damage in DAMAGES:
        assert auc(clean, damage_scores([damage(text, source) for text in texts])) >= 0.95, damage.__name__
