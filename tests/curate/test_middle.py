"""Fill in the middle: drawn by hash, rearranged with its tokens, and every text is recovered."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.middle import TOKENS, drawn, encode, pieces, recovered
from curate.tokenizer import BOS, EOS, PAD, ByteTokenizer, PairTokenizer, train_pairs
from tests.curate.judged_lake import doc_id


@pytest.fixture(scope="module", params=["byte", "bpe"])
def tokenizer(request, tmp_path_factory):
    if request.param == "byte":
        return ByteTokenizer(fills_middle=True)
    path = tmp_path_factory.mktemp("pairs") / "tokenizer.json"
    path.write_text(train_pairs(iter(["def f(x): return x", "alpha beta naïve 日本 🙂"] * 5), 320, (BOS, EOS, PAD, *TOKENS)))
    return PairTokenizer(path)


@given(st.text(), st.integers(0, 2**64 - 1))
def test_pieces_put_together_are_the_text(text, draw):
    assert "".join(pieces(text, draw)) == text


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=6), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 5))
def test_every_text_is_recovered(tokenizer, texts, share, seed):
    ids = pa.array([doc_id("code", number) for number in range(len(texts))], pa.binary(16))
    trained = np.arange(len(texts)) != 2
    found, offsets = encode(tokenizer, texts, ids, {"share": share, "seed": seed}, trained)
    chosen = drawn(ids, share, seed) & trained
    for number, text in enumerate(texts):
        mine = found[offsets[number] : offsets[number + 1]]
        assert recovered(tokenizer, mine) == text
        assert [int(np.sum(mine == token)) for token in tokenizer.middle] == [int(chosen[number])] * 3
    assert offsets[-1] == len(found)


def test_the_share_drawn_is_the_share_asked_for():
    ids = pa.array([doc_id("code", number) for number in range(4000)], pa.binary(16))
    assert drawn(ids, 0.3, 1).mean() == pytest.approx(0.3, abs=0.03)
    assert (drawn(ids, 0.3, 1) <= drawn(ids, 0.6, 1)).all() and (drawn(ids, 0.3, 1) != drawn(ids, 0.3, 2)).any()
