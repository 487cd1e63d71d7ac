"""Bad words drop the documents whose kept lines hold one, by whole words, and leave their text alone."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.curate import curate
from curate.curation import Curation
from curate.edit.bad_words import read_words, without_bad_words
from curate.edit.c4 import c4
from curate.engine import LocalExecutor
from curate.step import Silent
from schemas.errors import InputError
from schemas.recipe_file import load_recipe
from tests.curate.made_text import write_jsonl

WORDS = ["darn", "gosh darn it", "heck", "Émile", "畜生", "🖕"]
PIECES = [
    *WORDS,
    "Darn",
    "DARN",
    "darned",
    "gosh  darn\nit",
    "gosh-darn it",
    "éMILE",
    "x畜生y",
    "Hecky",
    "oh heck.",
    "fine",
    ".",
    " ",
    "\n",
]


def array(*texts):
    return pa.array(texts, pa.large_string())


def edited(texts):
    before = array(*texts)
    return before, without_bad_words(before, c4(before, ["no_terminal_punct", "too_few_words", "too_few_sentences"], {}), WORDS)


def holds(text):
    """datatrove's way (a word between characters that are no part of words), marks and runs of them being one space."""
    plain = " ".join(re.findall(r"\w+", text.lower()))
    latin = any(re.search(rf"(?:^| ){re.escape(word.lower())}(?: |$)", plain) for word in WORDS[:4])
    return latin or "畜生" in text or "🖕" in text


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=5).map(" ".join), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_documents_with_a_word_in_their_kept_lines_fail_and_stay_as_they_were(texts):
    before, done = edited(texts)
    plain = c4(before, ["no_terminal_punct", "too_few_words", "too_few_sentences"], {})
    expected = [holds(text) for text in plain.texts.to_pylist()]
    assert np.isin(np.arange(len(texts)), done.failures.row).tolist() == expected
    for row, text in enumerate(texts):
        assert done.texts[row].as_py() == (text if expected[row] else plain.texts[row].as_py())
        assert done.removed[row].sum() == (0 if expected[row] else plain.removed[row].sum())
    assert set(done.failures.rule) <= {"c4_bad_words"} and (done.failures.value > done.failures.threshold).all()


def test_a_words_document_is_dropped_only_where_c4_kept_the_line(tmp_path):
    tail = " One sentence here. And two. Then three of them. Four is next. Five ends it."
    write_jsonl(tmp_path / "a.jsonl", [f"What the heck is this.{tail}", f"This heck uses cookies.\n{tail}", tail])
    (tmp_path / "bad.txt").write_text("# mild\nheck\n\n", encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(
        "name: made\nsources: {web: {reader: jsonl, paths: [a.jsonl]}}\nedits: [{edit: c4, bad_words: [bad.txt]}]\n"
        "dedup: {exact: false, near: null}\nholdout: {share: 0}\n"
    )
    recipe = load_recipe(tmp_path / "recipe.yaml")
    snapshot = curate(Curation(tmp_path / "lake", recipe, LocalExecutor(1), Silent()))
    (file,) = snapshot.files("verdicts")
    rows = pq.read_table(tmp_path / "lake" / file.path).to_pylist()
    assert [row["reason"] for row in rows] == ["c4_bad_words", None, None] and rows[0]["text_version"] == 0
    assert rows[0]["failures"] == [{"rule": "c4_bad_words", "value": 1.0, "threshold": 0.0}]


def test_lists_are_read_alike_wherever_they_lie_and_bad_ones_named(tmp_path):
    (tmp_path / "a.txt").write_text("b\na\n")
    (tmp_path / "z").mkdir()
    (tmp_path / "z/a.txt").write_text("a\n#c\nb")
    assert read_words([str(tmp_path / "a.txt")], "") == read_words([str(tmp_path / "z")], "") == ["a", "b"]
    (tmp_path / "long.txt").write_text("x" * 101)
    for place, said in (("long.txt", "longer than 100"), ("none.txt", "does not exist")):
        with pytest.raises(InputError, match=said):
            read_words([str(tmp_path / place)], "edits[0].bad_words")
