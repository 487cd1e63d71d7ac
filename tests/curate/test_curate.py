"""Curation as a whole: the same bytes whatever runs it, nothing lost, nothing similar to held-out text left in training."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.step import Silent
from schemas.errors import GristmillError, InputError
from schemas.manifest import read_snapshot
from schemas.recipe_file import load_recipe
from tests.curate.made_text import corpus, jaccard, shingles, write_jsonl
from tests.curate.published import published, rows, run

RECIPE = """\
name: made
seed: 5
sources:
  web: {reader: jsonl, paths: [web], max_bad_share: 0.2}
  books: {reader: jsonl, paths: [books], id_field: id, max_bad_share: 0.2}
rules:
  - {set: gopher_quality}
  - {name: too_short, sql: n_words < 20}
shards: {bytes: 12000}
holdout: {share: 0.05}
"""


@pytest.fixture(scope="module")
def recipe_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    texts = corpus(3, 420)
    for number in range(14):
        write_jsonl(folder / f"web/{number:02d}.jsonl", texts[20 * number : 20 * number + 20])
    ids = [f"b{number}" for number in range(140)]
    ids[100] = "b7"
    write_jsonl(folder / "books/all.jsonl", [*texts[280:418], "Too short.", ""], id=ids)
    with (folder / "web/03.jsonl").open("ab") as file:
        file.write(b'{"text": "bad \xff byte"}\n{"text": \n{"text": null}\n{"other": 1}\n')
    path = folder / "recipe.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def lake(recipe_path, tmp_path_factory):
    root = tmp_path_factory.mktemp("lake")
    run(root, recipe_path)
    return root


def test_workers_batches_and_completion_order_change_no_byte(recipe_path, lake, tmp_path, monkeypatch):
    assert len(read_snapshot(lake).steps["read"]) >= 20
    run(tmp_path / "four", recipe_path, workers=4)
    run(tmp_path / "ones", recipe_path, batch_rows=1)
    assert published(tmp_path / "four") == published(lake)
    assert published(tmp_path / "ones") == published(lake)


def test_scrambled_completion_changes_no_byte(recipe_path, lake, tmp_path):
    class Scrambled(LocalExecutor):
        def run(self, function, tasks, processes):
            finished = list(super().run(function, tasks, False))
            yield from sorted(finished, key=lambda item: hash((item[0] * 7919) % 101))

    curate(Curation(tmp_path, load_recipe(recipe_path), Scrambled(3), Silent()))
    assert published(tmp_path) == published(lake)


def test_every_record_is_accounted_for(lake):
    for row in rows(lake, "conservation"):
        assert row["records_in"] == row["quarantined"] + row["dropped"] + row["held_out"] + row["kept"]
        assert row["bytes_in"] == row["bytes_out"]
    total = {row["source"]: row["records_in"] for row in rows(lake, "conservation")}
    assert total == {"web": 284, "books": 140}
    reasons = sorted(row["reason"] for row in rows(lake, "quarantine"))
    assert reasons == ["broken_json", "duplicate_id", "invalid_utf8", "no_text", "null_text"]


def test_a_lost_verdict_fails_the_run(recipe_path, lake, tmp_path, monkeypatch):
    import curate.verdicts as verdicts

    write = verdicts._verdicts

    def lossy(writer, task):
        original = writer.table
        writer.table = lambda name, table: original(name, table.slice(1) if task["shard"] == 2 else table)
        return write(writer, task)

    monkeypatch.setattr(verdicts, "_verdicts", lossy)
    with pytest.raises(GristmillError, match="do not add up"):
        run(tmp_path, recipe_path)
    assert not (tmp_path / "snapshots").exists()


def texts_by_state(lake):
    texts = {row["doc_id"]: row["text"] for row in reversed(rows(lake, "documents"))}  # of a repeated id, the first record
    return [(verdict, shingles(texts[verdict["doc_id"]])) for verdict in rows(lake, "verdicts")]


def test_every_duplicate_has_a_kept_document_that_is_that_similar(lake):
    documents = texts_by_state(lake)
    stayed = {v["doc_id"]: s for v, s in documents if v["state"] != "dropped" or v["reason"] == "near_holdout"}
    duplicates = [(v, s) for v, s in documents if v["reason"] in ("exact_duplicate", "near_duplicate")]
    assert len(duplicates) > 30
    for verdict, own in duplicates:
        similarity = jaccard(own, stayed[verdict["kept_doc_id"]])
        assert similarity >= 0.8
        assert similarity == pytest.approx(verdict["similarity"])


def test_no_two_kept_documents_are_near_duplicates(lake):
    kept = [s for v, s in texts_by_state(lake) if v["state"] != "dropped"]
    pairs = [jaccard(a, b) for i, a in enumerate(kept) for b in kept[:i]]
    assert max(pairs) < 0.8


def test_nothing_kept_is_similar_to_held_out_text(lake):
    documents = texts_by_state(lake)
    held = [s for v, s in documents if v["state"] == "held_out"]
    kept = [s for v, s in documents if v["state"] == "kept"]
    assert len(held) >= 5
    assert max(jaccard(a, b) for a in held for b in kept) < 0.5


def test_every_failing_rule_is_recorded_with_value_and_threshold(lake):
    short = [v for v in rows(lake, "verdicts") if v["reason"] == "gopher_short_doc" or any(f["rule"] == "too_short" for f in v["failures"])]
    assert short
    for verdict in short:
        assert {"gopher_short_doc", "too_short"} <= {f["rule"] for f in verdict["failures"]}
        failure = next(f for f in verdict["failures"] if f["rule"] == "gopher_short_doc")
        assert failure["value"] < failure["threshold"] == 50


def test_empty_text_has_its_own_verdict_without_any_rule(recipe_path, tmp_path):
    curate(Curation(tmp_path, load_recipe(recipe_path, ["rules=[]"]), LocalExecutor(1), Silent()))
    assert [(v["state"], v["reason"]) for v in rows(tmp_path, "verdicts") if v["bytes"] == 0] == [("dropped", "empty")]


def test_a_rerun_does_nothing_and_a_changed_rule_reads_nothing_again(recipe_path, lake, tmp_path):
    shutil.copytree(lake, tmp_path / "lake")
    ran = {}

    class Watch(Silent):
        def finish(self, step, done, skipped):
            ran[step] = ran.get(step, 0) + done

    curate(Curation(tmp_path / "lake", load_recipe(recipe_path), LocalExecutor(1), Watch()))
    assert set(ran.values()) == {0}
    changed = load_recipe(recipe_path, ["rules.1.sql=n_words < 30"])
    curate(Curation(tmp_path / "lake", changed, LocalExecutor(1), Watch()))
    assert ran["read"] == ran["signals"] == 0
    assert ran["rules"] > 0


@pytest.mark.parametrize("seconds", [0.4, 1.2, 2.5])
def test_a_killed_curation_is_finished_by_the_rerun(recipe_path, lake, tmp_path, seconds):
    code = (
        "import sys; from pathlib import Path; from curate.curate import curate; from curate.curation import Curation\n"
        "from curate.engine import LocalExecutor; from curate.step import Silent; from schemas.recipe_file import load_recipe\n"
        "print('go', flush=True)\n"
        "curate(Curation(Path(sys.argv[1]), load_recipe(Path(sys.argv[2])), LocalExecutor(2), Silent()))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "lake"), str(recipe_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"go\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.communicate()  # also its workers are gone, which hold the pipe too
    run(tmp_path / "lake", recipe_path)
    left = {name: data for name, data in published(tmp_path / "lake").items() if ".tmp-" not in name}
    assert left == published(lake)


def test_a_sample_adds_up_too(recipe_path, tmp_path):
    run(tmp_path, recipe_path, sample=0.3)
    counted = rows(tmp_path, "conservation")
    assert all(row["sampled_out"] > 0 for row in counted)
    assert 0 < len(rows(tmp_path, "documents")) < 200


def test_a_sample_smaller_than_the_held_out_share_still_trains(recipe_path, tmp_path):
    recipe = load_recipe(recipe_path, ["holdout.share=0.5", "holdout.max_documents=1000"])
    curate(Curation(tmp_path, recipe, LocalExecutor(1), Silent(), 0.3))
    states = [row["state"] for row in rows(tmp_path, "verdicts")]
    assert states.count("kept") > 0.2 * (states.count("kept") + states.count("held_out")) > 0


def test_too_many_bad_records_are_refused_with_counts_and_places(recipe_path, tmp_path):
    strict = load_recipe(recipe_path, ["sources.web.max_bad_share=0.001"])
    with pytest.raises(
        InputError, match=r"(?s)source 'web': 4 of 284 records were quarantined.* 1 no_text; first 03\.jsonl, record 23: the re"
    ):
        curate(Curation(tmp_path, strict, LocalExecutor(1), Silent()))


def test_a_source_without_records_is_refused_with_what_was_set_aside(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"no such file")
    (tmp_path / "blank.jsonl").write_bytes(b"\n\n")
    for reader, file, told in (
        ("parquet", "a.parquet", "\n  1 unreadable_file; first a.parquet: not a Parquet file"),
        ("jsonl", "blank.jsonl", ""),
    ):
        (tmp_path / "recipe.yaml").write_text(f"name: bare\nsources: {{s: {{reader: {reader}, paths: [{file}]}}}}\n")
        with pytest.raises(InputError, match=f"'s': 0 records were read from it{told}"):
            curate(Curation(tmp_path / reader, load_recipe(tmp_path / "recipe.yaml"), LocalExecutor(1), Silent()))


def test_snapshots_name_only_published_files(lake):
    snapshot = read_snapshot(lake)
    for table in snapshot.tables():
        for file in snapshot.files(table):
            assert (lake / file.path).stat().st_size == file.bytes
    assert json.loads((lake / "snapshots/current.json").read_text())["id"] == snapshot.id
    assert isinstance(lake, Path)


def test_a_touched_file_is_read_again_and_nothing_else_is_done(recipe_path, lake, tmp_path):
    shutil.copytree(lake, tmp_path / "lake")
    shutil.copytree(recipe_path.parent, tmp_path / "made")
    ran = {}

    class Watch(Silent):
        def finish(self, step, done, skipped):
            ran[step] = done

    os.utime(tmp_path / "made/web/05.jsonl", (2e9, 2e9))
    moved = load_recipe(tmp_path / "made/recipe.yaml")
    snapshot = curate(Curation(tmp_path / "lake", moved, LocalExecutor(1), Watch()))
    assert {step for step, done in ran.items() if done} == {"read"}
    assert [entry.content for entry in snapshot.steps["verdicts"]] == [entry.content for entry in read_snapshot(lake).steps["verdicts"]]
