"""Costs, budgets and advice of plans."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from curate.model_size import parameters
from curate.tokenizer import ByteTokenizer
from pipelines.estimate import Rates, advice, bought, cost
from pipelines.estimate_view import in_unit
from pipelines.parameters import RunParameters
from pipelines.plan_view import planned, print_planned
from schemas.errors import GristmillError
from schemas.recipe import Recipe
from tests.pipelines.tiny import write_project


def test_costs_follow_from_the_rates():
    stated = cost(10**9, 20 * 10**9, Rates(tflops=1000, mfu=0.5, watts=500, price=2))
    assert stated.flops == 1.2e20
    assert stated.gpu_hours == pytest.approx(1.2e20 / 5e14 / 3600)
    assert (stated.kwh, stated.money) == (pytest.approx(stated.gpu_hours / 2), pytest.approx(2 * stated.gpu_hours))
    assert cost(10**9, 7_200_000, Rates(tokens_per_second=1000)).gpu_hours == pytest.approx(2)


def test_a_budget_buys_the_compute_optimal_model():
    found = bought(5.76e23, 70 * 10**9)  # Chinchilla's own: 70 B parameters, 1.4 T tokens (Hoffmann et al. 2022, table 3)
    assert found["parameters"] == pytest.approx(70e9, rel=0.02) and found["tokens"] == pytest.approx(1.4e12, rel=0.02)
    assert 6 * found["parameters"] * found["tokens"] == pytest.approx(found["compute"])
    assert found["tokens_of_this_model"] == pytest.approx(5.76e23 / 6 / 70e9)


def recipe(**training) -> Recipe:
    source = {"reader": "jsonl", "paths": ["a.jsonl"]}
    stage = {"name": "only", "tokens": 1000}
    return Recipe.model_validate({"name": "r", "sources": {"a": source}, "stages": [stage], "training": training})


@pytest.mark.parametrize(
    ("training", "parameters", "words"),
    [
        ({"schedule": {"warmup_steps": 0}}, 10, "no warm-up"),
        ({"schedule": {"warmup_steps": 900}}, 10, "warm-up takes 900 of 1000"),
        ({"precision": "fp32"}, 10, "precision fp32"),
        ({}, 2 * 10**9, "2.0 B parameters without recomputation"),
        ({"clip": 0}, 10, "not clipped"),
        ({"checkpoint_every": 0}, 10, "nothing is saved"),
    ],
)
def test_each_point_of_the_checklist_is_raised_alone(training, parameters, words):
    found = advice(recipe(**training), {"only": 1000}, parameters)
    assert len(found) == 1 and words in found[0]


def test_a_usual_recipe_gets_no_advice():
    assert advice(recipe(), {"only": 1000}, 10**8) == []


@pytest.mark.parametrize(
    ("hours", "words"),
    [(3.15e-9, "0.0113 ms"), (2 / 3.6e6, "2 ms"), (1 / 3600, "1 s"), (0.5, "30 min"), (1, "1 h"), (2345.6, "2,346 h"), (0, "0 ms")],
)
def test_a_time_is_told_in_a_fitting_unit(hours, words):
    assert in_unit(hours, {"h": 1.0, "min": 1 / 60, "s": 1 / 3600, "ms": 1 / 3.6e6}) == words


@pytest.mark.parametrize("rates", [Rates(mfu=1.5), Rates(tflops=0), Rates(tflops=math.inf), Rates(watts=-1), Rates(price=math.nan)])
def test_rates_that_no_gpu_has_are_refused(rates):
    with pytest.raises(GristmillError, match="is not a number"):
        rates.check()


def test_a_plan_before_anything_is_curated_tells_what_the_recipe_tells_and_what_is_missing(tmp_path):
    asked = RunParameters(recipe=write_project(tmp_path), lake=tmp_path / "none")
    found = planned(asked, asked.load(), compute=1e19)
    assert found["forecast"] is None and found["asked"]["steps"] == {"first": 29, "second": 19}
    assert found["asked"]["parameters"] == parameters(asked.load().model, ByteTokenizer().vocabulary, 64)
    assert found["estimates"]["memory"]["total"] and found["estimates"]["bought"]
    out = io.StringIO()
    print_planned(found, Console(file=out, width=100))
    assert f"gristmill curate {tmp_path / 'recipe.yaml'} --lake {tmp_path / 'none'}" in out.getvalue()
    assert not (tmp_path / "none").exists()
