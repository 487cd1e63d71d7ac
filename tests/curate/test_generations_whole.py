"""Generations with every part of curation: edits, early rules, signals of one's own, exclusions and a sample hold over what is added."""

import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.corpus import id_hashes
from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.identity import SAMPLE_DRAW, draw
from curate.lots import build_lots
from curate.read import list_shards, read_shard
from curate.rehearse import NotStored, rehearse
from curate.step import Silent, Step, run_step
from schemas.errors import RecipeError
from schemas.manifest import read_snapshot
from schemas.recipe_file import load_recipe
from tests.curate.made_text import corpus, write_jsonl
from tests.curate.published import rows

RECIPE = """\
name: grown
generations: append
sources:
  web: {reader: jsonl, paths: [data], id_field: id}
edits:
  - {edit: mask, kinds: [email]}
  - {edit: lines, min_bytes: 12}
  - {edit: paragraphs, within: document}
signals: {vowels: {python: "scorer.py:vowels"}}
rules:
  - {name: tiny, sql: n_words < 40, before: lines}
  - {name: rich, sql: vowels > 0.205}
decontaminate: {sets: {quiz: {paths: [quiz.jsonl]}}}
block: {domains: [blocked.txt]}
opt_out: {ids: [out.txt]}
shards: {bytes: 20000}
holdout: {share: 0.05}
tokenizer: {kind: byte}
pack: {row_length: 64}
"""
SCORER = """\
def vowels(batch):
    return [sum(c in "aeiou" for c in text) / max(len(text), 1) for text in batch.column("text").to_pylist()]
"""
PARTS = (90, 60, 50)
FOOTER = "Copyright of nobody at all, all rights given away."
ITEM = "which of these seven rivers flows to the north of the old town and why does it do so"
SHARE = 0.7


def put(folder, number):
    first = sum(PARTS[:number])
    texts = [f"{text}\n{FOOTER}\nwrite to a.b{n}@example.org" for n, text in enumerate(corpus(21, sum(PARTS)))][
        first : first + PARTS[number]
    ]
    for place in range(10, 30):
        texts[place] += f"\nIn {first + place}: {ITEM}"  # a line that no other document has
    texts[30:40] = [f"Small {first + n}." for n in range(10)]
    urls = [f"https://{'bad' if 40 <= n < 50 else 'good'}.example/{first + n}" for n in range(PARTS[number])]
    write_jsonl(folder / f"data/{'bac'[number]}.jsonl", texts, id=[f"d{first + n}" for n in range(PARTS[number])], url=urls)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grown")
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "scorer.py").write_text(SCORER)
    (folder / "quiz.jsonl").write_text(json.dumps({"text": ITEM}) + "\n")
    (folder / "blocked.txt").write_text("bad.example\n")
    (folder / "out.txt").write_text("".join(f"web:d{n}\n" for n in range(0, sum(PARTS), 9)))
    return folder


def grow(root, path, workers=1, changes=()):
    made = load_recipe(path, list(changes))
    snapshot = curate(Curation(root, made, LocalExecutor(workers), Silent(), SHARE))
    return build_lots(root, made, snapshot, LocalExecutor(workers), Silent())


@pytest.fixture(scope="module")
def lake(project):
    snapshots = []
    for number in range(len(PARTS)):
        put(project, number)
        snapshots.append(grow(project / "lake", project / "recipe.yaml", workers=2))
    return project / "lake", snapshots


def generation_of(snapshot, locator):
    return next(number for number, end in enumerate(snapshot.generations) if locator >> 32 < end)


def test_nothing_of_an_earlier_generation_changes(lake):
    _, snapshots = lake
    assert [len(snapshot.generations) for snapshot in snapshots] == [1, 2, 3]
    for before, after in itertools.pairwise(snapshots):
        for step, entries in before.steps.items():
            if step not in ("repeats", "conservation"):
                assert list(after.steps[step][: len(entries)]) == list(entries), step


def test_the_sample_of_each_generation_is_that_of_the_whole(lake):
    root, _ = lake
    found = {row["id"]: row["doc_id"] for row in rows(root, "documents")}
    source = load_recipe(root.parent / "recipe.yaml").sources["web"]
    entries = run_step(root.parent / "all", Step("read", 1, {}, read_shard), list_shards("web", source, 10**6), LocalExecutor(1), Silent())
    everyone = pq.read_table(root.parent / "all" / entries[0].files["documents"].path)
    drawn = draw(id_hashes(everyone.column("doc_id").combine_chunks(), SAMPLE_DRAW), SHARE)
    assert set(found.values()) == set(everyone.filter(pa.array(drawn)).column("doc_id").to_pylist())
    (counts,) = rows(root, "conservation")
    assert counts["records_in"] == sum(PARTS) and counts["sampled_out"] == sum(PARTS) - len(found) and 0 < counts["sampled_out"] < 90


def test_edits_see_what_earlier_generations_hold(lake):
    """A line of the first generation is cut out of every later document, and addresses are masked in all."""
    root, snapshots = lake
    places = {row["doc_id"]: row["locator"] for row in rows(root, "verdicts")}
    holders = [generation_of(snapshots[-1], places[row["doc_id"]]) for row in rows(root, "documents") if FOOTER in row["text"]]
    small = {row["doc_id"] for row in rows(root, "verdicts") if row["reason"] == "tiny"}
    assert holders.count(0) == 1 and set(holders) == {0}
    edits = rows(root, "edits")
    assert not small & {row["doc_id"] for row in edits if row["edit"] != "mask"} and len(small) > 10
    for edit in ("mask", "lines"):
        assert {generation_of(snapshots[-1], row["locator"]) for row in edits if row["edit"] == edit} == {0, 1, 2}
    assert all("@example.org" not in row["text"] for row in rows(root, "documents") if row["doc_id"] not in small)


def test_signals_rules_and_exclusions_reach_every_generation(lake):
    root, snapshots = lake
    texts = {row["doc_id"]: row["text"] for row in rows(root, "documents")}
    verdicts = {row["doc_id"]: row for row in rows(root, "verdicts")}
    for row in rows(root, "scores"):
        text = texts[row["doc_id"]]
        assert row["value"] == sum(char in "aeiou" for char in text) / max(len(text), 1)
        failed = [failure["rule"] for failure in verdicts[row["doc_id"]]["failures"]]
        assert ("rich" in failed) == (row["value"] > 0.205)
    assert len(rows(root, "scores")) == len(texts)
    for reason in ("contaminated_quiz", "url_blocked", "opted_out", "tiny"):
        met = [row for row in verdicts.values() if row["reason"] == reason]
        assert {generation_of(snapshots[-1], row["locator"]) for row in met} == {0, 1, 2}, reason
    assert all(row["state"] != "kept" for doc, row in verdicts.items() if ITEM in texts[doc])


def test_more_workers_and_one_go_after_another_give_the_same_bytes(lake, project, tmp_path):
    """Grown anew in the same three steps: files of later generations are hidden until their turn."""
    root, _ = lake
    hidden = {number: (project / f"data/{'bac'[number]}.jsonl").read_bytes() for number in range(3)}
    for name in ("recipe.yaml", "scorer.py", "quiz.jsonl", "blocked.txt", "out.txt"):
        (tmp_path / name).write_bytes((project / name).read_bytes())
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / f"data/{'bac'[number]}.jsonl").write_bytes(hidden[number])
        snapshot = grow(tmp_path / "lake", tmp_path / "recipe.yaml", workers=3)
    ours = {
        file.path.split("-")[0]: file.checksum
        for table in ("documents", "verdicts", "edits", "clusters", "rows")
        for file in snapshot.files(table)
    }
    theirs = read_snapshot(root)
    assert ours == {
        file.path.split("-")[0]: file.checksum
        for table in ("documents", "verdicts", "edits", "clusters", "rows")
        for file in theirs.files(table)
    }


def test_what_if_judges_all_generations_by_other_rules(lake, project):
    root, snapshots = lake
    recipe = load_recipe(project / "recipe.yaml", ["rules.1.sql=vowels > 0.19"])
    found = rehearse(root, recipe, SHARE)
    scores = {row["doc_id"]: row["value"] for row in rows(root, "scores")}
    alive = {row["doc_id"]: row for row in rows(root, "verdicts") if row["state"] != "dropped"}
    more = [row for doc, row in alive.items() if scores[doc] > 0.19]
    assert {generation_of(snapshots[-1], row["locator"]) for row in more} == {0, 1, 2}
    assert [(e.kind, e.documents, e.bytes) for e in found.effects] == [("dropped", len(more), sum(row["bytes"] for row in more))]
    assert rehearse(root, load_recipe(project / "recipe.yaml"), SHARE).effects == []


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ("rules.0.sql=n_words < 50", RecipeError, "rules.0.sql changed since the lake's last generation"),
        ("edits.1.min_bytes=20", RecipeError, "edits.1.min_bytes changed"),
        ("opt_out.ids=[]", RecipeError, "opt_out.ids changed"),
        ("sources.web.language.allow=[en]", RecipeError, "sources.web.language changed"),
    ],
)
def test_what_if_refuses_by_name_what_stored_signals_cannot_tell(lake, project, change, error, said):
    with pytest.raises(error) as caught:
        rehearse(lake[0], load_recipe(project / "recipe.yaml", [change]), SHARE)
    assert said in str(caught.value)


def test_what_if_wants_new_files_curated_first(lake, project):
    path = project / "data/d.jsonl"
    write_jsonl(path, ["One more document of some words."], id=["x"])
    try:
        with pytest.raises(NotStored, match="step 'read'"):
            rehearse(lake[0], load_recipe(project / "recipe.yaml", ["rules.1.sql=vowels > 0.2"]), SHARE)
    finally:
        path.unlink()
