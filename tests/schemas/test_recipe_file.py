"""Recipes compose, and their errors name file, line and field."""

import json
from pathlib import Path

import pytest

from schemas.errors import RecipeError
from schemas.recipe_file import json_schema, load_recipe

BASE = """\
name: base
sources:
  web: {reader: jsonl, paths: ["*.jsonl"]}
training: {batch_rows: 8, micro_batch_rows: 8}
stages:
  - {name: first, tokens: 1000, mixture: {web: 1}}
"""


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_a_recipe_extends_another_and_set_changes_both(tmp_path):
    write(tmp_path, "base.yaml", BASE)
    path = write(tmp_path, "mine.yaml", "extends: base.yaml\nname: mine\ntraining: {micro_batch_rows: 4}\n")
    recipe = load_recipe(path, ["training.optimizer.lr=0.01", "stages.0.tokens=5000"])
    assert (recipe.name, recipe.training.batch_rows, recipe.training.micro_batch_rows) == ("mine", 8, 4)
    assert recipe.training.optimizer.lr == 0.01
    assert recipe.stages[0].tokens == 5000
    assert recipe.sources["web"].paths == [str(tmp_path / "*.jsonl")]


def test_stage_training_changes_the_recipes(tmp_path):
    text = BASE.replace("mixture: {web: 1}}", "training: {early_stop: {patience: 4}, optimizer: {lr: 0.5}}}")
    recipe = load_recipe(write(tmp_path, "r.yaml", text))
    settings = recipe.training_of(recipe.stages[0])
    assert settings.early_stop is not None and settings.early_stop.patience == 4
    assert (settings.optimizer.lr, settings.batch_rows) == (0.5, 8)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (("reader: jsonl", "reader: jsonl, pathz: []"), [":3:", "sources.web.pathz", "did you mean 'paths'"]),
        (("batch_rows: 8,", "batch_rowz: 8,"), [":4:", "training.batch_rowz", "did you mean 'batch_rows'"]),
        (("tokens: 1000", "tokens: lots"), [":6:", "stages.0.tokens"]),
        (("{web: 1}", "{wib: 1}"), ["unknown source 'wib'", "did you mean 'web'"]),
        (("name: base", "name: Base!"), [":1:", "name"]),
        (("name: base", "name: base\nrules:\n- {sql: n_words < 1, name: too-short}"), [":3:", "rules.0.name"]),
        (("name: base", "name: base\nmodle: {}"), [":2:", "did you mean 'model'"]),
    ],
)
def test_errors_name_line_field_and_nearest(tmp_path, change, wanted):
    path = write(tmp_path, "r.yaml", BASE.replace(*change))
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    for part in [str(path), *wanted]:
        assert part in str(error.value)


@pytest.mark.parametrize("text", ["", "- 1", "a: [", "name: \xff"])
def test_what_is_no_recipe_is_refused_with_its_path(tmp_path, text):
    path = tmp_path / "r.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RecipeError, match="r.yaml"):
        load_recipe(path)


def test_a_missing_recipe_and_a_loop_are_refused(tmp_path):
    with pytest.raises(RecipeError, match="no such recipe"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(RecipeError, match="extends itself"):
        load_recipe(write(tmp_path, "loop.yaml", "extends: loop.yaml\n"))


@pytest.mark.parametrize("change", ["training", "training.batch_rows.x=1", "stages.7.tokens=1"])
def test_a_wrong_set_is_refused(tmp_path, change):
    with pytest.raises(RecipeError, match="--set"):
        load_recipe(write(tmp_path, "r.yaml", BASE), [change])


def test_a_stages_training_is_checked_when_the_recipe_is_read(tmp_path):
    with pytest.raises(RecipeError, match=r"stages\[0\].*precision.*fp33"):
        load_recipe(write(tmp_path, "r.yaml", BASE.replace("mixture: {web: 1}", "training: {precision: fp33}")))


def test_more_than_seven_epochs_need_the_explicit_word(tmp_path):
    text = BASE.replace("reader: jsonl", "reader: jsonl, max_epochs: 8")
    with pytest.raises(RecipeError, match="allow_many_epochs"):
        load_recipe(write(tmp_path, "r.yaml", text))
    assert (
        load_recipe(write(tmp_path, "s.yaml", text.replace("max_epochs: 8", "max_epochs: 8, allow_many_epochs: true")))
        .sources["web"]
        .epochs
        == 8
    )


def test_every_field_of_the_schema_is_described():
    schema = json_schema()
    for name, definition in schema["$defs"].items():
        for field, content in definition.get("properties", {}).items():
            assert content.get("description"), f"{name}.{field} has no description"
    json.dumps(schema)


def test_off_is_a_field_and_not_a_truth_value(tmp_path):
    rule = "rules:\n  - {set: gopher_quality, off: [gopher_too_many_hashes]}\n"
    recipe = load_recipe(write(tmp_path, "r.yaml", BASE + rule), ["sources.web.clean=true"])
    assert recipe.rules[0].off == ["gopher_too_many_hashes"] and recipe.sources["web"].clean


def test_a_key_given_twice_is_refused_where_it_stands(tmp_path):
    with pytest.raises(RecipeError, match=r"(?s)'web' is there twice.*line 4"):
        load_recipe(write(tmp_path, "r.yaml", BASE.replace("training:", '  web: {reader: text, paths: ["b"]}\ntraining:')))


@pytest.mark.parametrize(
    "change",
    [
        *("stages.0.mixture.web=.inf", "stages.0.mixture={}", "stages.0.tokens=99999999999999999999", "seed=99999999999999999999"),
        *("model.width=0", "model.layers=0", "model.heads=3", "training.batch_rows=0"),
    ],
)
def test_numbers_that_no_run_can_use_are_refused_before_it_begins(tmp_path, change):
    with pytest.raises(RecipeError):
        load_recipe(write(tmp_path, "r.yaml", BASE), [change])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tokenizer: {kind: byte, vocabulary: 300}", r"mine\.yaml:2: tokenizer\.vocabulary: .*only kind bpe"),
        ("tokenizer: {kind: file, path: t.json, sample_bytes: 9000}", r"tokenizer\.sample_bytes"),
        ("pack: {bins: 3}", r"pack\.bins: .*no source declares a difficulty"),
    ],
)
def test_a_field_without_effect_is_refused_with_its_place(tmp_path, text, words):
    write(tmp_path, "base.yaml", BASE)
    with pytest.raises(RecipeError, match=words):
        load_recipe(write(tmp_path, "mine.yaml", f"extends: base.yaml\n{text}\n"))


def test_the_same_fields_are_taken_where_they_have_one(tmp_path):
    write(tmp_path, "base.yaml", BASE)
    path = write(tmp_path, "mine.yaml", "extends: base.yaml\ntokenizer: {vocabulary: 300}\npack: {bins: 3}\n")
    assert load_recipe(path, ["sources.web.difficulty=n_words"]).pack.bins == 3


@pytest.mark.parametrize("page", ["README.md", "docs/recipe.md"])
def test_the_recipes_that_pages_show_can_be_loaded(page: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    recipe = text.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "base.yaml").write_text("{}")
    (tmp_path / "recipe.yaml").write_text(recipe)
    assert load_recipe(tmp_path / "recipe.yaml").stages


def test_exponents_are_numbers_wherever_they_stand(tmp_path):
    text = BASE.replace("tokens: 1000", "tokens: 1e5, training: {optimizer: {lr: 1e-3}}").replace("batch_rows: 8,", "clip: .5e+1,")
    recipe = load_recipe(write(tmp_path, "r.yaml", text), ["training.z_loss=1e-4", "stages.0.training.schedule.min_ratio=2E-2"])
    settings = recipe.training_of(recipe.stages[0])
    assert (recipe.stages[0].tokens, settings.optimizer.lr, settings.clip) == (100_000, 1e-3, 5.0)
    assert (settings.z_loss, settings.schedule.min_ratio) == (1e-4, 0.02)


@pytest.mark.parametrize(
    "training",
    ["optimizer: {lr: .nan}", "clip: .inf", "optimizer: {lr: -1.0}", "eval_every: -1", "keep_last: -2", "schedule: {warmup_steps: -1}"],
)
def test_training_takes_no_numbers_that_are_none(tmp_path, training):
    field = training.replace("{", "").partition(":")[0]
    for text in (BASE.replace("micro_batch_rows: 8", training), BASE.replace("mixture: {web: 1}", f"training: {{{training}}}")):
        with pytest.raises(RecipeError, match=f"training.{field}.*is no number from 0 on"):
            load_recipe(write(tmp_path, "r.yaml", text))


def test_uses_beyond_any_sense_are_refused(tmp_path):
    for what in ("max_epochs: 3.0e+9", "repeats: {by: n_words, most: 3e9}", "repeats: {clusters: {1: 1, 2: 3e9}}"):
        text = BASE.replace('paths: ["*.jsonl"]', f'paths: ["*.jsonl"], allow_many_epochs: true, {what}')
        with pytest.raises(RecipeError, match=r"3e\+09 epochs are above 10,000"):
            load_recipe(write(tmp_path, "r.yaml", text))


def test_paths_of_set_are_relative_to_the_current_folder_and_a_tilde_is_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "recipes").mkdir()
    path = write(tmp_path / "recipes", "r.yaml", BASE.replace("*.jsonl", "~/*.jsonl"))
    assert load_recipe(path).sources["web"].paths == [str(tmp_path / "home/*.jsonl")]
    assert load_recipe(path, ["sources.web.paths=[data/a.jsonl]"]).sources["web"].paths == [str(tmp_path / "data/a.jsonl")]


def test_set_reaches_into_a_section_that_null_switched_off(tmp_path):
    recipe = load_recipe(write(tmp_path, "r.yaml", BASE + "dedup: {near: null}\n"), ["dedup.near.threshold=0.7"])
    assert recipe.dedup.near is not None and recipe.dedup.near.threshold == 0.7


def test_a_replay_of_documents_that_may_be_used_once_is_refused_when_the_recipe_is_read(tmp_path: Path) -> None:
    stages = (
        "stages:\n- {name: one, tokens: 10000, mixture: {web: 1}}\n"
        "- {name: two, tokens: 10000, mixture: {web: 1}, replay: {stages: [one], share: 0.1}}\n"
    )
    path = write(tmp_path, "a.yaml", f"name: a\nsources:\n  web: {{reader: jsonl, paths: [x]}}\n{stages}")
    with pytest.raises(RecipeError, match=r"may be used once: set sources.web.max_epochs to 2, or leave out the replay"):
        load_recipe(path)
    with pytest.raises(RecipeError, match=r"max_epochs to 2 and generations to one, if the lake has"):
        load_recipe(path, ["generations=append"])
    assert load_recipe(path, ["sources.web.max_epochs=2"]).stages[1].replay is not None


def test_a_mistake_of_set_is_said_to_be_one_and_of_two_kinds_of_section_the_nearer_is_explained(tmp_path: Path) -> None:
    path = write(tmp_path, "r.yaml", BASE)
    with pytest.raises(RecipeError, match=r"^--set: sources\.web\.max_bad_share: Input should be less than or equal to 1, not 2\n"):
        load_recipe(path, ["sources.web.max_bad_share=2"])
    with pytest.raises(RecipeError) as error:
        load_recipe(path, ["sources.web.repeats={clusters: {2: 3}}"])
    assert error.value.what == "--set: sources.web.repeats: 'clusters' needs the uses of documents without duplicates, size 1"
    with pytest.raises(RecipeError) as error:
        load_recipe(path, ["sources.web.repeats={by: n_words, mst: 3}"])
    assert error.value.what == "--set: sources.web.repeats.mst: unknown field; did you mean 'most'?"
    with pytest.raises(RecipeError) as error:
        load_recipe(path, ["edits=[{edit: c4, of: [javascript]}]"])
    assert error.value.what == "--set: edits.0.of: unknown field; did you mean 'off'?"
    with pytest.raises(RecipeError, match=r"^--set: edits\.0: 'too_few_words' is off"):
        load_recipe(path, ["edits=[{edit: c4, off: [too_few_words], thresholds: {too_few_words: 5}}]"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("Name=x", "--set: Name: unknown field; did you mean 'name'?"),
        ("Recipe=x", "--set: Recipe: unknown field"),
        ("training={Clip: 1}", "--set: training.Clip: unknown field; did you mean 'clip'?"),
        ("sources.web.Reader=csv", "--set: sources.web.Reader: unknown field; did you mean 'reader'?"),
    ],
)
def test_an_unknown_field_with_a_capital_letter_is_named(tmp_path: Path, change: str, told: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(write(tmp_path, "r.yaml", BASE), [change])
    assert error.value.what.startswith(told)


def test_a_recipe_that_unfolds_without_end_is_refused_at_once(tmp_path: Path) -> None:
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    for text, told in (
        ("a0: &a0 [x]\n" + levels, "more than 100,000 fields"),
        ("sources: &s {s: *s}\n", "nested too deeply"),
        ("sources: " + "[" * 3000, "nested too deeply"),
    ):
        with pytest.raises(RecipeError, match=told):
            load_recipe(write(tmp_path, "r.yaml", text))
