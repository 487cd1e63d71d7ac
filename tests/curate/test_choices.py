"""Multiple-choice files: both published forms of ARC and HellaSwag's, tokenised option by option; mistakes named with their line."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from curate.choices import choice_sets, choices_step, read_questions
from curate.engine import LocalExecutor
from curate.step import Silent, run_step
from curate.tokenizer import ByteTokenizer
from schemas.errors import InputError
from schemas.manifest import Snapshot
from schemas.recipe import Recipe
from tests.curate.judged_lake import judged
from tests.curate.test_lots import SHARDS, recipe

HELLASWAG = {"ctx": "A man sits down. He ", "endings": ["stands up.", "flies off.", "sings."], "label": "2"}
AI2 = {"question": {"stem": "Why?", "choices": [{"text": "a", "label": "A"}, {"text": "b", "label": "B"}]}, "answerKey": "B"}
FACE = {"question": "Why?", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "1"}


def lines(path, values):
    path.write_text("\n".join(json.dumps(value) for value in values) + "\n")
    return path


def test_forms(tmp_path):
    path = lines(tmp_path / "h.jsonl", [HELLASWAG])
    assert read_questions(path, "hellaswag") == [("A man sits down. He", [" stands up.", " flies off.", " sings."], 2)]
    path = lines(tmp_path / "a.jsonl", [AI2, FACE])
    expected = ("Question: Why?\nAnswer:", [" a", " b"])
    assert read_questions(path, "arc") == [(*expected, 1), (*expected, 0)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({**HELLASWAG, "label": 3}, "h.jsonl:2: .*answer 3 of 3"),
        ({**HELLASWAG, "endings": ["a"]}, "h.jsonl:2"),
        ({"ctx": "x"}, "h.jsonl:2: .*endings"),
        (3, "h.jsonl:2"),
    ],
)
def test_what_is_no_question_is_named_by_its_line(tmp_path, value, message):
    with pytest.raises(InputError, match=message):
        read_questions(lines(tmp_path / "h.jsonl", [HELLASWAG, value]), "hellaswag")


def test_an_empty_file_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no questions"):
        read_questions(lines(tmp_path / "h.jsonl", []), "hellaswag")


def test_options_become_rows(tmp_path):
    """Bytes as tokens: what is scored is the option, and a context that is too long loses its beginning."""
    from curate.lots import build_lots

    long = {**HELLASWAG, "ctx": "x" * 500}
    path = lines(tmp_path / "h.jsonl", [HELLASWAG, long, HELLASWAG, HELLASWAG])
    made = recipe(choices={"swag": {"path": str(path), "form": "hellaswag", "limit": 2}}, tokenizer={"kind": "byte"})
    snapshot = build_lots(tmp_path / "lake", made, judged(tmp_path / "lake", SHARDS), LocalExecutor(1), Silent())
    (entry,) = choice_sets(snapshot)
    with pa.memory_map(str(tmp_path / "lake" / entry.shard.path)) as source:
        rows = pa.ipc.open_file(source).read_all().to_pylist()
    tokenizer = ByteTokenizer()
    assert entry.name == "swag" and [row["question"] for row in rows] == [0, 0, 0, 1, 1, 1], "2 of 4, spread over the file"
    assert [row["right"] for row in rows] == [False, False, True] * 2
    for row, option in zip(rows, HELLASWAG["endings"] * 2, strict=True):
        assert tokenizer.decode(row["tokens"][-row["scored"] :]) == f" {option}" and row["bytes"] == len(option) + 1
    assert rows[0]["tokens"][0] == tokenizer.bos and tokenizer.decode(rows[0]["tokens"]) == "A man sits down. He stands up."
    step, shards = choices_step(made, snapshot.steps["tokenizer"][0])
    assert run_step(tmp_path / "lake", step, shards, LocalExecutor(1), Silent()) == snapshot.steps["choices"], "nothing is done again"
    without = build_lots(tmp_path / "lake", recipe(tokenizer={"kind": "byte"}), snapshot, LocalExecutor(1), Silent())
    assert choice_sets(without) == ()
    assert isinstance(made, Recipe) and isinstance(without, Snapshot)


def test_a_file_that_is_missing_is_named(tmp_path):
    made = recipe(choices={"swag": {"path": str(tmp_path / "none.jsonl"), "form": "hellaswag"}})
    snapshot = judged(tmp_path / "lake", SHARDS)
    from curate.lots import build_lots

    with pytest.raises(InputError, match=r"choices\.swag\.path"):
        build_lots(tmp_path / "lake", made, snapshot, LocalExecutor(1), Silent())
