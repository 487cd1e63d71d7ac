"""Pieces met before: the ids are the library's own, for any text, however it is cut into batches and however full the table is."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from curate import byte_level
from curate.byte_level import DIGITS, PieceTable, pattern_of
from curate.tokenizer import FEW, load_tokenizer, train_pairs

TEXTS = ["def f(x):\n    return x + 1\n" * 20, "the quick brown fox doesn't jump over 12 lazy dogs'. " * 30, "naïve café 日本語 ½ 🙂 " * 20]


def with_pattern(content, pattern):
    """A tokenizer.json that splits as Llama 3's does."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return json.dumps(json.loads(content) | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}})


@pytest.fixture(scope="module", params=["gpt2", *DIGITS], ids=["gpt2", "llama3", "digits apart"])
def content(request):
    plain = train_pairs(iter(TEXTS), 500)
    return plain if request.param == "gpt2" else with_pattern(plain, request.param)


@pytest.fixture(scope="module")
def library(content):
    made = tokenizers.Tokenizer.from_str(content)
    made.encode_special_tokens = True
    return made


@pytest.fixture(scope="module")
def table(content):
    return PieceTable(content)


def ids_of(table, texts):
    ids, offsets = table.encode_batch(texts)
    return [ids[a:b].tolist() for a, b in pairwise(offsets)]


def own(library, texts):
    return [encoding.ids for encoding in library.encode_batch(texts, add_special_tokens=False)]


MIXED = st.text(
    st.one_of(st.sampled_from(" \t\n\r'stredmvlLT1٣é\u0301 \u3000\u2028\x85x!<|eos|>日ſ"), st.characters(exclude_categories=["Cs"]))
)


@settings(deadline=None, max_examples=300)
@given(st.lists(MIXED, max_size=5))
def test_ids_are_the_librarys_own(table, library, texts):
    assert ids_of(table, texts) == own(library, texts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  ",
        "a  ",
        "  a",
        " \n a",
        "\n \r\n\n  b",
        "!\r\n\n x",
        "\tx \t\ny",
        "'ſx 'LL 'Re'vE it'S",
        "12345 6",
        "\u3000\n\u3000",
        "\u3000 a\u3000",
        "'s",
        "x's 'S",
        " 've'll'",
        "''re",
        "it'",
        "'",
        "<|bos|>a<|eos|>",
        "1½٣x",
        "e\u0301",
    ],
)
def test_edges_are_the_librarys_own(table, library, text):
    assert ids_of(table, [text, "", text]) == own(library, [text, "", text])


def test_every_code_point_between_letters_spaces_and_signs(table, library):
    parts = range(0x3400), range(0x3400, 0xD800, 31), range(0xE000, 0x11000, 5), range(0x11000, 0x20000, 7), range(0x20000, 0x110000, 997)
    points = [chr(c) for part in parts for c in part]
    texts = ["".join(f"a{c} {c}{c}1{c}!" for c in points[first : first + 2048]) for first in range(0, len(points), 2048)]
    assert ids_of(table, texts) == own(library, texts)


def test_a_table_that_grows_or_begins_anew_gives_the_same(content, library, monkeypatch):
    monkeypatch.setattr(byte_level, "MOST_PIECES", 50_000)
    table = PieceTable(content)
    rng = np.random.default_rng(5)
    for _ in range(3):
        texts = [" ".join(str(n) for n in rng.integers(0, 1 << 40, 2000)) for _ in range(25)]
        assert ids_of(table, texts) == own(library, texts)
    assert table._count < 60_000


def test_threads_may_share_a_table(table, library):
    texts = [" ".join(f"w{n}x{k}" for n in range(300)) for k in range(40)]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda text: ids_of(table, [text])[0], texts))
    assert made == own(library, texts)


def test_a_tokenizer_takes_the_table_for_long_texts_alone(content, library, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    tokenizer = load_tokenizer(path)
    for texts in ([TEXTS[0]], [*TEXTS, "long " * FEW]):
        assert ids_of(tokenizer, texts) == own(library, texts)
        assert ("_pieces" in vars(tokenizer)) == (len(texts) > 1)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}},
        {"pre_tokenizer": None},
        {"added_tokens": [{"id": 3, "content": "tool", "special": False}]},
    ],
)
def test_what_splits_otherwise_is_left_to_the_library(content, change):
    value = json.loads(content)
    assert pattern_of(value) is not None
    assert pattern_of(value | change) is None
    assert pattern_of(value | {"model": value["model"] | {"dropout": 0.1}}) is None
    assert pattern_of(json.loads(with_pattern(content, r"\w+"))) is None
