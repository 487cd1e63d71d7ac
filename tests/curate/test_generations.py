"""Generations: data added to a lake are judged as in one run with the documents kept before first; nothing of before changes."""

import itertools
import json
import os
import shutil

import pyarrow.parquet as pq
import pytest

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.lots import build_lots, read_lots
from curate.step import Silent
from schemas.errors import InputError, RecipeError
from schemas.manifest import read_snapshot
from schemas.recipe import Recipe
from tests.curate.made_text import corpus, jaccard, shingles, write_jsonl

PARTS = (120, 90, 70)
TEXTS = corpus(8, sum(PARTS))
NAMES = ("b.jsonl", "a.jsonl", "c.jsonl")
"""The second file sorts before the first: generations are told by files, not by names."""


def recipe(folder, **changes):
    base = {
        "name": "grown",
        "generations": "append",
        "sources": {"web": {"reader": "jsonl", "paths": [str(folder)], "id_field": "id", "max_bad_share": 0.5, "max_epochs": 2}},
        "rules": [{"name": "short", "sql": "n_words < 70"}],
        "shards": {"bytes": 20_000},
        "holdout": {"share": 0.05},
        "tokenizer": {"kind": "byte"},
        "pack": {"row_length": 64},
    }
    return Recipe.model_validate(base | changes)


def put(folder, number):
    first = sum(PARTS[:number])
    ids = [f"d{n}" for n in range(first, first + PARTS[number])]
    if number:
        ids[5] = "d3"  # repeats an id of the first generation
    write_jsonl(folder / NAMES[number], TEXTS[first : first + PARTS[number]], id=ids)


def grow(root, made, workers=1):
    snapshot = curate(Curation(root, made, LocalExecutor(workers), Silent()))
    return build_lots(root, made, snapshot, LocalExecutor(workers), Silent())


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grown")
    snapshots = []
    for number in range(3):
        put(folder / "data", number)
        snapshots.append(grow(folder / "lake", recipe(folder / "data"), workers=2))
    return folder, snapshots


def rows(root, snapshot, table):
    return [row for file in snapshot.files(table) for row in pq.read_table(root / file.path, partitioning=None).to_pylist()]


def test_each_new_file_becomes_a_generation(lake):
    folder, snapshots = lake
    assert [len(snapshot.generations) for snapshot in snapshots] == [1, 2, 3]
    counts = rows(folder / "lake", snapshots[-1], "conservation")
    assert counts[0]["records_in"] == sum(PARTS) and counts[0]["quarantined"] == 2


def test_nothing_of_an_earlier_generation_changes(lake):
    _, snapshots = lake
    for before, after in itertools.pairwise(snapshots):
        for step, entries in before.steps.items():
            if step not in ("repeats", "conservation"):  # the two that count over all
                assert list(after.steps[step][: len(entries)]) == list(entries), step


def test_new_documents_get_lots_of_their_own(lake):
    folder, snapshots = lake
    lines = read_lots(folder / "lake", snapshots[-1]).lines
    train = [line for line in lines if line["split"] == "train"]
    assert {line["generation"] for line in train} == {0, 1, 2}
    assert {line["generation"] for line in lines if line["split"] == "holdout"} == {0}
    kept = sum(verdict["state"] == "kept" for verdict in rows(folder / "lake", snapshots[-1], "verdicts"))
    assert sum(line["documents"] for line in train) == kept


def test_the_result_is_that_of_one_run_with_earlier_kept_documents_first(lake):
    """The sequential rule over everything that passes, in the order (generation in which it was kept, length, doc_id)."""
    folder, snapshots = lake
    root = folder / "lake"
    documents = {row["doc_id"]: row for row in reversed(rows(root, snapshots[-1], "documents"))}
    verdicts = {row["doc_id"]: row for row in rows(root, snapshots[-1], "verdicts") if not row["failures"]}
    sets = {key: shingles(documents[key]["text"]) for key in verdicts}
    generation = {
        key: next(g for g, end in enumerate(snapshots[-1].generations) if row["locator"] >> 32 < end) for key, row in verdicts.items()
    }
    kept = []
    for now in range(3):
        new = sorted((key for key in verdicts if generation[key] == now), key=lambda key: (-documents[key]["bytes"], key))
        earlier = sorted(kept, key=lambda key: (-documents[key]["bytes"], key))
        for key in new:
            similar = [(jaccard(sets[key], sets[other]), other) for other in [*earlier, *kept[len(earlier) :]]]
            match = next(((value, other) for value, other in similar if value >= 0.8), None)
            verdict = verdicts[key]
            duplicate = verdict["reason"] in ("exact_duplicate", "near_duplicate")
            assert duplicate == (match is not None)
            if match:
                assert verdict["kept_doc_id"] == match[1] and verdict["similarity"] == pytest.approx(match[0])
            else:
                kept.append(key)
    dropped = [v for v in verdicts.values() if v["reason"] in ("exact_duplicate", "near_duplicate")]
    across = [v for v in dropped if generation[v["doc_id"]] != generation[v["kept_doc_id"]]]
    assert len(across) > 10 and {v["reason"] for v in across} == {"exact_duplicate", "near_duplicate"}


def test_the_held_out_set_is_frozen_and_what_comes_near_it_is_dropped(lake):
    folder, snapshots = lake
    root = folder / "lake"
    held = [{v["doc_id"] for v in rows(root, snapshot, "verdicts") if v["state"] == "held_out"} for snapshot in snapshots]
    assert held[0] and held[0] == held[1] == held[2]
    texts = {row["doc_id"]: shingles(row["text"]) for row in reversed(rows(root, snapshots[-1], "documents"))}
    last = rows(root, snapshots[-1], "verdicts")
    kept = [texts[v["doc_id"]] for v in last if v["state"] == "kept"]
    assert max(jaccard(texts[h], k) for h in held[0] for k in kept) < 0.5


def test_a_rerun_without_new_files_does_nothing(lake, tmp_path):
    folder, snapshots = lake
    shutil.copytree(folder / "lake", tmp_path / "lake")
    shutil.copytree(folder / "data", tmp_path / "data")  # touched
    ran = {}

    class Watch(Silent):
        def finish(self, step, done, skipped):
            ran[step] = ran.get(step, 0) + done

    made = recipe(tmp_path / "data")
    snapshot = curate(Curation(tmp_path / "lake", made, LocalExecutor(1), Watch()))
    assert build_lots(tmp_path / "lake", made, snapshot, LocalExecutor(1), Watch()).steps == snapshots[-1].steps
    assert {step for step, done in ran.items() if done} <= {"read"}  # files of other times are read again to see that they are the same
    (tmp_path / "data/a.jsonl").unlink()  # files of earlier generations may go
    os.utime(tmp_path / "data/b.jsonl")
    assert grow(tmp_path / "lake", made).steps == snapshots[-1].steps


def test_changed_files_and_settings_are_refused(lake, tmp_path):
    folder, _ = lake
    shutil.copytree(folder / "lake", tmp_path / "lake")
    shutil.copytree(folder / "data", tmp_path / "data")
    with pytest.raises(RecipeError, match=r"holdout\.share, rules changed since"):
        grow(tmp_path / "lake", recipe(tmp_path / "data", rules=[], holdout={"share": 0.1}))
    path = tmp_path / "data/b.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[4])
    lines[4] = json.dumps(record | {"text": record["text"][::-1]})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="other documents are read from it now"):
        grow(tmp_path / "lake", recipe(tmp_path / "data"))
    path.write_text(path.read_text() + '{"text": "one more", "id": "x"}\n')
    with pytest.raises(InputError, match="it had .* bytes and has"):
        grow(tmp_path / "lake", recipe(tmp_path / "data"))


def test_a_source_may_join_later(lake, tmp_path):
    folder, _ = lake
    shutil.copytree(folder / "lake", tmp_path / "lake")
    made = recipe(folder / "data")
    write_jsonl(tmp_path / "books/new.jsonl", corpus(77, 30))
    books = made.sources["web"].model_copy(update={"paths": [str(tmp_path / "books")], "id_field": None})
    snapshot = grow(tmp_path / "lake", made.model_copy(update={"sources": {**made.sources, "books": books}}))
    assert len(snapshot.generations) == 4
    lots = read_lots(tmp_path / "lake", read_snapshot(tmp_path / "lake")).lines
    assert {(line["source"], line["generation"]) for line in lots} == {("web", 0), ("web", 1), ("web", 2), ("books", 3)}


def test_a_source_whose_files_have_all_gone_keeps_its_documents_while_others_grow(tmp_path):
    for name in ("gone", "web"):
        write_jsonl(tmp_path / name / "a.jsonl", TEXTS[:20])

    def made(*patterns):
        sources = {name: {"reader": "jsonl", "paths": [str(tmp_path / name / pattern)]} for name, pattern in zip(("gone", "web"), patterns)}
        return recipe("", sources=sources, holdout={"share": 0})

    first = grow(tmp_path / "lake", made("*.jsonl", ""))
    (tmp_path / "gone/a.jsonl").unlink()
    write_jsonl(tmp_path / "web/b.jsonl", TEXTS[40:50])
    for pattern in ("b.jsonl", "missing/*.jsonl"):
        with pytest.raises(InputError, match="does not exist|no file matches"):
            grow(tmp_path / "lake", made(pattern, ""))
    second = grow(tmp_path / "lake", made("*.jsonl", ""))
    assert second.generations == [2, 3] and second.steps["read"][:2] == first.steps["read"]
    assert grow(tmp_path / "lake", made("", "")).steps == second.steps
    with pytest.raises(InputError, match="no file matches"):
        grow(tmp_path / "another", made("*.jsonl", ""))
