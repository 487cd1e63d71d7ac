"""Script groups follow the names that Unicode gives letters, and are signals of the sources whose rules name them."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.families.scripts import NONE, group_table, script_signals
from curate.families.step import wanted_families
from curate.step import Silent
from schemas.families import FAMILIES
from schemas.recipe import Recipe

LEADING = "LATIN CYRILLIC GREEK ARABIC HEBREW DEVANAGARI THAI CJK HIRAGANA HANGUL KATAKANA"
NAMES = {name: k for k, name in enumerate(LEADING.split())} | {"KATAKANA": 8}
COLUMNS = FAMILIES["scripts"].names


def test_letters_are_of_the_script_that_their_name_says() -> None:
    groups = group_table()
    for code in range(0x110000):
        char = chr(code)
        if char.isalpha() and (first := unicodedata.name(char, "").split(" ")[0].split("-")[0]) in NAMES:
            assert groups[code] == NAMES[first], f"{code:#x} {unicodedata.name(char)}"
    assert {int(groups[ord(char)]) for char in " 1.,\n。！€"} == {NONE}
    assert {int(groups[ord(char)]) for char in "ქա"} == {10}


@given(st.lists(st.text(max_size=40), max_size=6))
@settings(max_examples=100, deadline=None)
def test_counts_are_those_of_the_table(texts: list[str]) -> None:
    groups = group_table()
    told = script_signals(pa.array(texts, pa.large_string())).to_pylist()
    assert told == [{name: sum(int(groups[ord(char)]) == k for char in text) for k, name in enumerate(COLUMNS)} for text in texts]


def recipe(folder: Path) -> Recipe:
    source = {"reader": "jsonl", "paths": [str(folder / "all.jsonl")]}
    rule = {"name": "mostly_han", "sql": "N_han_chars > 0.5 * n_chars", "sources": ["asked"]}
    return Recipe.model_validate({"name": "scripts", "sources": {"asked": source, "other": source}, "rules": [rule]})


def test_a_rule_that_names_a_script_is_judged_and_only_its_source_pays(tmp_path: Path) -> None:
    texts = ["人人生而自由，在尊严和权利上一律平等。", "All human beings are born free."]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    asked = recipe(tmp_path)
    assert [wanted_families(asked, source) for source in ("asked", "other")] == [{"scripts"}, set()]
    lake = tmp_path / "lake"
    snapshot = curate(Curation(lake, asked, LocalExecutor(1), Silent()))
    verdicts = [row for file in snapshot.files("verdicts") for row in pq.read_table(lake / file.path, partitioning=None).to_pylist()]
    mine = [[failure["rule"] for failure in row["failures"]] for row in verdicts if row["source"] == "asked"]
    assert mine == [["mostly_han"], []]
    assert all(not row["failures"] for row in verdicts if row["source"] == "other")
    assert sum(file.rows for file in snapshot.files("scripts")) == 2 and not snapshot.files("redpajama")
