"""Tokenisers: exact on all Unicode, special tokens only where packing puts them, the same file on any number of threads."""

import json
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.engine import LocalExecutor
from curate.step import Silent, run_step
from curate.tokenize import BOS, BYTE_FILE, ByteTokenizer, load_tokenizer, tokenizer_step, train_pairs
from schemas.errors import InputError
from tests.curate.judged_lake import judged, made_shards, recipe

TEXTS = ["def f(x):\n    return x + 1\n" * 20, "the quick brown fox jumps over the lazy dog. " * 30, "naïve café 日本語 🙂 " * 20]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(train_pairs(iter(TEXTS), 400), encoding="utf-8")
    return load_tokenizer(path)


@pytest.fixture(params=["pairs", "byte"])
def tokenizer(request, pairs):
    return pairs if request.param == "pairs" else ByteTokenizer()


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=6))
def test_any_unicode_comes_back(pairs, texts):
    for tokenizer in (pairs, ByteTokenizer()):
        ids, offsets = tokenizer.encode_batch(texts)
        assert [tokenizer.decode(ids[a:b]) for a, b in pairwise(offsets)] == texts


def test_every_code_point_comes_back(tokenizer):
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = ["".join(points[first : first + 4096]) for first in range(0, len(points), 4096)]
    ids, offsets = tokenizer.encode_batch(texts)
    assert [tokenizer.decode(ids[a:b]) for a, b in pairwise(offsets)] == texts
    assert ids.max() < tokenizer.vocabulary


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n\n", " a", "a ", "\x00", "\ufeff", "e\u0301 é", "\u202e", f"say {BOS} and <|eos|><|pad|>", "\r\n\t"]
)
def test_edges_come_back_and_spelled_special_tokens_stay_text(tokenizer, text):
    ids, _ = tokenizer.encode_batch([text])
    assert tokenizer.decode(ids) == text
    assert not {tokenizer.bos, tokenizer.eos, tokenizer.pad} & set(ids.tolist())
    assert tokenizer.decode([tokenizer.bos, *ids, tokenizer.eos]) == text


def test_encoding_does_not_depend_on_the_batch(pairs):
    together, offsets = pairs.encode_batch(TEXTS)
    apart = [pairs.encode_batch([text])[0] for text in TEXTS]
    assert np.array_equal(together, np.concatenate(apart))
    assert offsets.tolist() == np.cumsum([0, *map(len, apart)]).tolist()


def test_training_gives_the_same_bytes_on_any_number_of_threads(tmp_path):
    script = "from tests.curate.test_tokenize import TEXTS, train_pairs; print(train_pairs(iter(TEXTS), 400), end='')"

    def trained(threads):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONPATH": ".", "PYTHONIOENCODING": "utf-8"}
        return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True).stdout

    made = {trained(threads) for threads in ("1", "3")}
    assert made == {train_pairs(iter(TEXTS), 400).encode()}


def test_training_text_is_kept_documents_in_hash_order_up_to_the_sample(tmp_path):
    snapshot = judged(tmp_path, made_shards())

    def made(**changes):
        step, shards = tokenizer_step(recipe(**changes), snapshot.steps["read"], snapshot.steps["verdicts"])
        return run_step(tmp_path, step, shards, LocalExecutor(1), Silent())[0]

    entry = made()
    assert 20_000 <= entry.counts["bytes"] < 40_000
    assert 259 < entry.counts["vocabulary"] == load_tokenizer(tmp_path / entry.files["tokenizer"].path).vocabulary <= 300
    assert entry.files["tokenizer"].path.startswith("tokenizer/bpe-")
    assert made(seed=1).files["tokenizer"].checksum != entry.files["tokenizer"].checksum
    everything = made(tokenizer={"vocabulary": 300})
    kept = sum(len(text.encode()) for _, documents in made_shards() for _, text, state, _ in documents if state == "kept")
    assert everything.counts["bytes"] == kept


def test_a_tokenizer_file_and_the_byte_tokenizer_are_published_as_they_are(tmp_path, pairs):
    snapshot = judged(tmp_path, made_shards(documents=4))
    path = tmp_path / "mine.json"
    path.write_text(train_pairs(iter(TEXTS), 300), encoding="utf-8")
    for settings_, content in (({"kind": "file", "path": str(path)}, path.read_bytes()), ({"kind": "byte"}, BYTE_FILE)):
        step, shards = tokenizer_step(recipe(tokenizer=settings_), snapshot.steps["read"], snapshot.steps["verdicts"])
        entry = run_step(tmp_path, step, shards, LocalExecutor(1), Silent())[0]
        assert (tmp_path / entry.files["tokenizer"].path).read_bytes() == content
        assert load_tokenizer(tmp_path / entry.files["tokenizer"].path).fingerprint == entry.files["tokenizer"].checksum


def test_files_that_are_no_tokenizer_are_refused(tmp_path, pairs):
    with pytest.raises(InputError, match="no such tokenizer"):
        load_tokenizer(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer"):
        load_tokenizer(tmp_path / "bad.json")
    value = json.loads(train_pairs(iter(TEXTS), 300))
    value["added_tokens"] = []
    value["model"]["vocab"] = {token: i for i, token in enumerate(t for t in value["model"]["vocab"] if not t.startswith("<|"))}
    (tmp_path / "plain.json").write_text(json.dumps(value))
    with pytest.raises(InputError, match="is in its vocabulary"):
        load_tokenizer(tmp_path / "plain.json")
