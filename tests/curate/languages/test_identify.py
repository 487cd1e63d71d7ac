"""Languages are what py3langid itself says of the same beginning, whatever the batch, and documents are judged by them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.filter import check_rules
from curate.languages.identify import LOOKED_AT, languages_of
from curate.step import Silent
from schemas.errors import RecipeError
from schemas.manifest import Snapshot
from schemas.recipe import Recipe

langid = pytest.importorskip("py3langid.langid", reason="languages need the extra 'text'")

TEXTS = {
    "en": "The people who work here have decided that the meeting will take place tomorrow morning at nine.",
    "de": "Die Leute, die hier arbeiten, haben beschlossen, dass die Sitzung morgen früh um neun Uhr stattfindet.",
    "fr": "Les gens qui travaillent ici ont décidé que la réunion aura lieu demain matin à neuf heures.",
    "ru": "Люди, которые здесь работают, решили, что собрание состоится завтра утром в девять часов.",
    "ja": "ここで働いている人たちは、会議を明日の朝九時に開くことに決めました。",
    "el": "Οι άνθρωποι που εργάζονται εδώ αποφάσισαν ότι η συνάντηση θα γίνει αύριο το πρωί στις εννέα.",
}


@pytest.fixture(scope="module")
def package():
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def found(texts: list[str]) -> list[tuple[str | None, float]]:
    names, scores = languages_of(pa.array(texts, pa.large_string()))
    return list(zip(names.to_pylist(), scores.to_pylist(), strict=True))


def test_each_language_is_told() -> None:
    told = found(list(TEXTS.values()))
    assert [name for name, _ in told] == list(TEXTS) and all(score > 0.9 for _, score in told)


@given(st.lists(st.one_of(st.text(max_size=80), st.sampled_from([*TEXTS.values(), "SHOUTED ÜBER ALLES", "e\u0301te\u0301"])), max_size=6))
@settings(max_examples=150, deadline=None)
def test_language_and_score_are_the_packages_own(package, texts: list[str]) -> None:
    for text, (name, score) in zip(texts, found(texts), strict=True):
        if text.isupper() != pc.utf8_is_upper(text).as_py():
            continue  # Arrow and Python differ on a capital letter with an ordinal sign
        theirs, probability = package.classify(text)
        if name is None:
            assert score == 0 and probability < 0.02  # no evidence: all languages alike, one of two names twice
        else:
            assert score == pytest.approx(probability, abs=1e-3)
            assert name == theirs or package.rank(text)[1][1] > probability - 1e-3


def test_only_the_beginning_counts_and_characters_are_not_cut() -> None:
    text = TEXTS["ja"] * 40
    assert len(text.encode()) > LOOKED_AT
    cut = text.encode()[:LOOKED_AT].decode("utf8", "ignore")
    assert found([text + TEXTS["en"] * 50]) == found([cut])


@given(st.lists(st.sampled_from(["", "12", *TEXTS.values()]), max_size=8), st.integers(0, 8))
@settings(max_examples=40, deadline=None)
def test_a_result_depends_on_its_text_alone(texts: list[str], cut: int) -> None:
    assert found(texts) == found(texts[:cut]) + found(texts[cut:])


def recipe(folder: Path, **language: object) -> Recipe:
    source = {"reader": "jsonl", "paths": [str(folder / "all.jsonl")]}
    return Recipe.model_validate({"name": "spoken", "sources": {"asked": {**source, "language": language}, "other": source}})


def curated(folder: Path, **language: object) -> tuple[Path, Snapshot]:
    (folder / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS.values(), "42 + 17"]))
    lake = folder / "lake"
    return lake, curate(Curation(lake, recipe(folder, **language), LocalExecutor(1), Silent()))


def test_documents_are_dropped_by_language_and_score_where_the_source_asks(tmp_path: Path) -> None:
    lake, snapshot = curated(tmp_path, allow=["de", "fr"], min_score=0.65)
    rows = [row for file in snapshot.files("verdicts") for row in pq.read_table(lake / file.path, partitioning=None).to_pylist()]
    asked = [row for row in rows if row["source"] == "asked"]
    failed = [[failure["rule"] for failure in row["failures"]] for row in asked]
    assert failed[:-1] == [[] if name in ("de", "fr") else ["language_not_allowed"] for name in TEXTS]
    assert failed[-1][-1] == "language_score"
    assert asked[-1]["failures"][-1]["threshold"] == 0.65 and asked[-1]["failures"][-1]["value"] <= 0.65
    assert all(not row["failures"] for row in rows if row["source"] == "other")
    languages = [pq.read_table(lake / file.path, partitioning=None) for file in snapshot.files("languages")]
    assert sum(table.num_rows for table in languages) == len(asked)


def test_a_rule_compares_the_language_and_a_refused_one_is_named_by_its_place_in_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "all.jsonl").write_text("".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in TEXTS.items()))
    rules = [
        {"sql": sql, "name": name, "sources": [source]}
        for name, sql, source in (
            ("far", "n_words > 9000", "asked"),
            ("german", "language IN ('de')", "asked"),
            ("odd", "language < 1", "other"),
        )
    ]
    asked = recipe(tmp_path).model_dump(mode="json") | {"rules": rules}
    with pytest.raises(RecipeError, match=r"^rules\[2\]\.sql: "):
        check_rules(Recipe.model_validate(asked))
    asked["rules"].pop()
    lake = tmp_path / "lake"
    snapshot = curate(Curation(lake, Recipe.model_validate(asked), LocalExecutor(1), Silent()))
    found = pq.read_table(lake / snapshot.files("verdicts")[0].path, partitioning=None).column("reason").to_pylist()
    assert [reason == "german" for reason in found[: len(TEXTS)]] == [name == "de" for name in TEXTS]


def test_an_unknown_language_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no language 'eng'") as error:
        curated(tmp_path, allow=["eng"])
    assert "sources.asked.language.allow" in str(error.value)


@pytest.mark.parametrize(
    "rule", [{"set": "fineweb2"}, {"name": "german", "sql": "LANGUAGE = 'de'"}, {"name": "s", "sql": "language_score < 1"}]
)
def test_rules_that_depend_on_the_language_need_one(tmp_path: Path, rule: dict) -> None:
    asked = recipe(tmp_path).model_dump(mode="json") | {"rules": [rule]}
    with pytest.raises(RecipeError, match=r"^sources\.other\.language: .* depends on the language"):
        check_rules(Recipe.model_validate(asked))
    check_rules(Recipe.model_validate(asked | {"rules": [rule | {"sources": ["asked"]}]}))


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from curate.languages.identify import language_model

    language_model.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "py3langid.langid", None)
    with pytest.raises(RecipeError, match=r"gristmill\[text\]"):
        curated(tmp_path, allow=["en"])
    language_model.cache_clear()
