"""K-FAC: its factors are those of the Fisher matrix, its step is the damped natural gradient, and it needs fewer steps than SGD."""

import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from train.optim import build_optimizer
from train.optim.kfac import KFAC, damped_inverses


def network(sizes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(dtype)


def estimate(optimizer: KFAC, model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer.zero_grad()
    with optimizer.observe(model):
        F.cross_entropy(model(x), labels).backward()
    optimizer.update_curvature(labels=len(labels))
    optimizer.zero_grad()


def sampled(model: nn.Module, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    with torch.no_grad():
        return torch.multinomial(model(x).softmax(-1), 1, generator=generator)[:, 0]


def build(model: nn.Module, **options) -> KFAC:
    optimizer = build_optimizer("kfac", model.named_parameters(), lr=options.pop("lr", 0.1), **options)
    assert isinstance(optimizer, KFAC)
    return optimizer


def scores(model: nn.Module, weight: nn.Parameter, x: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Each example's gradient of its own log-likelihood, by a pass for each."""
    return [torch.autograd.grad(F.cross_entropy(model(row[None]), label[None]), weight)[0] for row, label in zip(x, labels, strict=True)]


def test_the_block_of_one_example_is_the_fisher_block() -> None:
    """For one example vec(g a') vec(g a')' is (a a') (x) (g g') exactly."""
    model, x = network((5, 4, 3)), torch.randn(1, 5, dtype=torch.float64)
    optimizer, labels = build(model), torch.tensor([2])
    estimate(optimizer, model, x, labels)
    for layer in (model[0], model[2]):
        state = optimizer.state[layer.weight]
        score = scores(model, layer.weight, x, labels)[0].reshape(-1)
        block = torch.outer(score, score)
        torch.testing.assert_close(torch.kron(state["outputs"], state["inputs"]), block, rtol=1e-10, atol=1e-14)


def test_the_factors_are_the_means_over_examples_by_brute_force() -> None:
    model, x = network((5, 4, 3)), torch.randn(7, 5, dtype=torch.float64)
    labels = sampled(model, x, torch.Generator().manual_seed(1))
    optimizer = build(model, decay=0.0)
    estimate(optimizer, model, x, labels)
    with torch.no_grad():
        inputs = {0: x, 2: model[1](model[0](x))}
    for i, a in inputs.items():
        state, weight = optimizer.state[model[i].weight], model[i].weight
        bias = scores(model, model[i].bias, x, labels)  # the gradient at the layer's outputs
        torch.testing.assert_close(state["inputs"], sum(torch.outer(row, row) for row in a) / 7, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(state["outputs"], sum(torch.outer(g, g) for g in bias) / 7, rtol=1e-10, atol=1e-14)
        for whole, row, g in zip(scores(model, weight, x, labels), a, bias, strict=True):
            torch.testing.assert_close(whole, torch.outer(g, row), rtol=1e-10, atol=1e-14)


def test_rows_that_no_loss_reaches_are_left_out() -> None:
    model, x = network((5, 4, 3)), torch.randn(6, 5, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, -100, -100, 1])
    found = []
    for rows in (slice(None), labels >= 0):
        optimizer = build(model)
        optimizer.zero_grad()
        with optimizer.observe(model):
            F.cross_entropy(model(x[rows]), labels[rows]).backward()
        optimizer.update_curvature(labels=4)
        found.append([optimizer.state[model[i].weight][name] for i in (0, 2) for name in ("inputs", "outputs")])
    torch.testing.assert_close(*found)


def test_the_step_is_the_damped_natural_gradient() -> None:
    model, x = network((5, 4, 3)), torch.randn(9, 5, dtype=torch.float64)
    optimizer = build(model, damping=0.01, kl_clip=0.0, momentum=0.0, lr=0.1)
    estimate(optimizer, model, x, sampled(model, x, torch.Generator().manual_seed(1)))
    F.cross_entropy(model(x), torch.randint(0, 3, (9,))).backward()
    weight = model[0].weight
    before, state = weight.detach().clone(), optimizer.state[weight]
    a, s = state["inputs"], state["outputs"]
    pi = float((a.trace() / 5 / (s.trace() / 4)).sqrt())
    damped = torch.kron(s + 0.1 / pi * torch.eye(4).double(), a + 0.1 * pi * torch.eye(5).double())
    wanted = torch.linalg.solve(damped, weight.grad.reshape(-1)).reshape(4, 5)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), before - 0.1 * wanted, rtol=1e-8, atol=1e-12)


def test_the_length_of_a_step_in_the_fisher_metric_is_bounded() -> None:
    model, x = network((5, 4, 3)), torch.randn(9, 5, dtype=torch.float64)
    optimizer = build(model, kl_clip=1e-4, momentum=0.0, lr=1.0)
    estimate(optimizer, model, x, sampled(model, x, torch.Generator().manual_seed(1)))
    before = [model[i].weight.detach().clone() for i in (0, 2)]
    (F.cross_entropy(model(x), torch.randint(0, 3, (9,))) * 100).backward()
    grads = [model[i].weight.grad.clone() for i in (0, 2)]
    optimizer.step()
    moved = [old - model[i].weight.detach() for old, i in zip(before, (0, 2), strict=True)]
    natural = [
        optimizer.state[model[i].weight]["outputs_inverse"] @ g @ optimizer.state[model[i].weight]["inputs_inverse"]
        for i, g in zip((0, 2), grads, strict=True)
    ]
    scale = float(moved[0].norm() / natural[0].norm())
    assert scale < 1 and scale**2 * sum(float((u * g).sum()) for u, g in zip(natural, grads, strict=True)) == pytest.approx(1e-4, rel=1e-6)


def test_inverses_of_a_factor_of_zeros_are_finite() -> None:
    assert all(bool(inverse.isfinite().all()) for inverse in damped_inverses(torch.zeros(3, 3), torch.zeros(2, 2), 1e-3))


def test_fewer_steps_than_the_best_of_a_sweep_of_sgd_to_a_stated_loss() -> None:
    """A tanh network 20-32-32-5 that learns a teacher's classes of inputs whose scales span two decades, to a cross-entropy of 0.35."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(512, 20, generator=generator) * torch.logspace(-1, 1, 20)
    labels = (x @ (torch.randn(20, 5, generator=generator) / torch.logspace(-1, 1, 20)[:, None])).argmax(-1)

    def steps_to(name: str, lr: float, limit: int, **options) -> int:
        model = network((20, 32, 32, 5), dtype=torch.float32)
        optimizer = build_optimizer(name, model.named_parameters(), lr=lr, **options)
        draws = torch.Generator().manual_seed(0)
        for step in range(limit):
            if isinstance(optimizer, KFAC) and optimizer.curvature_due():
                estimate(optimizer, model, x, sampled(model, x, draws))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            if loss.item() < 0.35:
                return step
            loss.backward()
            optimizer.step()
        return limit

    tuned = min(steps_to("sgd", lr, 300) for lr in (0.01, 0.03, 0.1, 0.3, 1.0))
    natural = steps_to("kfac", 0.3, 300, every=5, kl_clip=0.1, damping=1e-2, rest_lr=3e-2)
    assert natural <= tuned / 2, (natural, tuned)


def test_refuses_what_it_cannot_do() -> None:
    model = network((5, 4, 3), dtype=torch.float32)
    for name, module, said in (
        ("bf16", copy.deepcopy(model).bfloat16(), "FP32 weights"),
        ("no matrix", nn.LayerNorm(4), "no hidden matrix"),
    ):
        with pytest.raises(ValueError, match=said):
            build(module), name
    optimizer = build(model)
    with pytest.raises(ValueError, match="observe"):
        optimizer.update_curvature(labels=1)
    F.cross_entropy(model(torch.randn(2, 5)), torch.tensor([0, 1])).backward()
    with pytest.raises(ValueError, match="update_curvature first"):
        optimizer.step()
    with torch.device("meta"), pytest.raises(ValueError, match="100 M parameters"):
        build(nn.Sequential(nn.Linear(13_000, 13_000, bias=False), nn.Linear(8, 8)))
