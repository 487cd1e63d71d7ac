"""Edits in a curation: bytes add up, the same bytes come out whatever runs it, and all that follows sees the edited text."""

import json
from itertools import pairwise

import pyarrow.parquet as pq
import pytest

from curate.rehearse import NotStored, rehearse
from curate.step import Silent
from pipelines.export import texts as exported
from pipelines.why import life
from schemas.errors import GristmillError, RecipeError
from schemas.manifest import read_snapshot
from schemas.recipe_file import load_recipe
from tests.curate.made_text import corpus, write_jsonl
from tests.curate.published import published, rows, run

RECIPE = """\
name: made
sources:
  web: {reader: jsonl, paths: [web], id_field: id, max_bad_share: 1}
  books: {reader: jsonl, paths: [books]}
edits:
  - {edit: c4, off: [no_terminal_punct], sources: [web]}
  - {edit: mask, kinds: [email]}
  - {edit: lines, min_bytes: 12}
  - {edit: paragraphs, within: document}
  - {edit: substrings, min_tokens: 30}
rules:
  - {name: tiny, sql: n_words < 3}
shards: {bytes: 9000}
holdout: {share: 0.05}
tokenizer: {kind: byte}
"""
FOOTER = "Copyright of nobody at all, all rights given away."
COOKIES = "This site uses cookies for everything it does."


@pytest.fixture(scope="module")
def recipe_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    texts = [f"{text}\n{COOKIES}\n{FOOTER}" for text in corpus(5, 90)]
    special = {3: "only { brackets here.", 4: "", 5: "\n\n\n", 6: texts[2], 7: f"write to a.b@example.org now.\n\n{texts[7]}", 8: FOOTER}
    for place, text in special.items():
        texts[place] = text
    ids = [f"w{number}" for number in range(60)]
    ids[50] = "w1"
    write_jsonl(folder / "web/a.jsonl", texts[:60], id=ids)
    write_jsonl(folder / "books/a.jsonl", [*texts[60:], FOOTER, FOOTER, "  ", "", "\x00\x01 control"])
    path = folder / "recipe.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def lake(recipe_path, tmp_path_factory):
    root = tmp_path_factory.mktemp("lake")
    run(root, recipe_path)
    return root


def test_workers_batches_and_memory_change_no_byte(recipe_path, lake, tmp_path, monkeypatch):
    assert len(read_snapshot(lake).steps["read"]) > 5
    run(tmp_path / "two", recipe_path, workers=3)
    monkeypatch.setattr("curate.edit.steps.UNIT_BYTES", 10_000_000)  # hashes are compared in several parts
    run(tmp_path / "ones", recipe_path, batch_rows=1)
    assert published(tmp_path / "two") == published(lake)
    assert published(tmp_path / "ones") == published(lake)


def test_bytes_read_are_kept_dropped_or_told_as_edited_away(recipe_path, lake):
    counted = {row["source"]: row for row in rows(lake, "conservation")}
    assert all(row["bytes_in"] == row["bytes_out"] + row["bytes_edited"] and row["bytes_edited"] > 1000 for row in counted.values())
    written = [json.loads(line)["text"] for name in ("web", "books") for line in (recipe_path.parent / name / "a.jsonl").open()]
    assert sum(row["bytes_in"] for row in counted.values()) == sum(len(text.encode()) for text in written)
    for edit in rows(lake, "edits"):
        assert edit["removed"] - edit["added"] == edit["bytes_before"] - edit["bytes_after"]
        assert edit["removed"] == sum(change["removed"] for change in edit["changes"])
        assert edit["hash_before"] != edit["hash_after"]


def test_an_edit_that_miscounts_its_bytes_fails_the_run(recipe_path, tmp_path, monkeypatch):
    import curate.edit.rewrite as rewrite

    honest = rewrite.mask

    def wrong(texts, kinds):
        done = honest(texts, kinds)
        done.removed[:] += done.counts > 0
        return done

    monkeypatch.setattr(rewrite, "mask", wrong)
    with pytest.raises(GristmillError, match="do not add up"):
        run(tmp_path, recipe_path)
    assert not (tmp_path / "snapshots").exists()


def test_versions_chain_and_all_that_follows_sees_the_last_text(lake):
    documents = {row["doc_id"] for row in rows(lake, "documents")}
    verdicts = {row["doc_id"]: row for row in rows(lake, "verdicts")}
    signals = {row["doc_id"]: row for row in reversed(rows(lake, "signals"))}
    chains = {}
    for edit in rows(lake, "edits"):
        chains.setdefault(edit["doc_id"], []).append(edit)
    snapshot = read_snapshot(lake)
    out = [row for state in ("kept", "held_out") for _, table in exported(lake, snapshot, state) for row in table.to_pylist()]
    texts = {bytes.fromhex(row["doc_id"]): row["text"] for row in out}
    newest = {}
    for entry in snapshot.steps["read"]:
        table = pq.read_table(lake / entry.files["documents"].path, partitioning=None)
        newest = {row["doc_id"]: row for row in reversed(table.to_pylist())} | newest
    assert documents == newest.keys() and texts.keys() <= newest.keys()
    for doc, chain in chains.items():
        assert [edit["text_version"] for edit in chain] == list(range(1, len(chain) + 1))
        assert [edit["step"] for edit in chain] == sorted(edit["step"] for edit in chain)
        assert all(a["hash_after"] == b["hash_before"] for a, b in pairwise(chain))
        assert verdicts[doc]["text_version"] == newest[doc]["text_version"] == len(chain)
        assert verdicts[doc]["bytes"] == signals[doc]["n_bytes"] == len(newest[doc]["text"].encode()) == chain[-1]["bytes_after"]
    assert all(texts[doc] == newest[doc]["text"] for doc in texts)
    assert max(len(chain) for chain in chains.values()) >= 3
    assert sum(text.count(FOOTER) for text in texts.values()) == 1
    assert not any("example.org" in text or (COOKIES in text and newest[doc]["source"] == "web") for doc, text in texts.items())


def test_what_an_edit_drops_has_its_reason_and_keeps_its_text(lake):
    reasons = {}
    for verdict in rows(lake, "verdicts"):
        reasons.setdefault(verdict["reason"], []).append(verdict)
    (dropped,) = reasons["c4_curly_bracket"]
    assert dropped["state"] == "dropped" and dropped["text_version"] == 0 and dropped["failures"][0]["rule"] == "c4_curly_bracket"
    assert len(reasons["empty"]) == 2
    assert all(verdict["bytes"] == 0 and verdict["text_version"] > 0 for verdict in reasons["emptied_by_lines"])


def test_documents_that_were_set_aside_or_dropped_repeat_nothing(lake):
    edited = {edit["locator"] for edit in rows(lake, "edits")}
    assert not edited & {row["locator"] for row in rows(lake, "repeats")}
    assert not edited & {row["locator"] for row in rows(lake, "verdicts") if row["reason"] == "c4_curly_bracket"}


def test_why_tells_each_edit(lake):
    found = life(lake, "w7")
    told = [(edit["edit"], edit["text_version"]) for edit in found["edits"]]
    assert told[:2] == [("c4", 1), ("mask", 2)]
    assert found["document"]["bytes"] == found["edits"][-1]["bytes_after"]


def test_a_changed_edit_redoes_it_and_what_follows_and_nothing_before(recipe_path, lake, tmp_path):
    ran = {}

    class Watch(Silent):
        def finish(self, step, done, skipped):
            ran[step] = ran.get(step, 0) + done

    run(tmp_path, recipe_path)
    run(tmp_path, recipe_path, progress=Watch())
    assert set(ran.values()) == {0}
    run(tmp_path, recipe_path, progress=Watch(), changes=["edits.4.min_tokens=20"])
    assert ran["read"] == ran["edit_0"] == ran["edit_1"] == 0
    assert ran["edit_2"] > 0


def test_what_if_knows_what_edits_dropped_and_that_another_edit_needs_a_pass(recipe_path, lake):
    assert rehearse(lake, load_recipe(recipe_path)).effects == []
    with pytest.raises(NotStored, match="needs a new pass"):
        rehearse(lake, load_recipe(recipe_path, ["edits.0.off=[]"]))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("edits.0.off=[javascrip]", "edits"),
        ("edits.2.min_byte=3", "unknown field"),
        ("edits.1.sources=[wob]", "unknown source"),
        ("edits.0.edit=c5", "c5"),
        ("edits.0.thresholds={javascript: 2}", "javascript"),
        ("edits.0.off=[too_few_words]", None),
    ],
)
def test_mistakes_in_edits_are_told_with_their_place(recipe_path, change, told):
    if told is None:
        load_recipe(recipe_path, [change])
        with pytest.raises(RecipeError, match="keep one of the two"):
            load_recipe(recipe_path, [change, "edits.0.thresholds={too_few_words: 2}"])
        return
    with pytest.raises(RecipeError, match=told):
        load_recipe(recipe_path, [change])
