"""Repair: what the first look lets pass is what ftfy leaves alone."""

import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.edit.repair import flag_table, repair, suspicions

ftfy = pytest.importorskip("ftfy")
CONFIG = ftfy.TextFixerConfig(uncurl_quotes=False, fix_character_width=False, normalization="NFC", explain=False)

SAMPLES = [
    "cafÃ©", "It’s “fine”", "naïve café", "schÃ¶n", "&amp;", "&eacute;", "<b>&amp;</b>", "a &lt b", "ﬁnd", "line\r\n",
    "\x1b[31mred\x1b[0m", "\x00",
    "e\u0301", "日本語（全角）", "नमस्ते", "שָׁלוֹם", "한국어", "각", "\ufeff", "\u2028", "\x85", "Ð¿Ñ€Ð¸Ð²ÐµÑ‚", "привет", "Â©", "à la",
    "œuvre",
    "ŒUVRE.", "Œ ", "â€œquotesâ€\x9d", "ÃƒÂ©", "©®™", "№ 5", "Ã ", "a Â b", "вЂ™", "ö°", "\n", " ", "x", "&", ";", "<", "#38",
    "é", "É", "€", "²",
]  # fmt: skip
texts = st.lists(st.sampled_from(SAMPLES), max_size=8).map("".join) | st.text(st.characters(codec="utf-8"), max_size=20)
suspicious = st.text(st.sampled_from([chr(code) for code in range(0x80, 0x2600) if flag_table()[code]] + list(" aZ.&;")), max_size=12)


@settings(max_examples=400, deadline=None)
@given(st.lists(texts | suspicious, max_size=6))
def test_texts_are_what_ftfy_makes_of_them(values):
    done = repair(pa.array(values, pa.large_string()))
    assert done.texts.to_pylist() == [ftfy.fix_text(value, CONFIG) for value in values]
    grown = [len(new.encode()) - len(old.encode()) for old, new in zip(values, done.texts.to_pylist(), strict=True)]
    assert (done.added - done.removed).sum(axis=1).tolist() == grown


def test_plain_text_of_any_script_is_not_even_looked_at():
    values = [
        "Plain text, with marks: #1 (two) & three.\n",
        "Grün, naïve café.",
        "“It’s”",
        "日本語（全角）です。",
        "Это текст.",
        "",
        "\n\n",
    ]
    assert not suspicions(pa.array(values, pa.large_string())).any()


def test_normal_form_alone_does_not_need_ftfy(monkeypatch):
    monkeypatch.setattr("curate.edit.repair._fixer", lambda: None)
    assert repair(pa.array(["Größe, créée"], pa.large_string())).texts.to_pylist() == ["Größe, créée"]
    value = "cafe\u0301 नमस्ते"
    done = repair(pa.array([value], pa.large_string()))
    assert done.texts.to_pylist() == [unicodedata.normalize("NFC", value)]
    assert done.counts.tolist() == [[0, 1]]
