"""Resolved settings survive a round trip through JSON and refuse what they do not know."""

import dataclasses
import json

import pytest

from schemas.errors import RecipeError
from schemas.settings import EarlyStopSettings, Lot, LotShard, ModelSettings, StageSettings, TrainSettings, build, read_stage


def stage() -> StageSettings:
    lot = Lot("web-0", "web", 64, (LotShard("lots/web.arrow", 10, 100, "ab"),), 3.5)
    training = TrainSettings(early_stop=EarlyStopSettings(monitor="heldout/web"))
    return StageSettings(
        "r", "s", 0, "runs/r/0-s", "runs/r/segments.json", "00", 0, 1, None, 7, 512, 64, ModelSettings(), training, (lot,), ()
    )


def test_a_stage_survives_json(tmp_path):
    path = tmp_path / "stage.json"
    path.write_text(json.dumps(dataclasses.asdict(stage())))
    assert read_stage(path) == stage()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"precison": "bf16"}, "did you mean 'precision'"),
        ({"precision": "fp7"}, "no choice; one of bf16, bf16_weights, fp16, fp32"),
        ({"batch_rows": 1.5}, "batch_rows.*not a whole number"),
        ({"compile": 1}, "compile.*not true or false"),
        ({"optimizer": {"lr": "fast"}}, "optimizer.lr.*not a number"),
    ],
)
def test_wrong_settings_name_the_field(value, message):
    with pytest.raises(RecipeError, match=message):
        build(TrainSettings, value)


def test_a_missing_field_and_a_missing_file_are_named(tmp_path):
    value = dataclasses.asdict(stage())
    del value["seed"]
    with pytest.raises(RecipeError, match="seed: missing field"):
        build(StageSettings, value)
    with pytest.raises(RecipeError, match="no such stage file"):
        read_stage(tmp_path / "stage.json")
