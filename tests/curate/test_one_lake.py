"""What a lake has from other recipes never shows: whatever was changed before, a curation is the one that an empty lake would get."""

from __future__ import annotations

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.lots import build_lots
from curate.step import Silent
from schemas.recipe import Recipe, merge
from tests.curate.made_text import corpus, write_jsonl

CHANGES = [
    {"pack": {"eos": False}},
    {"pack": {"bos": False}},
    {"pack": {"min_tail": 1}},
    {"sources": {"web": {"repeats": {"by": "n_words", "drop": 0.2}}}},
    {"edits": [{"edit": "lines", "min_bytes": 60}]},
]


def test_a_changed_recipe_gives_in_an_old_lake_what_it_gives_in_a_new_one(tmp_path):
    write_jsonl(tmp_path / "web.jsonl", corpus(3, 30))
    base = {
        "name": "made",
        "sources": {"web": {"reader": "jsonl", "paths": [str(tmp_path / "web.jsonl")]}},
        "holdout": {"share": 0.05},
        "tokenizer": {"kind": "byte"},
        "pack": {"row_length": 128},
    }

    def steps(root, recipe):
        snapshot = curate(Curation(root, recipe, LocalExecutor(1), Silent()))
        return build_lots(root, recipe, snapshot, LocalExecutor(1), Silent()).steps

    for number, change in enumerate(CHANGES):
        recipe = Recipe.model_validate(merge(base, change))
        fresh, found = steps(tmp_path / f"fresh{number}", recipe), steps(tmp_path / "old", recipe)
        assert list(found) == list(fresh)
        for step in fresh:
            assert found[step] == fresh[step], f"{change}: step {step} is not what a new lake has"


def test_a_copy_that_deduplication_once_dropped_is_not_trained_on_beside_its_held_out_original(tmp_path):
    texts = list(dict.fromkeys(corpus(5, 40)))[:20]
    write_jsonl(tmp_path / "web.jsonl", [*texts, *(text.rpartition(" ")[0] for text in texts)])
    base = {
        "name": "made",
        "sources": {"web": {"reader": "jsonl", "paths": [str(tmp_path / "web.jsonl")]}},
        "holdout": {"share": 0.5, "max_documents": 1},
    }
    steps = [
        curate(Curation(tmp_path / root, Recipe.model_validate(base | {"dedup": dedup}), LocalExecutor(1), Silent())).steps
        for root, dedup in (("old", {}), ("old", {"near": None}), ("new", {"near": None}))
    ]
    assert [each["holdout"][0].counts["held_out"] for each in steps] == [1, 2, 2]
    assert steps[1] == steps[2]


def test_the_names_of_the_folders_above_a_lake_say_nothing(tmp_path):
    made = {"name": "made", "holdout": {"share": 0.2}, "dedup": {"check": 5}, "tokenizer": {"kind": "byte"}, "pack": {"row_length": 128}}
    for seed in (6, 7):
        write_jsonl(tmp_path / f"{seed}.jsonl", corpus(seed, 40))
    found = []
    for place, seed in (("plain", 6), ("state=kept/kind=far/run1", 7), ("state=kept/kind=far/run[1]", 6)):
        source = {"reader": "jsonl", "paths": [str(tmp_path / f"{seed}.jsonl")], "repeats": {"clusters": {1: 1, 2: 2}}}
        recipe = Recipe.model_validate(made | {"sources": {"web": source}})
        snapshot = curate(Curation(tmp_path / place, recipe, LocalExecutor(1), Silent()))
        found.append(build_lots(tmp_path / place, recipe, snapshot, LocalExecutor(1), Silent()).steps)
    assert found[2] == found[0] != found[1]
