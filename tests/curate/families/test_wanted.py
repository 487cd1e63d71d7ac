"""Families are computed where a recipe names or asks for them, and nowhere else; what is absent says how to have it."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.families.step import wanted_families
from curate.rehearse import NotStored, rehearse
from curate.step import Silent
from schemas.families import FAMILIES
from schemas.recipe import Recipe
from schemas.sources import Source

TEXTS = ["def f(a, b):\n    return a + b\n", "x = 1\n" * 40, "Some prose that is neither short nor long, as prose goes. " * 3]


def recipe(folder: Path, **more: Any) -> Recipe:
    source = {"reader": "jsonl", "paths": [str(folder / "all.jsonl")]} | more.pop("source", {})
    return Recipe.model_validate({"name": "wanted", "sources": {"web": source}, "dedup": {"near": None}, "holdout": {"share": 0}} | more)


def lake(folder: Path, chosen: Recipe) -> tuple[Path, dict[str, list[pa.Table]]]:
    (folder / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    snapshot = curate(Curation(folder / "lake", chosen, LocalExecutor(1), Silent()))
    return folder / "lake", {f: [pq.read_table(folder / "lake" / file.path) for file in snapshot.files(f)] for f in FAMILIES}


@pytest.mark.parametrize(
    ("named", "families"),
    [
        ({}, set()),
        ({"rules": [{"set": name} for name in ("gopher_quality", "gopher_repetition", "fineweb")]}, set()),
        ({"rules": [{"set": "code"}]}, {"code"}),
        ({"rules": [{"set": "damaged_code"}]}, {"code", "structure"}),
        ({"rules": [{"set": "redpajama"}]}, {"redpajama"}),
        ({"rules": [{"name": "flat", "sql": "LZ_bytes < 0.1 * n_bytes"}]}, {"compression"}),
        ({"source": {"difficulty": "max_line_chars"}}, {"code"}),
        ({"source": {"repeats": {"by": "n_latin_chars", "most": 2}}}, {"scripts"}),
        ({"source": {"families": ["scripts", "code"]}}, {"scripts", "code"}),
        ({"dedup": {"prefer": ["lz_bytes"]}}, {"compression"}),
    ],
)
def test_a_family_is_wanted_where_something_names_it(tmp_path: Path, named: dict[str, Any], families: set[str]) -> None:
    assert wanted_families(recipe(tmp_path, **named), "web") == families


def test_every_family_can_be_asked_for() -> None:
    (listed,) = typing.get_args(typing.get_type_hints(Source)["families"])
    assert set(typing.get_args(listed)) == set(FAMILIES)


def test_what_is_not_named_is_not_computed_and_what_is_asked_for_is(tmp_path: Path) -> None:
    root, tables = lake(tmp_path, recipe(tmp_path, source={"families": ["compression"]}))
    assert {family for family, found in tables.items() if found} == {"compression"}
    assert sorted(path.name for path in (root / "manifests").iterdir() if path.name in {*FAMILIES, "languages", "estimates"}) == [
        "compression"
    ]


def test_duplicates_are_ordered_by_a_family_that_the_order_names(tmp_path: Path) -> None:
    same = "The same words stand here and there, with other layout, so they are one text to a shingle."
    (tmp_path / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in (same, same.replace(" ", "  "))))
    for order, kept in (("max_line_chars", 1), ("-max_line_chars", 0)):
        chosen = recipe(tmp_path, dedup={"near": {"threshold": 0.8}, "prefer": [order]})
        snapshot = curate(Curation(tmp_path / f"lake{kept}", chosen, LocalExecutor(1), Silent()))
        (file,) = snapshot.files("verdicts")
        states = pq.read_table(tmp_path / f"lake{kept}" / file.path).column("state").to_pylist()
        assert [state == "kept" for state in states] == [kept == 0, kept == 1]


def test_what_if_names_the_family_that_is_absent_and_the_word_that_asks_for_it(tmp_path: Path) -> None:
    chosen = recipe(tmp_path)
    root, _ = lake(tmp_path, chosen)
    rule = {"name": "long_lines", "sql": "max_line_chars > 100"}
    with pytest.raises(NotStored, match=r"step 'code'.*nothing in the recipe named(.|\n)*families: \[code\]"):
        rehearse(root, recipe(tmp_path, rules=[rule]))


def test_what_if_without_the_rule_that_named_a_family_needs_no_pass(tmp_path: Path) -> None:
    root, _ = lake(tmp_path, recipe(tmp_path, rules=[{"name": "long_lines", "sql": "max_line_chars > 100"}]))
    assert [(effect.kind, effect.documents) for effect in rehearse(root, recipe(tmp_path)).effects] == [("passing", 1)]
