"""What flow runs leave behind, without a server: events of alarms, the picture of losses, the parameters under which to train."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.step import Silent
from pipelines import page, surroundings
from pipelines.parameters import RunParameters
from schemas.errors import GristmillError
from schemas.manifest import Snapshot
from schemas.recipe import Recipe
from tests.pipelines.tiny import write_project
from train.progress import Progress


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str], dict[str, Any]]]:
    """Events that were emitted: kind, resource, payload."""
    found: list[tuple[str, dict[str, str], dict[str, Any]]] = []
    monkeypatch.setattr(page, "emit_event", lambda kind, resource, payload: found.append((kind, resource, payload)))
    return found


def test_alarms_are_events_even_where_they_fail_the_run(tmp_path: Path, events: list[Any]) -> None:
    write_project(tmp_path)
    source = {"reader": "jsonl", "paths": [str(tmp_path / "web.jsonl")], "id_field": "id"}
    made = Recipe.model_validate({"name": "made", "sources": {"web": source}, "alarms": {"drop_share": 0.01, "fatal": True}})
    state = Curation(tmp_path / "lake", made, LocalExecutor(1), Silent())
    with pytest.raises(GristmillError, match="alarms"):
        curate(state)
    page.tell_alarms(state)
    assert [(kind, resource["prefect.resource.id"]) for kind, resource, _ in events] == [("alarm.drop_rate", "gristmill.source.web")]
    assert "duplicates are" in events[0][2]["alarm"]


def test_a_published_dataset_says_how_to_train_on_it_and_curriculum_does_not_start_itself(tmp_path: Path, events: list[Any]) -> None:
    settings = RunParameters(recipe=write_project(tmp_path), lake=tmp_path / "lake", changes=("seed=2",))
    snapshot = Snapshot("recipe", {})
    for inside in ("curate", "curriculum"):
        page.tell_published(settings, snapshot, inside)
    train = RunParameters.model_validate(json.loads(events[0][2]["train"]))
    assert train == settings.model_copy(update={"run": f"d{snapshot.id[:12]}"})
    names = [resource["prefect.resource.id"] for _, resource, _ in events]
    assert [name.startswith("gristmill.snapshot.") for name in names] == [True, False]


@pytest.mark.parametrize("curve", [[], [(3, 2.0)], [(0, 4.0), (1, 3.0), (10, 3.5)]])
def test_the_picture_of_losses_is_a_line_inside_its_frame(curve: list[tuple[int, float]]) -> None:
    picture = ElementTree.fromstring(page.loss_picture(curve))
    line = picture.find("{http://www.w3.org/2000/svg}polyline")
    assert line is not None
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert len(points) == len(curve)
    assert all(40 <= x <= 600 and 40 <= y <= 200 for x, y in points)
    if len(curve) == 3:
        assert points[0][1] == 40 and points[1][1] == 200 and points[2][0] == 600, "the first is highest, the second lowest"


def test_a_trainers_lines_of_progress_are_an_artifact_and_all_lines_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[float, str]] = []
    monkeypatch.setattr(surroundings, "create_progress_artifact", lambda progress, key, description: shown.append((progress, description)))
    out, said = io.StringIO(), list[str]()
    trainer = Progress("first", 0, 8, stream=out)
    trainer.step(2, 3.0, 17_400.0, 0.4)
    trainer.line("first  2/8  held out 3.1, web 3.1")
    follow = surroundings.TrainingProgress("progress-train", said.append)
    for line in out.getvalue().splitlines():
        follow(line)
    assert said == out.getvalue().splitlines() and len(said) == 2
    assert [progress for progress, _ in shown] == [25.0] and "17.4 k tokens/s  40% of peak" in shown[0][1]


def test_a_server_that_is_away_stops_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise httpx.ConnectError("refused")

    for name in ("create_progress_artifact", "update_progress_artifact", "get_client"):
        monkeypatch.setattr(surroundings, name, away)
    said: list[str] = []
    watch = surroundings.PauseWatch(UUID(int=1))
    monkeypatch.setattr(surroundings, "ASK_SECONDS", 0.0)
    page = surroundings.PageProgress(said.append, watch.heed)
    page.start("read", 2)
    page.advance("read", {})
    page.finish("read", 1, 1)
    surroundings.TrainingProgress("progress-train", said.append)("first  1/8  loss 3.0")
    assert said == ["read: 1 shards done, 1 done before", "first  1/8  loss 3.0"]
