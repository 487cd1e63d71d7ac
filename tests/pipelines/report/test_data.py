"""What the report says of a lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.catalog import open_catalog
from pipelines.report import write_report
from pipelines.report.charts import funnel
from pipelines.report.clusters import DIFF_WORDS, word_diff
from pipelines.report.data import report_data
from pipelines.report.page import visible
from pipelines.report.signals import signal_histograms
from schemas.errors import GristmillError, LakeError
from schemas.store import publish_json
from tests.pipelines.fixture_lake import doc


def test_every_record_has_one_outcome(lake: Path) -> None:
    found = report_data(lake)
    outcomes = {line["outcome"]: line["documents"] for line in found["outcomes"]}
    assert outcomes == {"kept": 2, "dropped": 1, "duplicate": 1, "held out": 1, "set aside": 1}
    assert sum(outcomes.values()) == found["totals"]["records_in"]


def test_a_legend_names_the_outcomes_that_are_there(lake: Path) -> None:
    (chart,) = funnel(report_data(lake)["outcomes"])
    assert chart.spec["encoding"]["color"]["legend"]["values"] == ["kept", "held out", "duplicate", "dropped", "set aside"]


def test_void_steps_are_left_out_of_curves_and_told_in_the_ledger(lake: Path) -> None:
    run = report_data(lake)["runs"][0]
    assert [(line["step"], line["value"]) for line in run["curves"]] == [(0, 4.0)]
    assert {line["status"]: line["rows"] for line in run["ledger"]} == {"seen": 3, "void": 1}


def test_a_cluster_shows_the_dropped_text_against_the_kept_one(lake: Path) -> None:
    cluster = report_data(lake)["clusters"][0]
    assert (cluster["kept_doc_id"], cluster["doc_id"]) == (doc(0).hex(), doc(2).hex())
    assert cluster["diff"] == [("same", "the first "), ("kept only", "text"), ("dropped only", "text!")]


def test_a_sampled_drop_has_its_text_value_and_threshold(lake: Path) -> None:
    drops = {drop["reason"]: drop["samples"] for drop in report_data(lake)["drops"]}
    assert drops["too_dull"][0]["excerpt"] == "a dull text"
    assert drops["too_dull"][0]["failure"] == {"rule": "too_dull", "value": 0.9, "threshold": 0.5}


def test_a_histogram_holds_every_document_and_the_threshold_of_a_rule_of_the_recipe(lake: Path) -> None:
    publish_json(lake, "runs/demo/recipe.json", {"recipe": {"rules": [{"name": "too_dull", "sql": "n_words < 4"}]}})
    with open_catalog(lake) as db:
        (found,) = signal_histograms(db, lake, 1.0)
        assert sum(line["documents"] for line in found["bins"]) == 5
        assert found["value"] == "n_words" and found["thresholds"][0] | {"failed": 1} == found["thresholds"][0]
        assert any(low["low"] < 3 < low["high"] and low["documents"] for low in found["bins"])
        half = sorted(doc(n).hex() for n in range(5))
        share = int(half[2][:8], 16) / (1 << 32)
        (sampled,) = signal_histograms(db, lake, share)
        assert sum(line["documents"] for line in sampled["bins"]) == 2


def test_a_diff_of_long_texts_leaves_out_what_is_the_same_and_is_bounded() -> None:
    words = [f"w{n} " for n in range(200)]
    pieces = word_diff("".join(words), "".join(words[:100]) + "new " + "".join(words[101:]))
    assert [kind for kind, _ in pieces] == ["same", "left out", "same", "kept only", "dropped only", "same", "left out"]
    assert pieces[2:5] == [("same", "".join(words[88:100])), ("kept only", "w100 "), ("dropped only", "new ")]
    assert pieces[1] == ("left out", "64 words") and pieces[6] == ("left out", "87 words")
    assert [len(text) for _, text in word_diff("x " * 100_000, "y " * 100_000)] == [2 * DIFF_WORDS, 2 * DIFF_WORDS]


def test_characters_that_hide_or_turn_text_are_written_out() -> None:
    assert visible("a\u202eb\u200bc\x00\r\nd\te") == "a⟨U+202E⟩b⟨U+200B⟩c⟨U+0000⟩\nd\te"


def test_no_lake_and_no_place_are_told(tmp_path: Path, lake: Path) -> None:
    with pytest.raises(LakeError, match="no such lake"):
        write_report(tmp_path / "none", tmp_path / "report.html")
    with pytest.raises(GristmillError, match="cannot write"):
        write_report(lake, tmp_path / "no" / "report.html")
