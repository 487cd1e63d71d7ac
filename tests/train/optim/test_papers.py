"""The own optimizers against float64 ports of their papers, and against other implementations where installed."""

import pytest
import torch
from torch import nn

from tests.train.optim.cases import SHAPES, gradients, parameter, travelled_error
from tests.train.optim.papers import PaperAdafactor, PaperCAME, PaperSophia
from train.optim.adafactor import Adafactor
from train.optim.came import CAME
from train.optim.sophia import Sophia

RULES = {
    "adafactor": (lambda p: Adafactor(p, lr=1e-2), PaperAdafactor),
    "adafactor_decay": (lambda p: Adafactor(p, lr=1e-2, weight_decay=0.1), lambda: PaperAdafactor(weight_decay=0.1)),
    "adafactor_momentum": (lambda p: Adafactor(p, lr=1e-2, beta1=0.9), lambda: PaperAdafactor(beta1=0.9)),
    "came": (lambda p: CAME(p, lr=1e-3, warmup_steps=1), PaperCAME),
    "came_decay": (lambda p: CAME(p, lr=1e-3, warmup_steps=1, weight_decay=0.1), lambda: PaperCAME(weight_decay=0.1)),
}


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["fp32", "fp64"])
@pytest.mark.parametrize("shape", [*SHAPES, "strided"])
@pytest.mark.parametrize("rule", RULES)
def test_twenty_steps_follow_the_paper(rule: str, shape: str, dtype: torch.dtype, bound: float) -> None:
    build, paper = RULES[rule]
    p = parameter(shape, dtype)
    optimizer, oracle = build([p]), paper()
    start = reference = p.detach().double().clone()
    for g in gradients(p):
        p.grad = g.to(dtype)
        optimizer.step()
        reference = oracle(reference, g.double())
    assert travelled_error(p, reference, start) < bound


@pytest.mark.parametrize("shape", [*SHAPES, "strided"])
def test_sophia_follows_the_paper(shape: str) -> None:
    p = parameter(shape)
    optimizer, oracle = Sophia([p], lr=1e-3), PaperSophia()
    start = reference = p.detach().double().clone()
    clipped = []
    for step, g in enumerate(gradients(p)):
        assert optimizer.curvature_due() == (step % 10 == 0)
        if optimizer.curvature_due():
            p.grad = g.flip(0) * 0.01 if g.ndim else g * 0.01
            optimizer.update_curvature(tokens=4096)
            oracle.estimate(p.grad.double())
        p.grad = g.clone()
        optimizer.step()
        reference = oracle(reference, g.double())
        clipped.append(optimizer.report()["share_clipped"])
    assert travelled_error(p, reference, start) < 1e-5
    if shape == "matrix":
        assert any(0 < share < 1 for share in clipped)


def test_hutchinson_recovers_a_diagonal_hessian_exactly() -> None:
    """For a loss of sum a x^2 / 2 the Hessian is diagonal, so with z in the estimate h is a z^2, whose mean over z is a."""
    p, a = nn.Parameter(torch.full((20_000,), 0.5)), torch.linspace(0.5, 2.0, 20_000)
    optimizer = Sophia([p], lr=0.0, estimator="hutchinson", betas=(0.9, 0.0))
    optimizer.update_curvature(loss=(a * p.square()).sum() / 2)
    probe_squares = optimizer.state[p]["curvature"] / a
    assert abs(float(probe_squares.mean()) - 1) < 0.05
    assert abs(float(probe_squares.var()) - 2) < 0.3


def test_negative_curvature_is_clipped_to_a_sign_step() -> None:
    p = nn.Parameter(torch.ones(8))
    optimizer = Sophia([p], lr=0.1, weight_decay=0.0, estimator="hutchinson")
    optimizer.update_curvature(loss=-(p.square()).sum())
    p.grad = torch.full((8,), 1e-6)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((8,), 0.9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("build", [RULES["adafactor"][0], RULES["came"][0], lambda p: Sophia(p, weight_decay=0.0)])
def test_a_zero_gradient_moves_nothing_and_breaks_nothing(build, dtype) -> None:
    for shape in SHAPES:
        p = parameter(shape, dtype)
        before, optimizer = p.detach().clone(), build([p])
        for _ in range(3):
            p.grad = torch.zeros_like(p)
            optimizer.step()
        assert torch.equal(p.detach(), before)
        p.grad = torch.randn_like(p)
        optimizer.step()
        assert p.isfinite().all() and not torch.equal(p.detach(), before)


def test_came_and_adafactor_equal_other_implementations() -> None:
    peers = pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer >= 4.1 is not installed: second oracle left out")
    pairs = [
        (CAME, {"lr": 1e-3, "warmup_steps": 1}, peers.CAME, {"lr": 1e-3}),
        (Adafactor, {"lr": 1e-2}, peers.AdaFactor, {"betas": (None, 0.999), "scale_parameter": True}),
    ]
    for own, own_options, peer, peer_options in pairs:
        for shape in ("matrix", "vector", "batched"):
            mine, theirs = parameter(shape), parameter(shape)
            start, ours, other = mine.detach().clone(), own([mine], **own_options), peer([theirs], **peer_options)
            for g in gradients(mine):
                mine.grad, theirs.grad = g.clone(), g.clone()
                ours.step()
                other.step()
            assert travelled_error(mine, theirs.detach(), start) < 1e-5, (own.__name__, shape)


def test_came_equals_the_authors_code() -> None:
    authors = pytest.importorskip("came_pytorch", reason="came-pytorch is not installed: the authors' code left out")
    for shape in ("matrix", "vector", "batched", "one_row", "one_column"):
        mine, theirs = parameter(shape), parameter(shape)
        start = mine.detach().clone()
        ours, other = CAME([mine], lr=1e-3, weight_decay=0.1, warmup_steps=1), authors.CAME([theirs], lr=1e-3, weight_decay=0.1)
        for g in gradients(mine):
            mine.grad, theirs.grad = g.clone(), g.clone()
            ours.step()
            other.step()
        assert travelled_error(mine, theirs.detach(), start) < 1e-5, shape
