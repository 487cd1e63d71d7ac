"""The text of every document comes back from the packed rows alone, whatever the Unicode, under every kind of tokenizer."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from curate.engine import LocalExecutor
from curate.lots import build_lots
from curate.middle import TOKENS, recovered
from curate.step import Silent
from curate.tokenizer import load_tokenizer, train_pairs
from schemas.manifest import read_snapshot
from tests.curate.judged_lake import doc_id, judged, recipe
from tests.curate.test_lots import documents_in_rows
from tests.curate.test_tokenize import TEXTS, write_folder, write_ranks

ROWS = {"row_length": 16, "rows_per_shard": 20, "bins": 1, "min_tail": 1}
SPECIAL = "<|bos|>a<|eos|><|pad|><|endoftext|>" + "".join(TOKENS)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """The recipe's section for each kind of tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizers")
    write_ranks(folder / "ranks")
    (folder / "mine.json").write_text(train_pairs(iter(TEXTS), 400, ("<|bos|>", "<|eos|>", "<|pad|>", *TOKENS)), encoding="utf-8")
    return {
        "byte": {"kind": "byte"},
        "bpe": {"kind": "bpe", "vocabulary": 300, "sample_bytes": 1000},
        "file": {"kind": "file", "path": str(folder / "mine.json")},
        "folder": {"kind": "file", "path": str(write_folder(folder / "saved"))},
        "tiktoken": {"kind": "tiktoken", "path": str(folder / "ranks"), "pattern": "o200k"},
    }


@pytest.mark.parametrize("kind", ["byte", "bpe", "file", "folder", "tiktoken"])
@settings(deadline=None, max_examples=2)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60), min_size=12, max_size=40), st.booleans())
@example(
    ["\ufeff", "e\u0301\r\n", "\x00", " ", "\u202e🙂👩\u200d👩\u200d👧", "日本語" * 40, "a" * 200, "a" * 15, "", "\n" * 14, SPECIAL], True
)
def test_every_text_comes_back_from_its_rows(kinds, kind, texts, marks):
    """Cut, packed, with and without BOS and EOS; half of one source to fill in the middle, where the tokenizer has the tokens."""
    if kind == "tiktoken":
        pytest.importorskip("tiktoken")
    sources = recipe().model_dump(include={"sources"})["sources"]
    sources["web"]["fill_in_the_middle"] = 0.0 if kind == "folder" else 0.5
    chosen = recipe(sources=sources, tokenizer=kinds[kind], pack=ROWS | {"bos": marks, "eos": marks})
    shards = [(source, [(n, text, ("kept", "held_out")[n % 4 == 3], 0) for n, text in enumerate(texts)]) for source in ("web", "books")]
    with TemporaryDirectory() as folder:
        root = Path(folder)
        build_lots(root, chosen, judged(root, shards), LocalExecutor(1), Silent())
        snapshot = read_snapshot(root)
        tokenizer = load_tokenizer(root / snapshot.steps["tokenizer"][0].files["tokenizer"].path)
        for split, held in (("train", False), ("holdout", True)):
            found = documents_in_rows(root, split)
            empty = [] if marks else [""]  # without BOS and EOS an empty text has no token, and no row
            expected = {doc_id(s, n): t for s, documents in shards for n, t, state, _ in documents if (state != "kept") == held}
            assert set(found) == {key for key, text in expected.items() if text not in empty}
            for key, ids in found.items():
                assert recovered(tokenizer, ids[1:-1] if marks else ids) == expected[key]
