"""Costs, budgets and advice of plans."""

from __future__ import annotations

import pytest

from pipelines.estimate import Rates, advice, bought, cost
from schemas.recipe import Recipe


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
