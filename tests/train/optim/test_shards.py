"""Sharded parameters give what whole ones give, in at most three collectives a step: real gloo processes."""

import pytest
import torch
from torch import nn

from tests.train.optim.ranks import BUILDS, WHOLE_ONLY, run_ranks
from train.optim.came import CAME
from train.optim.shards import place_of, run


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict]:
    return run_ranks(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(params=[1, 2, 4])
def found(request: pytest.FixtureRequest, by_ranks: dict[int, dict]) -> dict:
    return {"world": request.param, **by_ranks[request.param]}


def test_sharded_equals_whole(found: dict) -> None:
    assert set(found["errors"]) >= set(BUILDS)
    assert {name: error for name, error in found["errors"].items() if not error <= 1e-6} == {}


def test_a_step_costs_at_most_three_collectives_however_many_parameters(found: dict) -> None:
    bounds = {"adafactor": 2, "adafactor_momentum": 2, "came": 3, "sophia": 0, "lion": 0, "adamw": 0, "sgd": 0}
    sharded = found["world"] > 1
    for name, count in found["collectives"].items():
        assert count == (bounds[name.removesuffix("/grid")] if sharded else count) and count <= 3, name


def test_the_report_of_shards_is_that_of_the_whole(found: dict) -> None:
    for whole, shard in found["reports"].values():
        assert shard == pytest.approx(whole, rel=1e-5)


def test_models_under_fsdp_and_tensor_parallel_train_as_whole_ones_and_resume_bit_for_bit(found: dict) -> None:
    for kind in ("fsdp", "parallel"):
        for name, error in found.get(kind, {}).items():
            assert error <= (0 if name.endswith("/resumed") else 1e-6), (kind, name)


def test_optimizers_of_whole_parameters_refuse_shards_and_name_those_that_take_them(found: dict) -> None:
    assert set(found["refused"]) == set(WHOLE_ONLY)
    assert all("hidden.weight is sharded" in said and "came" in said for said in found["refused"].values())


def test_replicas_of_bf16_weights_round_alike(found: dict) -> None:
    assert found["noise"]


def test_a_rule_of_a_whole_parameter_is_sent_its_own_sums() -> None:
    seen = []

    def rule():
        seen.append((yield [torch.tensor(1.0)]))
        seen.append((yield [torch.tensor(2.0)]))

    run([(rule(), place_of(torch.zeros(2)), None)])
    assert seen == [[torch.tensor(1.0)], [torch.tensor(2.0)]]


def test_a_parameter_without_gradient_is_left_alone() -> None:
    used, unused = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3, 3))
    optimizer = CAME([used, unused], lr=1e-2, warmup_steps=1)
    used.grad = torch.ones(3, 3)
    optimizer.step()
    assert torch.equal(unused.detach(), torch.ones(3, 3)) and not torch.equal(used.detach(), torch.ones(3, 3))
    assert unused not in optimizer.state or not optimizer.state[unused]
