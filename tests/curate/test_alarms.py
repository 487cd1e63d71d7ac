"""Alarms of deduplication, the check of its sketches, and uses by cluster size, on a lake with a cluster of 30 and one of 3."""

import random

import numpy as np
import pyarrow.parquet as pq
import pytest

from curate.alarms import describe
from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.lots import build_lots, read_lots
from curate.step import Silent
from schemas.errors import GristmillError
from schemas.manifest import read_snapshot
from schemas.recipe import Recipe
from tests.curate.made_text import altered, document, jaccard, shingles, vocabulary, write_jsonl


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("alarms")
    draw = random.Random(4)
    words = vocabulary(draw)
    texts = [document(draw, words) for _ in range(60)]
    texts += [altered(draw, texts[0], words, 0.003) for _ in range(29)] + [altered(draw, texts[1], words, 0.003) for _ in range(2)]
    write_jsonl(place / "web.jsonl", texts)
    return place


def recipe(folder, **changes):
    source = {"reader": "jsonl", "paths": [str(folder / "web.jsonl")], **changes.pop("source", {})}
    base = {
        "name": "alarms",
        "sources": {"web": source},
        "tokenizer": {"kind": "byte"},
        "holdout": {"share": 0},
        "pack": {"row_length": 64},
    }
    return Recipe.model_validate(base | changes)


def lake(root, made):
    snapshot = curate(Curation(root, made, LocalExecutor(1), Silent()))
    return build_lots(root, made, snapshot, LocalExecutor(1), Silent())


def rows(root, snapshot, table):
    return [row for file in snapshot.files(table) for row in pq.read_table(root / file.path, partitioning=None).to_pylist()]


def test_no_alarm_is_raised_below_the_limits(folder, tmp_path):
    assert rows(tmp_path, lake(tmp_path, recipe(folder)), "alarms") == []


def test_an_oversized_cluster_and_a_drop_rate_are_rows_and_lines(folder, tmp_path):
    snapshot = lake(tmp_path, recipe(folder, alarms={"cluster_share": 0.2, "cluster_documents": 3, "drop_share": 0.3}))
    rate, cluster = rows(tmp_path, snapshot, "alarms")
    largest = max(c for row in rows(tmp_path, snapshot, "clusters") if (c := row["kept_doc_id"]) == cluster["kept_doc_id"])
    sizes = [row["kept_doc_id"] for row in rows(tmp_path, snapshot, "clusters")]
    assert (rate["kind"], cluster["kind"]) == ("drop_rate", "oversized_cluster")
    assert cluster["duplicates"] == sizes.count(largest) and cluster["share"] == (cluster["duplicates"] + 1) / 91
    assert rate["duplicates"] == len(sizes) and rate["documents"] == 91 and rate["kept_doc_id"] is None
    assert largest.hex() in describe(cluster) and "limit 30%" in describe(rate)


def test_fatal_alarms_fail_the_run_and_leave_the_snapshot(folder, tmp_path):
    before = lake(tmp_path, recipe(folder)).id
    with pytest.raises(GristmillError, match=r"a cluster of \d\d is .* \(limit 20%\)"):
        lake(tmp_path, recipe(folder, alarms={"cluster_share": 0.2, "cluster_documents": 3, "fatal": True}))
    assert read_snapshot(tmp_path).id == before


@pytest.mark.parametrize("kind", ["fast_similarity", "minhash"])
def test_sampled_pairs_are_estimated_beside_datasketch(folder, tmp_path, kind):
    snapshot = lake(tmp_path, recipe(folder, dedup={"check": 10, "near": {"kind": kind}}))
    texts = {row["doc_id"]: shingles(row["text"]) for row in rows(tmp_path, snapshot, "documents")}
    found = rows(tmp_path, snapshot, "estimates")
    assert len(found) == 10
    for row in found:
        assert row["exact"] == pytest.approx(jaccard(texts[row["doc_id"]], texts[row["kept_doc_id"]]))
        assert abs(row["estimate"] - row["exact"]) < 0.25 and abs(row["datasketch"] - row["exact"]) < 0.25
        assert (row["estimate"] == row["datasketch"]) or kind == "fast_similarity"


def test_a_broken_sketch_fails_the_run(folder, tmp_path, monkeypatch):
    import curate.dedup.check as check

    draw = np.random.default_rng(0)
    monkeypatch.setattr(
        check,
        "to_datasketch",
        lambda values, settings, whole=check.to_datasketch: whole(values + draw.integers(0, 1 << 40, values.shape, np.uint64), settings),
    )
    with pytest.raises(GristmillError, match="deviations off"):
        lake(tmp_path, recipe(folder, dedup={"check": 10}))


def test_documents_are_used_by_the_size_of_their_cluster(folder, tmp_path):
    source = {"repeats": {"clusters": {1: 1, 3: 2, 10: 5}}}
    snapshot = lake(tmp_path, recipe(folder, source=source))
    kept = [row["kept_doc_id"] for row in rows(tmp_path, snapshot, "clusters")]
    uses = {line["repeats"]: line["documents"] for line in read_lots(tmp_path, snapshot).lines}
    sizes = [1 + kept.count(v["doc_id"]) for v in rows(tmp_path, snapshot, "verdicts") if v["state"] == "kept"]
    assert uses == {1: sum(s < 3 for s in sizes), 2: sum(3 <= s < 10 for s in sizes), 5: sum(s >= 10 for s in sizes)}
    assert uses[5] == 1


def test_fineweb2_needs_the_word_for_8_uses(folder):
    with pytest.raises(ValueError, match="allow_many_epochs"):
        recipe(folder, source={"repeats": {"clusters": "fineweb2"}})
    made = recipe(folder, source={"repeats": {"clusters": "fineweb2"}, "allow_many_epochs": True})
    assert made.sources["web"].epochs == 8
    with pytest.raises(ValueError, match="size 1"):
        recipe(folder, source={"repeats": {"clusters": {2: 2}}})
