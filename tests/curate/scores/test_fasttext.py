"""Models in fastText's format give what fastText itself gives, of every kind, and no file makes the reader do anything but refuse."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.scores.fasttext import FastText, label_number
from curate.scores.fasttext_file import read_model
from curate.step import Silent
from schemas.errors import InputError, RecipeError
from schemas.recipe_file import load_recipe

WORDS = ["</s>", "the", "cat", "sat", "naïve", "日本", "x", "of", "mat."]
LABELS = ["good", "bad", "odd", "rare"]
TEXTS = [
    "the cat sat of the mat.",
    "unknown words and 日本語 naïve",
    "",
    " \n\t ",
    "the\ncat\x0b x \x0c of",
    "x </s> never read",
    "__label__good the __label__unseen cat",
    "a" * 300 + " é̈ 🙂",
]


def dense(matrix: np.ndarray) -> bytes:
    return struct.pack("<qq", *matrix.shape) + matrix.astype("<f4").tobytes()


def centroids(draw: np.random.Generator, dimension: int, width: int) -> bytes:
    parts, last = -(-dimension // width), dimension % width or width
    return struct.pack("<iiii", dimension, parts, width, last) + draw.normal(size=dimension * 256).astype("<f4").tobytes()


def quantised(draw: np.random.Generator, rows: int, dimension: int, width: int, normed: bool) -> bytes:
    parts = -(-dimension // width)
    made = struct.pack("<?qqi", normed, rows, dimension, rows * parts) + draw.integers(0, 256, rows * parts, np.uint8).tobytes()
    made += centroids(draw, dimension, width)
    return made + (draw.integers(0, 256, rows, np.uint8).tobytes() + centroids(draw, 1, 1) if normed else b"")


def model(
    loss: int = 3, ngrams: int = 1, least: int = 0, most: int = 0, pruned: int | None = None, quant: bool = False, normed: bool = True
) -> bytes:
    """A model of random numbers, byte by byte as fastText's saveModel writes it."""
    draw = np.random.default_rng([loss, ngrams, least, most, pruned or 0, quant])
    dimension = 10
    buckets = 50 if ngrams > 1 or most > 0 else 0
    made = struct.pack("<ii12id", 793712314, 12, dimension, 5, 5, 1, 5, ngrams, loss, 3, buckets, least, most, 100, 1e-4)
    made += struct.pack("<iiiqq", len(WORDS) + len(LABELS), len(WORDS), len(LABELS), 1000, -1 if pruned is None else pruned)
    for number, word in enumerate(WORDS):
        made += word.encode() + b"\0" + struct.pack("<qb", 100 - number, 0)
    for number, label in enumerate(LABELS):
        made += f"__label__{label}".encode() + b"\0" + struct.pack("<qb", (40, 30, 20, 5)[number], 1)
    for row, bucket in enumerate(draw.permutation(50)[: pruned or 0]):
        made += struct.pack("<ii", bucket, row)
    rows = len(WORDS) + (buckets if pruned is None else pruned)
    made += struct.pack("<?", quant)
    made += quantised(draw, rows, dimension, 4, normed) if quant else dense(draw.normal(size=(rows, dimension)))
    made += struct.pack("<?", False) + dense(draw.normal(size=(len(LABELS), dimension)))
    return made


KINDS = {
    "softmax": {},
    "hierarchical": {"loss": 1},
    "negative": {"loss": 2},
    "one_vs_all": {"loss": 4},
    "pairs_of_words": {"ngrams": 2},
    "runs_of_words": {"ngrams": 4, "loss": 1},
    "characters": {"least": 2, "most": 4},
    "all": {"ngrams": 3, "least": 1, "most": 3, "loss": 1},
    "quantised": {"quant": True, "ngrams": 2, "least": 2, "most": 3},
    "pruned": {"quant": True, "least": 2, "most": 4, "ngrams": 2, "pruned": 20},
    "pruned_to_words": {"quant": True, "ngrams": 2, "most": 3, "least": 1, "pruned": 0, "normed": False},
}


def scored(path: Path, texts: list[str]) -> list[list[float | None]]:
    mine = FastText(read_model(path))
    array = pa.array(texts, pa.large_string())
    columns = [mine.score(array, label_number(mine.model, label, "")).to_pylist() for label in LABELS]
    return [list(row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_fasttexts_own(tmp_path: Path, kind: str) -> None:
    """fastText reads one line, so line ends are given to it as spaces; it looks the sigmoid of two losses up in a table of 512 places."""
    theirs = pytest.importorskip("fasttext", reason="the oracle is fasttext-predict")
    path = tmp_path / "model.bin"
    path.write_bytes(model(**KINDS[kind]))
    oracle = theirs.load_model(str(path))
    loose = KINDS[kind].get("loss") in (2, 4)
    for text, mine in zip(TEXTS, scored(path, TEXTS), strict=True):
        names, values = oracle.predict(text.replace("\n", " "), k=len(LABELS))
        told = {name.removeprefix("__label__"): float(value) for name, value in zip(names, values, strict=True)}
        assert mine == pytest.approx([told[label] for label in LABELS], abs=8e-3 if loose else 3e-5), text


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "all.bin"
    path.write_bytes(model(**KINDS["all"]))
    return path


@given(st.lists(st.text(max_size=30), max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_text_is_scored_alike_in_every_batch_and_the_whole_is_one(whole: Path, texts: list[str]) -> None:
    together = scored(whole, texts)
    assert together == [scored(whole, [text])[0] for text in texts]
    for row in together:
        assert sum(row) == pytest.approx(1, abs=1e-5)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_file_is_refused_or_scored_but_nothing_else(whole: Path, data: st.DataObject) -> None:
    content = bytearray(model(**KINDS[data.draw(st.sampled_from(sorted(KINDS)))]))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(content) - 9) if data.draw(st.booleans()) else st.integers(0, 400))
        value = data.draw(st.sampled_from([-(2**63), -1, 0, 1, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 10**6]))
        content[place : place + 8] = struct.pack("<q", value)
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    path = whole.with_name("damaged.bin")
    path.write_bytes(content)
    try:
        mine = FastText(read_model(path))
    except InputError:
        return
    for label in range(len(mine.model.labels)):
        for value in mine.score(pa.array(TEXTS, pa.large_string()), label).to_pylist():
            assert value is None or 0 <= value <= 1


def test_it_is_a_signal_that_rules_name(tmp_path: Path) -> None:
    (tmp_path / "model.ftz").write_bytes(model(**KINDS["pruned"]))
    texts = [text for text in TEXTS if text]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(
        "name: made\nsources: {web: {reader: jsonl, paths: [a.jsonl], max_bad_share: 1}}\n"
        "signals: {odd: {fasttext: {path: model.ftz, label: odd}}}\n"
        "rules: [{name: too_odd, sql: odd > 0.2}]\nholdout: {share: 0}\ndedup: {near: null}\n"
    )
    snapshot = curate(Curation(tmp_path / "lake", load_recipe(tmp_path / "recipe.yaml"), LocalExecutor(1), Silent()))
    expected = [row[LABELS.index("odd")] for row in scored(tmp_path / "model.ftz", texts)]
    read = {name: [pq.read_table(tmp_path / "lake" / file.path) for file in snapshot.files(name)] for name in ("scores", "verdicts")}
    assert pa.concat_tables(read["scores"]).column("value").to_pylist() == expected
    reasons = pa.concat_tables(read["verdicts"]).column("reason").to_pylist()
    assert [reason == "too_odd" for reason in reasons] == [value > 0.2 for value in expected] and {*reasons} == {"too_odd", None}
    with pytest.raises(RecipeError, match=r"no label 'god'; did you mean 'good'"):
        changed = load_recipe(tmp_path / "recipe.yaml", ["signals.odd.fasttext.label=god"])
        curate(Curation(tmp_path / "other", changed, LocalExecutor(1), Silent()))
