"""The loss over a split vocabulary equals the whole one, over real processes and uneven parts."""

import pytest
import torch

from tests.train.processes import run_ranks
from train.kernels import linear_cross_entropy
from train.kernels.linear_loss_parallel import vocabulary_parallel_linear_cross_entropy

VOCABULARY = 101


def compare(rank, ranks):
    torch.manual_seed(0)
    hidden = torch.randn(37, 16, requires_grad=True)
    weight = torch.randn(VOCABULARY, 16, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (37,))
    targets[::6] = -100
    share = -(-VOCABULARY // ranks)
    mine = slice(rank * share, min(VOCABULARY, (rank + 1) * share))
    part = weight.detach()[mine].clone().requires_grad_()
    for upstream in (torch.ones(37), torch.randn(37), torch.zeros(37)):
        for shift in (0.0, 1e4):
            # A constant feature shifts every logit alike.
            moved = torch.cat((hidden, torch.full((37, 1), shift)), 1)
            one = torch.ones(len(weight), 1)
            expected = linear_cross_entropy(moved, torch.cat((weight, one), 1), targets, z_loss=1e-6 * (shift == 0), chunk=8)
            found = vocabulary_parallel_linear_cross_entropy(
                moved, torch.cat((part, one[mine]), 1), targets, vocabulary=VOCABULARY, z_loss=1e-6 * (shift == 0), chunk=8
            )
            tolerance = 1e-5 if not shift else 5e-3
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
            exact = torch.autograd.grad(expected, (hidden, weight), upstream)
            got = torch.autograd.grad(found, (hidden, part), upstream)
            torch.testing.assert_close(got[0], exact[0], rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(got[1], exact[1][mine], rtol=tolerance, atol=10 * tolerance)
    ignored = torch.full((37,), -100)
    loss = vocabulary_parallel_linear_cross_entropy(hidden, part, ignored, vocabulary=VOCABULARY, reduction="mean")
    assert loss.item() == 0 and not any(bool(g.any()) for g in torch.autograd.grad(loss, (hidden, part)))
    with pytest.raises(ValueError, match=f"rank {rank} of {ranks} must hold rows"):
        vocabulary_parallel_linear_cross_entropy(hidden, part[1:], targets, vocabulary=VOCABULARY)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_split_vocabulary_gives_the_losses_and_gradients_of_the_whole(ranks, tmp_path):
    run_ranks(compare, ranks, tmp_path)
