"""Tokenizers of every kind: exact on all Unicode, special tokens only where packing puts them, the same file on any number of threads."""

import base64
import importlib
import json
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.curate import read
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.step import Silent, run_step
from curate.tokenize import tokenizer_step
from curate.tokenizer import (
    BOS,
    BYTE_FILE,
    PATTERNS,
    ByteTokenizer,
    file_content,
    load_tokenizer,
    refuse_lossy,
    train_pairs,
)
from schemas.errors import InputError
from tests.curate.judged_lake import judged, made_shards, recipe

TEXTS = ["def f(x):\n    return x + 1\n" * 20, "the quick brown fox jumps over the lazy dog. " * 30, "naïve café 日本語 🙂 " * 20]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(train_pairs(iter(TEXTS), 400), encoding="utf-8")
    return load_tokenizer(path)


def write_ranks(path):
    """A rank file as OpenAI publishes them: the bytes, then the trained pairs (GPT-2 shows a byte as a printable character)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    byte_of = {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(others)}
    trained = json.loads(train_pairs(iter(TEXTS), 500))["model"]["vocab"]
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes(byte_of[c] for c in token) for token in trained if not token.startswith("<|") and len(token) > 1]
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    return {token: rank for rank, token in enumerate(tokens)}


def write_folder(path):
    """What save_pretrained() of a tokenizer with names of its own for special tokens writes."""
    path.mkdir()
    (path / "tokenizer.json").write_text(train_pairs(iter(TEXTS), 400, ("[start]", "[stop]", "[fill]")), encoding="utf-8")
    config = {"bos_token": "[start]", "eos_token": {"content": "[stop]", "special": True}, "pad_token": "[fill]"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def loaded(path, content):
    path.write_bytes(content)
    return load_tokenizer(path)


@pytest.fixture(scope="module")
def kinds(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    write_ranks(folder / "ranks.tiktoken")
    made = {"pairs": pairs, "byte": ByteTokenizer()}
    made["folder"] = loaded(folder / "folder.json", file_content("file", write_folder(folder / "saved")))
    for pattern in PATTERNS:
        made[pattern] = loaded(folder / f"{pattern}.json", file_content("tiktoken", folder / "ranks.tiktoken", pattern))
    return made


@pytest.fixture(params=["pairs", "byte", "folder", "gpt2", "cl100k", "o200k"])
def tokenizer(request, kinds):
    return kinds[request.param]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=6))
def test_any_unicode_comes_back(kinds, texts):
    for tokenizer in kinds.values():
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


@pytest.mark.parametrize("pattern", list(PATTERNS))
def test_ranks_give_tiktokens_own_ids(kinds, tmp_path, pattern):
    tiktoken = pytest.importorskip("tiktoken")
    ranks = write_ranks(tmp_path / "ranks")
    encodings = {"gpt2": "gpt2", "cl100k": "cl100k_base", "o200k": "o200k_base"}
    with pytest.MonkeyPatch.context() as patch:  # the package's own patterns, without the ranks that it would fetch
        public = importlib.import_module("tiktoken_ext.openai_public")
        patch.setattr(public, "load_tiktoken_bpe", lambda *_, **__: dict.fromkeys(range(199_998), 0))
        patch.setattr(public, "data_gym_to_mergeable_bpe_ranks", lambda *_, **__: dict.fromkeys(range(50_256), 0))
        theirs = getattr(public, encodings[pattern])()["pat_str"]
    oracle = tiktoken.Encoding("theirs", pat_str=theirs, mergeable_ranks=ranks, special_tokens={})
    texts = [*TEXTS, "I'll pay  12345\r\n\r\n  <|eos|>", ""]
    ids, offsets = kinds[pattern].encode_batch(texts)
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == [oracle.encode_ordinary(text) for text in texts]
    assert (kinds[pattern].bos, kinds[pattern].vocabulary) == (len(ranks), len(ranks) + 3)


def test_special_tokens_are_those_that_a_folder_or_a_recipe_names(kinds, tmp_path):
    assert (kinds["folder"].bos, kinds["folder"].eos, kinds["folder"].pad) == (0, 1, 2)
    write_ranks(tmp_path / "ranks")
    named = loaded(tmp_path / "named.json", file_content("tiktoken", tmp_path / "ranks", "gpt2", {"<|endoftext|>": 9999}))
    assert (named.bos, named.eos, named.pad, named.vocabulary) == (9999, 9999, 9999, 10_000)
    with pytest.raises(InputError, match="is a rank too"):
        file_content("tiktoken", tmp_path / "ranks", "gpt2", {"<|endoftext|>": 7})
    fills = loaded(tmp_path / "fills.json", file_content("tiktoken", tmp_path / "ranks", "gpt2", fills=True))
    assert fills.middle is not None and fills.vocabulary == fills.bos + 6


def test_what_loses_text_is_refused(kinds, tmp_path):
    for tokenizer in kinds.values():
        refuse_lossy(tokenizer, tmp_path)
    value = json.loads(train_pairs(iter(TEXTS), 400))
    value["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "lower.json").write_text(json.dumps(value))
    with pytest.raises(InputError, match="does not give texts back: 'A probe:' comes back as 'a probe:'"):
        refuse_lossy(load_tokenizer(tmp_path / "lower.json"), tmp_path / "lower.json")
    (tmp_path / "bad.tiktoken").write_text("QQ== 0\nno\n")
    with pytest.raises(InputError, match="line 2"):
        file_content("tiktoken", tmp_path / "bad.tiktoken", "gpt2")
    (tmp_path / "few.tiktoken").write_text("QQ== 0\n")
    with pytest.raises(InputError, match="single byte"):
        file_content("tiktoken", tmp_path / "few.tiktoken", "gpt2")
    write_ranks(tmp_path / "ranks")
    with pytest.raises(InputError, match="not a pattern"):
        loaded(tmp_path / "pattern.json", file_content("tiktoken", tmp_path / "ranks", "(["))
    with pytest.raises(InputError, match="pieces without text"):
        loaded(tmp_path / "pattern.json", file_content("tiktoken", tmp_path / "ranks", "x*"))
    for ids in ({"<|endoftext|>": 4_000_000_000}, {"<|endoftext|>": 9999, "<|pad|>": 9999}):
        with pytest.raises(InputError, match=r"tokenizer\.special"):
            file_content("tiktoken", tmp_path / "ranks", "gpt2", ids)
    ranks = (tmp_path / "ranks").read_text().splitlines()
    for rank in (-4, 99_999_999_999):
        (tmp_path / "beyond").write_text("\n".join([*ranks, f"enp6eg== {rank}"]))
        with pytest.raises(InputError, match="ranks are from 0"):
            file_content("tiktoken", tmp_path / "beyond", "gpt2")
    (tmp_path / "folder").mkdir()
    for content, config in ((b"\xff", b"{}"), (b"{}", b"\xff"), (b"{}", b"[]")):
        (tmp_path / "folder/tokenizer.json").write_bytes(content)
        (tmp_path / "folder/tokenizer_config.json").write_bytes(config)
        with pytest.raises(InputError, match="JSON"):
            file_content("file", tmp_path / "folder")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        file_content("file", tmp_path / "empty")


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
    write_ranks(tmp_path / "ranks")
    ranks = {"kind": "tiktoken", "path": str(tmp_path / "ranks"), "pattern": "gpt2"}
    saved = {"kind": "file", "path": str(write_folder(tmp_path / "saved"))}
    published = [
        ({"kind": "file", "path": str(path)}, path.read_bytes()),
        ({"kind": "byte"}, BYTE_FILE),
        (ranks, file_content("tiktoken", tmp_path / "ranks", "gpt2")),
        (saved, file_content("file", tmp_path / "saved")),
    ]
    for settings_, content in published:
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


@pytest.mark.parametrize(("name", "mistake"), [("none.json", "no such tokenizer"), ("lower.json", "does not give texts back")])
def test_a_file_that_cannot_be_used_is_refused_before_anything_is_read(tmp_path, name, mistake):
    value = json.loads(train_pairs(iter(TEXTS), 400)) | {"normalizer": {"type": "Lowercase"}}
    (tmp_path / "lower.json").write_text(json.dumps(value), encoding="utf-8")
    made = recipe(tokenizer={"kind": "file", "path": str(tmp_path / name)})
    with pytest.raises(InputError, match=mistake):
        read(Curation(tmp_path / "lake", made, LocalExecutor(1), Silent()))
    assert not (tmp_path / "lake").exists()
