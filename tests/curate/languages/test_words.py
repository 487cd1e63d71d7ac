"""Words of scripts without spaces are ICU's, their signals equal a plain count, and every other text is as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.signals import compute_signals
from curate.signals.tokenizer import words_of
from curate.step import Silent
from schemas.errors import RecipeError
from schemas.recipe import Recipe
from tests.curate.signals import oracle
from tests.curate.signals.test_signals import punctuation

icu = pytest.importorskip("icu4py.breakers", reason="words of scripts without spaces need the extra 'text'")
words = pytest.importorskip("curate.languages.words")

UNSPACED = {
    "zh": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "km": "មនុស្សទាំងអស់កើតមកមានសេរីភាពនិងសមភាពក្នុងសេចក្ដីថ្លៃថ្នូរនិងសិទ្ធិ",
    "my": "လူတိုင်းသည်တူညီလွတ်လပ်သောဂုဏ်သိက္ခာဖြင့်လည်းကောင်း",
}
SPACED = {
    "ar": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق، وقد وهبوا عقلاً وضميراً وعليهم أن يعامل بعضهم بعضاً بروح الإخاء.",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이성과 양심을 부여받았다.",
    "he": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון.",
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью.",
}
MIXED = st.lists(
    st.sampled_from(
        [*"人间自由。、ดีกา的のは", " ", "\n", "\u200b", "\u3000", "abc", "É", "😀", "𠀋", "\u0301", "12", "the ", "Python", "自由 " * 9]
    ),
    max_size=60,
).map("".join)


def array(*texts: str) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


def icu_words(text: str) -> list[str]:
    """Segments between ICU's breaks, white space taken out."""
    parts = ("".join(part.replace("\u200b", "").split()) for part in icu.WordBreaker(text, "und"))
    return [part for part in parts if part]


def spans(parts: list[str]) -> set[tuple[int, int]]:
    found, place = set(), 0
    for part in parts:
        found.add((place, place + len(part)))
        place += len(part)
    return found


def f1(ours: list[str], theirs: list[str]) -> float:
    mine, other = spans(ours), spans(theirs)
    return 2 * len(mine & other) / (len(mine) + len(other))


def test_scripts_with_spaces_agree_with_icu_as_they_are() -> None:
    for text in SPACED.values():
        assert f1(list(words_of(text)), icu_words(text)) >= 0.95
    for text in UNSPACED.values():
        assert f1(list(words_of(text)), icu_words(text)) < 0.3


@given(MIXED)
@settings(max_examples=200, deadline=None)
def test_signals_of_words_equal_a_plain_count_over_icus_words(text: str) -> None:
    counted = compute_signals(array(text))
    row = words.with_words(array(text), counted).to_pylist()[0]
    if len(words.unspaced_rows(array(text), counted)):
        told = oracle.word_signals(icu_words(text), punctuation())
        assert {name: row[name] for name in told} == told
        rest = set(row) - set(words.COUNTED)
        assert {name: row[name] for name in rest} == {name: counted.to_pylist()[0][name] for name in rest}
    else:
        assert row == counted.to_pylist()[0]


def test_texts_in_scripts_without_spaces_are_told_by_a_quarter_of_their_letters() -> None:
    texts = [*UNSPACED.values(), *SPACED.values(), "", "...", "abc" * 5 + "人" * 5, "abc" * 5 + "人" * 4, "。。。"]
    rows = words.unspaced_rows(array(*texts), compute_signals(array(*texts))).tolist()
    assert rows == [0, 1, 2, 3, 4, 12]


def test_a_batch_gives_what_each_text_gives_alone() -> None:
    texts = [text for pair in zip(UNSPACED.values(), SPACED.values(), strict=True) for text in pair]
    whole = words.with_words(array(*texts), compute_signals(array(*texts)))
    padded = array("padding", *texts).slice(1)
    assert words.with_words(padded, compute_signals(padded)).equals(whole)
    alone = [words.with_words(array(text), compute_signals(array(text))).to_pylist()[0] for text in texts]
    assert whole.to_pylist() == alone


def test_a_source_whose_languages_matter_counts_words_of_chinese(tmp_path: Path) -> None:
    """Sixty words in three sentences are not too short a document; for the English tokenizer they are a dozen."""
    pytest.importorskip("py3langid.langid", reason="languages need the extra 'text'")
    text = UNSPACED["zh"] * 3
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")
    found = {}
    for name, language in (("asked", {"min_score": None}), ("not", None)):
        source = {"reader": "jsonl", "paths": [str(tmp_path / "a.jsonl")], "language": language}
        rules = [{"name": "short", "sql": "n_content_words < 50"}]
        recipe = Recipe.model_validate({"name": "made", "sources": {"web": source}, "rules": rules, "holdout": {"share": 0}})
        snapshot = curate(Curation(tmp_path / name, recipe, LocalExecutor(1), Silent()))
        (file,) = snapshot.files("verdicts")
        found[name] = pa.parquet.read_table(tmp_path / name / file.path).column("state").to_pylist()
    assert found == {"asked": ["kept"], "not": ["dropped"]}


def test_without_icu_the_recipe_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "icu4py", None)
    with pytest.raises(RecipeError, match="icu4py, which is not installed") as error:
        words.splitter()
    assert "gristmill[text]" in str(error.value)
