"""Which documents are held out: the lowest hashes of each source, at least one where another is left, whatever shards and samples."""

from __future__ import annotations

import pytest

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.step import Silent
from pipelines.catalog import ask, open_catalog
from schemas.recipe import Recipe
from tests.curate.made_text import corpus, write_jsonl

SIZES = {"many": 150, "few": 5, "one": 1}


def held_out(folder, name, share, sample=1.0, shard_bytes=32_000_000):
    """doc_ids that were drawn by source, and how many documents each source keeps."""
    recipe = Recipe.model_validate(
        {
            "name": "draw",
            "sources": {source: {"reader": "jsonl", "paths": [str(folder / source)]} for source in SIZES},
            "dedup": {"exact": False, "near": None},
            "holdout": {"share": share},
            "shards": {"bytes": shard_bytes},
        }
    )
    curate(Curation(folder / name, recipe, LocalExecutor(1), Silent(), sample=sample))
    with open_catalog(folder / name) as db:
        rows = ask(db, "SELECT source, list(doc_id ORDER BY doc_id) AS ids FROM holdout WHERE reference = doc_id GROUP BY source")
        kept = ask(db, "SELECT source, count(*) AS n FROM verdicts WHERE state = 'kept' GROUP BY source")
    return {name: [] for name in SIZES} | {row["source"]: row["ids"] for row in rows}, {row["source"]: row["n"] for row in kept}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("sources")
    for seed, (source, count) in enumerate(SIZES.items()):
        write_jsonl(made / f"{source}/a.jsonl", corpus(seed, count))
    return made


def test_each_source_has_one_at_least_unless_it_is_all_there_is(folder):
    found, kept = held_out(folder, "small", 0.0001)
    assert {source: len(ids) for source, ids in found.items()} == {"many": 1, "few": 1, "one": 0}
    assert kept["one"] == 1
    larger, _ = held_out(folder, "larger", 0.1)
    assert set(found["many"]) < set(larger["many"]) and found["few"] == larger["few"][:1]
    assert held_out(folder, "none", 0)[0] == {"many": [], "few": [], "one": []}


def test_shards_change_nothing_and_a_sample_holds_out_the_same_share(folder):
    assert held_out(folder, "cut", 0.0001, shard_bytes=2_000)[0] == held_out(folder, "whole", 0.0001)[0]
    sampled, kept = held_out(folder, "sample", 0.1, sample=0.5)
    whole, _ = held_out(folder, "all", 0.1)
    assert len(sampled["many"]) >= 1 and set(sampled["many"]) <= set(whole["many"]) and kept["many"] > 50
    assert all(len(ids) >= 1 for source, ids in sampled.items() if kept.get(source, 0) > 1)
