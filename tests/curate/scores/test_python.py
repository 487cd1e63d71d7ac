"""Signals of the user's own: what a function returns is what rules see, and what it does wrong is said with its place."""

import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.lots import build_lots
from curate.scores.python import BATCH, ScoreError, load_function, score
from curate.step import Silent
from schemas.errors import RecipeError
from schemas.recipe_file import load_recipe
from schemas.tables import DOCUMENTS
from tests.curate.made_text import corpus, write_jsonl

CODE = """\
import pyarrow.compute as pc

def capitals(batch):
    return pc.count_substring_regex(batch.column("text"), "[A-Z]")

def wrong(batch):
    raise KeyError("no such thing")
"""

RECIPE = """\
name: made
sources:
  web: {reader: jsonl, paths: [web.jsonl]}
  books: {reader: jsonl, paths: [books.jsonl], difficulty: capitals}
signals:
  capitals: {python: "scorer.py:capitals"}
  shouts: {python: "scorer.py:capitals", sources: [web]}
rules:
  - {name: loud, sql: capitals > 13 OR shouts > 12}
dedup: {prefer: [-capitals, shouts, bytes]}
shards: {bytes: 20000}
holdout: {share: 0.05}
tokenizer: {kind: byte}
"""


def project(folder):
    write_jsonl(folder / "web.jsonl", [text + " A B." * (n % 3) for n, text in enumerate(corpus(1, 60))])
    write_jsonl(folder / "books.jsonl", corpus(2, 40))
    (folder / "scorer.py").write_text(CODE)
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder / "recipe.yaml"


class Counting(LocalExecutor):
    """Remembers how many shards each step ran."""

    def __init__(self, workers=1):
        super().__init__(workers)
        self.ran = {}

    def run(self, function, tasks, processes):
        for _, step, *_ in tasks:
            self.ran[step.name] = self.ran.get(step.name, 0) + 1
        return super().run(function, tasks, processes)


def run(root, path, executor=None):
    return curate(Curation(root, load_recipe(path), executor or LocalExecutor(1), Silent()))


def rows(root, snapshot, table):
    return [row for file in snapshot.files(table) for row in pq.read_table(root / file.path, partitioning=None).to_pylist()]


def test_rules_preference_and_difficulty_name_a_signal_and_only_what_changed_is_computed_anew(tmp_path):
    path, root, executor = project(tmp_path), tmp_path / "lake", Counting()
    snapshot = run(root, path, executor)
    texts = {row["doc_id"]: row for row in rows(root, snapshot, "documents")}
    scores = {(row["signal"], row["doc_id"]): row["value"] for row in rows(root, snapshot, "scores")}
    counts = {doc: sum(c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" for c in row["text"]) for doc, row in texts.items()}
    assert {doc: value for (signal, doc), value in scores.items() if signal == "capitals"} == counts
    assert {doc for signal, doc in scores if signal == "shouts"} == {doc for doc, row in texts.items() if row["source"] == "web"}
    loud = {row["doc_id"] for row in rows(root, snapshot, "verdicts") if row["reason"] == "loud"}
    assert loud == {doc for doc, count in counts.items() if count > 13 or (texts[doc]["source"] == "web" and count > 12)} != set()
    assert len(build_lots(root, load_recipe(path), snapshot, executor, Silent()).files("lots")) > 0
    (tmp_path / "scorer.py").write_text(CODE + "# more\n")
    path.write_text(RECIPE.replace("shouts:", "shouts2:").replace("shouts >", "shouts2 >").replace("shouts,", "shouts2,"))
    again = Counting()
    run(root, path, again)
    shards = len(snapshot.steps["read"])
    assert again.ran.get("signals") is None and again.ran.get("read") is None
    assert again.ran["score_capitals"] == again.ran["score_shouts2"] == shards, "the file's content counts"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("scorer.py:capitals", "scorer.py:capital"), "no function 'capital'"),
        (("scorer.py:capitals", "nowhere.at_all:f"), "cannot be imported"),
        (("scorer.py:capitals", "scorer.py"), "names no function"),
        (("  capitals: {", "  n_words: {"), "has a column 'n_words' already"),
        (("  capitals: {", "  bytes: {"), "has a column 'bytes' already"),
        (("  capitals: {", "  position: {"), "has a column 'position' already"),
        (("  capitals: {", "  select: {"), "a word of SQL"),
        (("sources: [web]}\nrules", "sources: [wab]}\nrules"), "did you mean 'web'"),
        (("loud, sql: capitals", "loud, sql: capitol"), "did you mean 'capitals'"),
    ],
)
def test_a_signal_that_cannot_be_is_refused_before_anything_is_read(tmp_path, change, words):
    path = project(tmp_path)
    path.write_text(RECIPE.replace(*change))
    with pytest.raises(RecipeError, match=words):
        run(tmp_path / "lake", path)
    assert not (tmp_path / "lake/documents").exists()


def test_a_function_that_raises_is_named_with_shard_and_documents_also_from_another_process(tmp_path):
    path = project(tmp_path)
    path.write_text(RECIPE.replace("scorer.py:capitals", "scorer.py:wrong", 1))
    with pytest.raises(ScoreError) as error:
        run(tmp_path / "lake", path, LocalExecutor(2))
    for word in ("signals.capitals", "shard ", "documents 0 to", "scorer.py:wrong raised KeyError", "line 7"):
        assert word in str(error.value)


def test_a_function_or_file_that_ends_the_program_is_an_error(tmp_path):
    with pytest.raises(ScoreError, match="f raised SystemExit: 0"):
        values(lambda batch: sys.exit(0))
    (tmp_path / "quits.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(RecipeError, match="cannot be imported: SystemExit"):
        load_function(f"{tmp_path}/quits.py:f", "here")


def documents(count):
    common = {"doc_id": bytes(16), "source": "web", "path": "a", "bytes": 6, "text_version": 0}
    return pa.Table.from_pylist([common | {"record": n, "text": f"text {n}"} for n in range(count)], schema=DOCUMENTS)


def values(function, count=5):
    return score(function, documents(count), "f", "here").to_pylist()


def test_lists_numpy_and_arrow_of_numbers_are_taken_and_no_number_is_null():
    lists = (lambda b: [1, None, 2.5, float("nan"), True], [1, None, 2.5, None, 1])
    for function, wanted in (
        lists,
        (lambda b: np.arange(5, dtype=np.float32) / 2, [0, 0.5, 1, 1.5, 2]),
        (lambda b: pa.chunked_array([[True, False], [None, True, True]]), [1, 0, None, 1, 1]),
        (lambda b: pa.nulls(5), [None] * 5),
    ):
        assert values(function) == wanted
    assert values(lambda b: [len(text) for text in b.column("text").to_pylist()], BATCH + 3) == [len(f"text {n}") for n in range(BATCH + 3)]
    assert values(lambda b: [], 0) == []


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ([1, 2], "2 values for 5 documents"),
        (["a"] * 5, "values of type string"),
        (np.zeros((5, 2)), "no array"),
        (3.0, "no array"),
        (None, "no array"),
        ([object()] * 5, "no array"),
        ([10**400] * 5, "no array"),
    ],
)
def test_anything_else_is_refused(result, words):
    with pytest.raises(ScoreError, match=words):
        values(lambda batch: result)


def test_batches_are_cut_by_position_and_hold_what_is_promised():
    seen = []

    def function(batch):
        seen.append(batch.num_rows)
        assert json.dumps(batch.schema.names)
        return np.zeros(batch.num_rows)

    values(function, 2 * BATCH + 1)
    assert seen == [BATCH, BATCH, 1]
