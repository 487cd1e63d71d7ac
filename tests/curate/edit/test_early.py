"""Rules before an edit judge the text of that version: what fails is dropped there unedited, what passes is edited and judged again."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from curate.curate import curate
from curate.curation import Curation
from curate.edit.c4 import c4
from curate.engine import LocalExecutor
from curate.rehearse import NotStored, rehearse
from curate.rules import evaluate, resolve_rules
from curate.signals import compute_signals
from curate.step import Silent
from pipelines.why import life
from schemas.errors import RecipeError
from schemas.recipe_file import load_recipe
from tests.curate.made_text import corpus, write_jsonl
from tests.curate.published import rows, run

RECIPE = """\
name: made
sources:
  web: {reader: jsonl, paths: [web], id_field: id}
  plain: {reader: jsonl, paths: [plain]}
edits:
  - {edit: c4, off: [no_terminal_punct], sources: [web]}
rules:
  - {set: gopher_repetition, before: c4, sources: [web]}
  - {set: gopher_quality, before: c4, sources: [web], thresholds: {gopher_enough_stop_words: 0}}
  - {set: fineweb, off: [char_dup_ratio]}
dedup: {exact: false, near: null}
holdout: {share: 0}
shards: {bytes: 9000}
"""
POLICY = "This site uses cookies for everything it does."
EARLY = [{"set": "gopher_repetition"}, {"set": "gopher_quality", "thresholds": {"gopher_enough_stop_words": 0}}]
LATE = [{"set": "fineweb", "off": ["char_dup_ratio"]}]


def array(texts):
    return pa.array(texts, pa.large_string())


def made_texts():
    texts = []
    for number, text in enumerate(corpus(11, 60)):
        # Sentences, so that C4 and FineWeb find some; then texts that each of the three stages drops.
        text = ". ".join(text[i : i + 60] for i in range(0, len(text), 60)) + "."
        kind = number % 5
        texts.append(
            [
                text,
                text + f"\n{POLICY}",
                " ".join([text[:90]] * 9),
                f"{text}\none {{ too many.",
                "\n".join(text[i : i + 20] for i in range(0, 300, 20)),
            ][kind]
        )
    return [*texts, "", "too short"]


@pytest.fixture(scope="module")
def recipe_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    texts = made_texts()
    write_jsonl(folder / "web/a.jsonl", texts, id=[f"w{number}" for number in range(len(texts))])
    write_jsonl(folder / "plain/a.jsonl", corpus(12, 5))
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def lake(recipe_path, tmp_path_factory):
    root = tmp_path_factory.mktemp("lake")
    run(root, recipe_path, workers=2)
    return root


def failures(texts, entries):
    signals = pa.Table.from_batches([compute_signals(array(texts))])
    return [[each["rule"] for each in row] for row in evaluate(signals, resolve_rules(entries)).column("failures").to_pylist()]


def test_the_chain_is_rules_then_c4_then_rules(lake):
    """One text after another through the functions themselves, as FineWeb's pipeline goes."""
    texts = made_texts()
    expected = {}
    for number, text in enumerate(texts):
        first = failures([text], EARLY)[0]
        if first or not text:
            expected[f"w{number}"] = (first or ["empty"])[0], text
            continue
        done = c4(array([text]), ["no_terminal_punct"], {})
        if done.failures.rule:
            expected[f"w{number}"] = done.failures.rule[0], done.texts[0].as_py()
            continue
        late = failures([done.texts[0].as_py()], LATE)[0]
        expected[f"w{number}"] = late[0] if late else None, done.texts[0].as_py()
    reasons = {row["doc_id"]: row["reason"] for row in rows(lake, "verdicts")}
    found = {row["id"]: (reasons[row["doc_id"]], row["text"]) for row in rows(lake, "documents") if row["source"] == "web"}
    assert found == expected
    kinds = {reason for reason, _ in expected.values()}
    assert kinds >= {None, "empty", "top_2_gram", "c4_curly_bracket", "line_punct_ratio"}


def test_the_ready_recipe_has_finewebs_order():
    recipe = load_recipe(Path(__file__).parents[3] / "recipes/fineweb.yaml")
    assert [(rule.set, rule.before) for rule in recipe.rules] == [("gopher_repetition", "c4"), ("gopher_quality", "c4"), ("fineweb", None)]
    assert [edit.edit for edit in recipe.edits] == ["c4", "mask"] and recipe.edits[0].off == ["no_terminal_punct"]


def test_early_signals_are_of_the_text_before_the_edit(lake, recipe_path):
    texts = {f"w{number}": text for number, text in enumerate(made_texts())}
    names = {row["doc_id"]: row["id"] for row in rows(lake, "documents") if row["source"] == "web"}
    early = {names[row["doc_id"]]: row for row in rows(lake, "early_signals")}
    assert set(early) == set(texts) and {row["step"] for row in early.values()} == {0}
    assert {name: row["n_chars"] for name, row in early.items()} == {name: len(text) for name, text in texts.items()}
    late = {names[row["doc_id"]]: row["n_chars"] for row in rows(lake, "signals") if row["doc_id"] in names}
    assert late["w1"] < early["w1"]["n_chars"]


def test_what_fails_early_is_not_edited_and_why_says_so(lake):
    by_id = {row["id"]: row for row in rows(lake, "documents")}
    text = by_id["w2"]["text"]
    assert by_id["w2"]["text_version"] == 0 and text == made_texts()[2]
    found = life(lake, "w2")
    assert found["verdict"]["reason"] == "dup_line_frac" and not found["edits"]


def test_what_is_dropped_early_repeats_nothing(tmp_path):
    """The first occurrence of a line counts only in a document that is still there."""
    line = "A line that two documents share, word by word."
    write_jsonl(tmp_path / "a.jsonl", [line, f"{line}\nAnd one of the second document alone, which is longer than the other."])
    (tmp_path / "recipe.yaml").write_text(
        "name: made\nsources: {web: {reader: jsonl, paths: [a.jsonl], max_bad_share: 1}}\nedits: [{edit: lines}]\n"
        "rules: [{name: short, sql: n_words < 15, before: lines}]\ndedup: {near: null}\nholdout: {share: 0}\n"
    )
    run(tmp_path / "lake", tmp_path / "recipe.yaml")
    states = {row["text"].count("\n"): row["text"] for row in rows(tmp_path / "lake", "documents")}
    assert states[1].startswith(line)
    assert [row["reason"] for row in rows(tmp_path / "lake", "verdicts")] == ["short", None]


def test_a_changed_threshold_counts_no_signal_of_it_anew(lake, recipe_path, tmp_path):
    ran = {}

    class Watch(Silent):
        def finish(self, step, done, skipped):
            ran[step] = done

    change = "rules.1.thresholds.gopher_short_doc=20"
    with pytest.raises(NotStored, match="edit_0_rules', which judges what is edited then"):
        rehearse(lake, load_recipe(recipe_path, [change]))
    shutil.copytree(lake, tmp_path / "lake")
    curate(Curation(tmp_path / "lake", load_recipe(recipe_path, [change]), LocalExecutor(1), Watch()))
    assert ran["early_signals_0"] == 0 and ran["edit_0_rules"] > 0


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"set": "gopher_quality", "before": "c5"}, "names 'c5', which is no edit of the recipe; one of c4"),
        ({"set": "redpajama", "before": "c4"}, "reads 'rps_words', which is measured after all edits"),
        ({"set": "fineweb2", "before": "c4"}, "reads 'language', which is measured after all edits"),
        ({"sql": "language_score < 1", "name": "odd", "before": "c4"}, "column 'language_score' does not exist"),
    ],
)
def test_rules_that_cannot_be_judged_early_are_refused(recipe_path, tmp_path, entry, message):
    with pytest.raises(RecipeError) as error:
        run(tmp_path, recipe_path, changes=("rules=" + json.dumps([entry]),))
    assert message in str(error.value)
