"""Linear + cross-entropy by chunks equals the whole one in float64, at a fraction of its memory."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.profiler import profile

from train.kernels import linear_cross_entropy, linear_loss
from train.kernels.row_loss import row_loss_


def whole(hidden, weight, targets, ignore_index=-100, z_loss=0.0):
    logits = hidden.double() @ weight.double().t()
    losses = F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction="none")
    return losses + z_loss * torch.where(targets != ignore_index, logits.logsumexp(-1).square(), 0)


def case(rows, width, vocabulary, dtype=torch.float32, device="cpu"):
    hidden = (torch.randn(rows, width, device=device) * 0.7).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, device=device).to(dtype).requires_grad_()
    targets = torch.randint(0, vocabulary, (rows,), device=device)
    targets[::5] = -100
    return hidden, weight, targets


@pytest.fixture(params=["eager", "triton"])
def impl(request):
    if request.param == "triton":
        pytest.importorskip("triton")
    torch.manual_seed(0)
    return request.param


@pytest.fixture
def place(impl):
    """Return the device on which an implementation is tested."""
    return "cuda" if impl == "triton" and torch.cuda.is_available() else "cpu"


def assert_near(found, exact, tolerance):
    for values, wanted in zip(found, exact, strict=True):
        assert float((values.double() - wanted.double()).detach().abs().max()) <= tolerance * max(1.0, float(wanted.detach().abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_how_many_rows_stay_in_cache_changes_no_bit(monkeypatch, dtype):
    torch.manual_seed(0)
    hidden, weight, targets = case(37, 16, 101, dtype)
    found = []
    for elements in (1, 505, 1 << 19):
        monkeypatch.setattr(linear_loss, "_CACHED_ELEMENTS", elements)
        losses = linear_cross_entropy(hidden, weight, targets, z_loss=0.01, chunk=16, impl="eager")
        found.append([losses.detach(), *torch.autograd.grad((losses * torch.arange(37)).sum(), (hidden, weight))])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.parametrize("shape", [(1, 1, 2), (37, 16, 101), (13, 5, 1031)], ids=str)
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize("upstream", ["uniform", "by_row", "expanded", "zero"])
def test_losses_and_gradients_equal_float64(impl, place, shape, z_loss, upstream):
    hidden, weight, targets = case(*shape, device=place)
    factors = {
        "uniform": torch.full((shape[0],), 0.3),
        "by_row": torch.randn(shape[0]),
        "expanded": torch.tensor(2.0).expand(shape[0]),
        "zero": torch.zeros(shape[0]),
    }[upstream].to(place)
    losses = linear_cross_entropy(hidden, weight, targets, z_loss=z_loss, chunk=8, impl=impl)
    exact = whole(hidden, weight, targets, z_loss=z_loss)
    assert losses.dtype == torch.float32 and losses.shape == targets.shape
    assert_near([losses], [exact], 1e-5)
    found = torch.autograd.grad(losses, (hidden, weight), factors)
    assert_near(found, torch.autograd.grad(exact, (hidden, weight), factors.double()), 5e-6)


def test_chunks_of_any_size_give_the_same(impl, place):
    hidden, weight, targets = case(23, 8, 67, device=place)
    results = []
    for chunk in (1, 7, 23, 100, None):
        loss = linear_cross_entropy(hidden, weight, targets, chunk=chunk, reduction="mean", impl=impl)
        results.append((loss, *torch.autograd.grad(loss, (hidden, weight))))
    for result in results[1:]:
        assert_near(result, results[0], 1e-6)


def test_sum_and_mean_count_the_rows_that_are_not_ignored(impl, place):
    hidden, weight, targets = case(20, 8, 31, device=place)
    exact = whole(hidden, weight, targets)
    assert_near([linear_cross_entropy(hidden, weight, targets, reduction="sum", impl=impl)], [exact.sum()], 1e-5)
    assert_near([linear_cross_entropy(hidden, weight, targets, reduction="mean", impl=impl)], [exact.sum() / 16], 1e-5)


def test_all_labels_ignored_gives_zero_and_zero_gradients(impl, place):
    hidden, weight, targets = case(9, 8, 31, device=place)
    targets.fill_(7)
    for reduction in ("sum", "mean"):
        loss = linear_cross_entropy(hidden, weight, targets, ignore_index=7, z_loss=0.1, chunk=4, reduction=reduction, impl=impl)
        gradients = torch.autograd.grad(loss, (hidden, weight))
        assert loss.item() == 0 and all(torch.equal(g, torch.zeros_like(g)) for g in gradients)


def test_no_rows_give_zero(impl, place):
    hidden, weight, _ = case(0, 8, 31, device=place)
    loss = linear_cross_entropy(hidden, weight, torch.empty(0, dtype=torch.int64, device=place), reduction="mean", impl=impl)
    assert loss.item() == 0
    assert not any(bool(g.any()) for g in torch.autograd.grad(loss, (hidden, weight)))


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_the_loss_is_invariant_to_a_shift_of_the_logits(impl, place, shift):
    logits, targets = torch.randn(6, 300, device=place), torch.randint(0, 300, (6,), device=place)
    # A shift of 1e4 in FP32 leaves 2^-10 of resolution; whole numbers lose nothing.
    logits = (logits * 3).round()
    if impl == "triton":
        from train.kernels.fused.row_loss import row_loss_ as loss_of
    else:
        loss_of = row_loss_
    plain, shifted = logits.clone(), logits + shift
    expected, found = (loss_of(block, targets, -100, 0.0, None, True) for block in (plain, shifted))
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)
    torch.testing.assert_close(shifted, plain, rtol=0, atol=2e-3)
    exact = F.cross_entropy(logits.double(), targets, reduction="none")
    torch.testing.assert_close(expected.double(), exact, rtol=1e-6, atol=1e-6)


def test_rows_of_logits_beyond_32_bit_offsets_are_reached(impl, place):
    if impl == "triton":
        from train.kernels.fused.row_loss import row_loss_ as loss_of
    else:
        loss_of = row_loss_
    # Three rows 2^30 elements apart: only the pages that are touched are real.
    far = torch.empty(2**31 + 50, device=place).as_strided((3, 50), (2**30, 1)).copy_(torch.randn(3, 50))
    exact, targets = far.double().requires_grad_(), torch.tensor([3, -100, 49], device=place)
    losses, expected = loss_of(far, targets, -100, 0.0, None, True), F.cross_entropy(exact, targets, reduction="none")
    assert_near([losses, far], [expected, *torch.autograd.grad(expected.sum(), exact)], 1e-5)


def test_an_impossible_token_and_a_certain_one_stay_finite(impl, place):
    hidden = torch.tensor([[1000.0], [-1000.0]], device=place, requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.0]], device=place, requires_grad=True)
    losses = linear_cross_entropy(hidden, weight, torch.tensor([0, 0], device=place), impl=impl)
    assert losses.tolist() == [0.0, 2000.0]
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(losses.sum(), (hidden, weight)))


def test_strided_and_expanded_inputs_are_read_as_they_are(impl, place):
    hidden = torch.randn(16, 12, device=place).t()[:, ::2].detach().requires_grad_()
    weight = torch.randn(8, 50, device=place).t().detach().requires_grad_()
    targets = torch.tensor([3], device=place).expand(12)
    losses = linear_cross_entropy(hidden, weight, targets, chunk=5, impl=impl)
    exact = whole(hidden, weight, targets)
    assert_near([losses], [exact], 1e-5)
    assert_near(torch.autograd.grad(losses.sum(), (hidden, weight)), torch.autograd.grad(exact.sum(), (hidden, weight)), 5e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("by_row", [False, True])
def test_half_precision_is_within_the_rounding_of_its_products(impl, place, dtype, by_row):
    hidden, weight, targets = case(37, 16, 64, dtype, device=place)
    losses = linear_cross_entropy(hidden, weight, targets, chunk=16, impl=impl)
    exact = whole(hidden, weight, targets)
    factors = torch.randn(37, device=place) if by_row else torch.ones(37, device=place)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-3
    assert losses.dtype == torch.float32
    assert_near([losses], [exact], tolerance)
    found = torch.autograd.grad(losses, (hidden, weight), factors)
    assert_near(found, torch.autograd.grad(exact, (hidden, weight), factors.double()), tolerance)


@pytest.mark.parametrize("by_row", [False, True])
def test_the_weight_gradient_is_summed_over_chunks_in_fp32(impl, place, by_row):
    # A BF16 sum would stay at the first row's share: the others lie below its last bit.
    hidden = torch.full((33, 1), 2.0**-10, device=place, dtype=torch.bfloat16)
    hidden[0] = 1
    weight = torch.zeros(2, 1, device=place, requires_grad=True)
    factors = torch.ones(33, device=place)
    factors[-1] = 3 if by_row else 1
    losses = linear_cross_entropy(hidden, weight, torch.zeros(33, dtype=torch.int64, device=place), chunk=1, impl=impl)
    (gradient,) = torch.autograd.grad(losses, weight, factors)
    share = 0.5 * float((hidden[:, 0].float() * factors).sum())
    assert gradient.tolist() == [[-share], [share]] and gradient.dtype == torch.float32


def test_autocast_sets_the_dtype_of_the_products():
    torch.manual_seed(0)
    hidden, weight, targets = case(12, 8, 31)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets, reduction="sum")
    expected = linear_cross_entropy(hidden.bfloat16(), weight, targets, reduction="sum")
    assert torch.equal(loss, expected) and loss.dtype == torch.float32
    assert torch.autograd.grad(loss, weight)[0].dtype == torch.float32


def test_inference_makes_no_gradients():
    hidden, weight, targets = case(12, 8, 31)
    with torch.no_grad():
        losses = linear_cross_entropy(hidden, weight, targets)
    assert not losses.requires_grad
    assert_near([losses], [whole(hidden, weight, targets)], 1e-5)


def test_second_derivatives_are_exact():
    torch.manual_seed(0)
    hidden, weight = torch.randn(4, 2, dtype=torch.float64, requires_grad=True), torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 4, -100, 2])

    def loss(hidden, weight):
        return linear_cross_entropy(hidden, weight, targets, z_loss=0.1, chunk=3, reduction="mean")

    assert torch.autograd.gradcheck(loss, (hidden, weight))
    assert torch.autograd.gradgradcheck(loss, (hidden, weight))


def test_a_compiled_model_holds_it_in_one_graph():
    torch.manual_seed(0)
    hidden, weight, targets = case(12, 8, 31)

    def loss(hidden, weight):
        return linear_cross_entropy(hidden.tanh(), weight, targets, chunk=5, reduction="mean")

    found = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(hidden, weight), (hidden, weight))
    torch.testing.assert_close(found, torch.autograd.grad(loss(hidden, weight), (hidden, weight)))


def peak_bytes(run):
    """Return the most bytes that were allocated at once during ``run``, by the allocator's own account."""
    with profile(profile_memory=True) as record:
        run()
    live = most = 0
    for event in record.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most


def test_peak_memory_at_8192_by_32000_is_an_eighth_of_the_naive():
    rows, vocabulary, width = 8192, 32000, 32
    hidden, weight, targets = case(rows, width, vocabulary)
    # The naive loss holds the logits, their log-softmax and, in backward, its gradient; two of the three at the least.
    naive = 2 * rows * vocabulary * 4

    def step():
        linear_cross_entropy(hidden, weight, targets, reduction="mean").backward()

    assert 0 < peak_bytes(step) <= naive / 8


def test_the_account_of_memory_sees_the_naive_loss():
    hidden, weight, targets = case(256, 8, 4000)
    naive = peak_bytes(lambda: F.cross_entropy(hidden @ weight.t(), targets).backward())
    chunked = peak_bytes(lambda: linear_cross_entropy(hidden, weight, targets, chunk=8, reduction="mean").backward())
    assert naive >= 2 * 256 * 4000 * 4 and chunked <= naive / 8


def test_errors_name_the_shapes():
    with pytest.raises(ValueError, match=r"\(3, 4\).*\(5, 6\)"):
        linear_cross_entropy(torch.randn(3, 4), torch.randn(5, 6), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="median"):
        linear_cross_entropy(torch.randn(3, 4), torch.randn(5, 4), torch.zeros(3, dtype=torch.int64), reduction="median")


def test_the_gradient_of_a_sum_asks_the_device_nothing(place, impl, monkeypatch):
    """Reading a value of a device waits for all that was asked of it before."""
    hidden, weight, targets = case(9, 4, 7, device=place)
    losses = linear_cross_entropy(hidden, weight, targets, impl=impl).view(3, 3)
    total = losses.sum() * 0.25
    for name in ("__bool__", "item", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: pytest.fail(f"{name} was asked"))
    found = torch.autograd.grad(total, (hidden, weight))
    monkeypatch.undo()
    exact = torch.autograd.grad(whole(hidden, weight, targets).sum() * 0.25, (hidden, weight))
    for one, two in zip(found, exact, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
