"""Forecasts: effective epochs as published, parameters as the trainer builds them, sums that agree with the plan."""

import math

import pytest

from curate.budget import LotBudget, fresh
from curate.forecast import effective_tokens, expected_loss, forecast
from curate.model_size import parameters
from curate.plan import Place, plan_stage
from schemas.settings import ModelSettings
from schemas.stages import Stage


@pytest.mark.parametrize(("epochs", "worth"), [(1, 1), (2, 1.97), (4, 3.73), (8, 6.62), (16, 10.6)])
def test_repeated_tokens_are_worth_what_the_paper_says(epochs, worth):
    assert effective_tokens(1e9, epochs) / 1e9 == pytest.approx(worth, rel=0.005)


def test_the_loss_estimate_is_the_law_without_repetition_and_rises_with_it():
    free = math.exp(0.6254804) + math.exp(6.255414) / 1e9**0.3526596 + math.exp(7.3049974) / 100e9**0.3526596
    assert expected_loss(10**9, 100e9, 100e9) == pytest.approx(free, rel=1e-9)
    assert expected_loss(10**9, 100e9, 25e9) >= free
    assert expected_loss(10**9, 100e9, 1e9) > free
    assert expected_loss(10**9, 0, 0) == math.inf


@pytest.mark.parametrize(
    "model",
    [
        ModelSettings(),
        ModelSettings(layers=2, width=96, heads=6, kv_heads=2, tied=False),
        ModelSettings(ff_width=100),
        ModelSettings(kind="gpt2"),
    ],
)
def test_parameters_are_those_of_the_trainers_model(model):
    from train.model import Decoder

    assert parameters(model, 500, 8) == sum(parameter.numel() for parameter in Decoder(model, 500, length=8).parameters())


def test_lines_sum_rows_tokens_epochs_and_what_was_returned():
    lots = [LotBudget("a-0", "a", 0, 4, 100, 990, 300, 10), LotBudget("b-0", "b", 0, 1, 100, 1000, 10, 10)]
    states = fresh(lots)
    plans = []
    for number, tokens in enumerate((1600, 800)):
        place = Place(sum(p.rows for p in plans), 0, 4, 10, 0, 8)
        plans.append(plan_stage(Stage(name=f"s{number}", tokens=tokens, mixture={"a": 3, "b": 1}), states, place))
        states = plans[-1].after
    found = forecast(plans, ModelSettings(), 300, 100)
    first, second = found.lines[0], found.lines[2]
    assert (first.stage, first.source, first.rows, first.tokens, first.documents) == ("s0", "a", 120, 1188, 300)
    assert (second.rows, second.documents, second.share) == (60, 180, 0.75)
    assert (first.epochs, second.epochs) == (1.2, 1.8)
    assert first.worth + second.worth == pytest.approx(effective_tokens(990, 1.8))
    assert found.tokens == sum(line.tokens for line in found.lines)
    assert found.unique == 990 + 600
    assert found.steps == {"s0": 40, "s1": 20}
    assert found.chinchilla == found.tokens / (20 * found.parameters)
    assert first.returned == second.returned == 0
