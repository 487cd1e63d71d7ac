"""Building an optimizer by name: groups, learning rates and errors."""

import inspect
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from schemas.settings import OptimizerSettings
from train.optim import OPTIMIZERS, build_optimizer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(20, 8)
        self.attention = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 20, bias=False)
        self.frozen = nn.Parameter(torch.zeros(8, 8), requires_grad=False)


def groups_by_name(optimizer: torch.optim.Optimizer) -> dict[str, dict]:
    return {name: group for group in optimizer.param_groups for name in group["param_names"]}


def test_norms_biases_and_vectors_do_not_decay_and_embeddings_have_their_own_rate() -> None:
    groups = groups_by_name(build_optimizer("adamw", Model().named_parameters(), lr=1e-3, weight_decay=0.1, embedding_lr=1e-2))
    decays = {name: group["weight_decay"] for name, group in groups.items()}
    assert decays == {
        "tok_embeddings.weight": 0.1,
        "attention.weight": 0.1,
        "attention.bias": 0.0,
        "norm.weight": 0.0,
        "norm.bias": 0.0,
        "out.weight": 0.1,
    }
    assert {name for name, group in groups.items() if group["lr"] == 1e-2} == {"tok_embeddings.weight"}


@pytest.mark.parametrize("name", ["adamw", "adafactor", "came", "sophia"])
def test_a_schedule_scales_from_initial_lr_and_scale_zero_moves_nothing(name: str) -> None:
    model = Model()
    optimizer = build_optimizer(name, model.named_parameters(), lr=1e-3, weight_decay=0.1, embedding_lr=1e-2, warmup_steps=10)
    before = [p.detach().clone() for p in model.parameters()]
    for group in optimizer.param_groups:
        assert group["initial_lr"] == group["lr"]
        group["lr"] = group["initial_lr"] * 0.0
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_tied_parameter_is_taken_once() -> None:
    model = Model()
    model.out.weight = nn.Parameter(model.tok_embeddings.weight.detach())
    named = [*model.named_parameters(), ("again", model.out.weight)]
    assert "again" not in groups_by_name(build_optimizer("came", named, lr=1e-3, warmup_steps=1))


def test_unknown_names_and_options_are_told_with_the_nearest_and_the_allowed() -> None:
    named = list(Model().named_parameters())
    with pytest.raises(ValueError, match=r"'cmae'.*did you mean 'came'.*adafactor, adamw"):
        build_optimizer("cmae", named, lr=1e-3)
    with pytest.raises(ValueError, match=r"'adamw' has no option 'beta'.*did you mean 'betas'.*allowed: betas, eps, fused"):
        build_optimizer("adamw", named, lr=1e-3, beta=0.9)
    with pytest.raises(ValueError, match="lr must be at least 0"):
        build_optimizer("adamw", named, lr=-1.0)
    with pytest.raises(ValueError, match="no trainable parameter"):
        build_optimizer("adamw", [("a", nn.Parameter(torch.zeros(2), requires_grad=False))], lr=1e-3)


def test_came_by_name_demands_warm_up() -> None:
    with pytest.raises(ValueError, match="warm-up"):
        build_optimizer("came", Model().named_parameters(), lr=1e-3)


def test_every_factory_takes_groups_and_names_its_options() -> None:
    for name, factory in OPTIMIZERS.items():
        first, *rest = inspect.signature(factory).parameters.values()
        assert first.name == "groups", name
        assert all(option.kind is inspect.Parameter.KEYWORD_ONLY for option in rest), name


def test_adamw_reports_the_rms_of_its_direction() -> None:
    p = nn.Parameter(torch.zeros(16, 16))
    optimizer = build_optimizer("adamw", [("w", p)], lr=1e-2)
    for _ in range(3):
        before, p.grad = p.detach().clone(), torch.randn_like(p)
        optimizer.step()
    moved = float((p.detach() - before).square().mean().sqrt())
    assert optimizer.report()["update_rms"] == pytest.approx(moved / 1e-2, rel=1e-4)


def test_a_recipe_takes_these_names_and_no_other() -> None:
    assert set(get_args(get_type_hints(OptimizerSettings)["name"])) == set(OPTIMIZERS)
