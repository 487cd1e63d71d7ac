"""Multi-tensor steps go where float64 goes: within 1e-5 of the distance travelled, over gradients of many scales."""

import pytest
import torch

from train.kernels import adafactor_step, adamw_step, came_step, grad_norm, sophia_step, steps
from train.optim.adafactor import Adafactor
from train.optim.came import CAME
from train.optim.sophia import Sophia

SHAPES = [(1, 1), (5, 7), (33, 300), (40, 1), (1, 19), (3, 4, 16)]
STEPS = 8


def gradients(device):
    """Yield steps of gradients over decades of scale, each with an element of zero."""
    for step in range(1, STEPS + 1):
        made = [torch.randn(shape, device=device) * 10.0 ** (step % 5 - 3) for shape in SHAPES]
        made[2][3, 4] = 0
        yield step, made


@pytest.fixture(params=["eager", "compile", "triton"])
def impl(request, monkeypatch):
    """Each implementation; what is compiled is traced and run as it is, since machine code for every shape takes a minute."""
    monkeypatch.setattr(steps, "compiled_by_shape", lambda lines: torch.compile(lines, backend="aot_eager", dynamic=False, fullgraph=True))
    with torch._dynamo.config.patch(recompile_limit=64):
        yield request.param


def start(device):
    torch.manual_seed(1)
    weights = [torch.randn(shape, device=device) for shape in SHAPES]
    return weights, [weight.double().requires_grad_() for weight in weights], [weight.double() for weight in weights]


def assert_parity(weights, reference, origin, tolerance=1e-5):
    # FP32 weights round by themselves at every step, by up to 2^-24; of a tensor of one element that is more than 1e-5 of its way.
    for weight, exact, first in zip(weights, reference, origin, strict=True):
        travelled = (exact - first).norm().item()
        assert travelled > 0
        rounding = STEPS**0.5 * 2**-24 * weight.norm().item()
        assert (weight.double() - exact).norm().item() <= tolerance * travelled + rounding


def zeros(weights, dtype=torch.float32):
    return [torch.zeros_like(weight, dtype=dtype) for weight in weights]


def flat(tensors):
    """Return the matrices of all tensors: views over the last two dimensions, one per leading index."""
    return [matrix for tensor in tensors for matrix in tensor.reshape(-1, *tensor.shape[-2:]).unbind(0)]


def means(weights):
    made = flat(weights)
    return [m.new_zeros(m.shape[0]) for m in made], [m.new_zeros(m.shape[1]) for m in made]


def follow(optimizer, reference, grads):
    for parameter, grad in zip(reference, grads, strict=True):
        parameter.grad = grad.double()
    optimizer.step()


def test_adamw_matches_torch_in_float64(device, impl):
    weights, reference, origin = start(device)
    optimizer = torch.optim.AdamW(reference, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    first, second = zeros(weights), zeros(weights)
    scale = torch.tensor(0.5, device=device)
    for step, grads in gradients(device):
        adamw_step(weights, grads, first, second, step=step, lr=1e-2, weight_decay=0.1, grad_scale=scale, impl=impl)
        follow(optimizer, reference, [grad / 2 for grad in grads])
    assert_parity(weights, reference, origin)


def test_sophia_matches_the_optimizer_in_float64(device, impl):
    weights, reference, origin = start(device)
    optimizer = Sophia(reference, lr=1e-2, weight_decay=0.1, rho=2.0)
    first, curvature = zeros(weights), zeros(weights)
    for step, grads in gradients(device):
        if step in (1, 6):
            follow_curvature(optimizer, reference, curvature, grads)
        sophia_step(weights, grads, first, curvature, step=step, lr=1e-2, weight_decay=0.1, rho=2.0, impl=impl)
        follow(optimizer, reference, grads)
    assert_parity(weights, reference, origin)


def follow_curvature(optimizer, reference, curvature, grads):
    for parameter, grad in zip(reference, grads, strict=True):
        parameter.grad = grad.double()
    optimizer.update_curvature(tokens=2)
    for held, grad in zip(curvature, grads, strict=True):
        held.mul_(0.99).add_(grad.square(), alpha=0.01 * 2)


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_adafactor_matches_the_optimizer_in_float64(device, impl, beta1):
    weights, reference, origin = start(device)
    optimizer = Adafactor([slices for tensor in reference for slices in separate(tensor)], beta1=beta1, weight_decay=0.1)
    state, moments = means(weights), flat(zeros(weights)) if beta1 else None
    for step, grads in gradients(device):
        adafactor_step(flat(weights), flat(grads), state, step=step, weight_decay=0.1, exp_avgs=moments, beta1=beta1, impl=impl)
        follow(optimizer, optimizer.param_groups[0]["params"], flat(grads))
    assert_parity(flat(weights), optimizer.param_groups[0]["params"], flat(origin))


def separate(tensor):
    """Return a stack of matrices as parameters of their own: clipping and scale are each matrix's."""
    return [matrix.clone().requires_grad_() for matrix in flat([tensor.detach()])]


def test_came_matches_the_optimizer_in_float64(device, impl):
    weights, reference, origin = start(device)
    optimizer = CAME([slices for tensor in reference for slices in separate(tensor)], lr=1e-3, warmup_steps=1, weight_decay=0.1)
    state, residuals, moments = means(weights), means(weights), flat(zeros(weights))
    for step, grads in gradients(device):
        came_step(flat(weights), flat(grads), moments, state, residuals, step=step, lr=1e-3, weight_decay=0.1, impl=impl)
        follow(optimizer, optimizer.param_groups[0]["params"], flat(grads))
    assert_parity(flat(weights), optimizer.param_groups[0]["params"], flat(origin))


def test_a_step_does_not_depend_on_the_order_of_parameters_and_repeats_bit_for_bit(device):
    results = []
    for order in (list(range(3)), list(range(3)), [2, 0, 1]):
        weights, _, _ = start(device)
        (_, grads), chosen = next(gradients(device)), [weights[i] for i in order]
        came_step(chosen, [grads[i] for i in order], zeros(chosen), means(chosen), means(chosen), step=1, lr=1e-3, impl="triton")
        results.append(weights[:3])
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_gradient_norm_is_that_of_all_tensors_together(device, dtype):
    grads = [(torch.randn(shape, device=device) * scale).to(dtype) for shape, scale in (((5, 7), 1), ((9001,), 0.1), ((0,), 1), ((), 3))]
    grads.append(torch.randn(6, 8, device=device).t()[::2])
    exact = torch.cat([grad.double().flatten() for grad in grads]).norm()
    found = grad_norm(grads, impl="triton")
    assert found.dtype == torch.float32 and found.ndim == 0
    assert abs(float(found) - float(exact)) <= 1e-6 * float(exact)


def test_stochastic_rounding_keeps_steps_below_a_bit_on_average(device):
    size, lr = 20000, 2.0**-11
    means_found = []
    for seed in (None, 1, 1, 2):
        weights = [torch.ones(size, device=device, dtype=torch.bfloat16)]
        state = zeros(weights), zeros(weights)
        adamw_step(weights, [torch.ones(size, device=device)], *state, step=1, lr=lr, seeds=None if seed is None else [seed], impl="triton")
        means_found.append(weights[0])
    nearest, first, again, other = means_found
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert set(first.unique().tolist()) == {1.0, 1 - 2.0**-8}
    # A step of 2^-11 is an eighth of the spacing below 1; five standard deviations of so many draws.
    assert abs(float((first < 1).float().mean()) - 0.125) < 5 * (0.125 * 0.875 / size) ** 0.5
    assert nearest.unique().numel() == 1


def test_steps_write_nothing_beyond_their_tensors(device):
    shape, padding = (19, 37), 64
    buffers = [torch.full((shape[0] * shape[1] + 2 * padding,), 7.0, device=device) for _ in range(3)]
    inner = [buffer[padding:-padding].view(shape).copy_(torch.randn(shape)) for buffer in buffers]
    for values in inner[1:]:
        values.zero_()
    grad = torch.randn(shape, device=device)
    adamw_step(inner[:1], [grad], inner[1:2], inner[2:], step=1, lr=0.1, impl="triton")
    came_step(inner[:1], [grad], inner[1:2], means(inner[:1]), means(inner[:1]), step=1, lr=0.1, impl="triton")
    for buffer in buffers:
        assert torch.equal(torch.cat((buffer[:padding], buffer[-padding:])), torch.full((2 * padding,), 7.0, device=device))


def test_nothing_to_do_is_no_error(device):
    adamw_step([], [], [], [], step=1, lr=0.1)
    adafactor_step([], [], ([], []), step=1)


def test_steps_name_what_they_cannot_take(device):
    whole, strided = torch.zeros(4, 4, device=device), torch.zeros(4, 8, device=device)[:, ::2]
    with pytest.raises(ValueError, match="contiguous"):
        adamw_step([strided], [whole], [whole.clone()], [whole.clone()], step=1, lr=0.1, impl="triton")
    with pytest.raises(ValueError, match="float32"):
        adamw_step([whole], [whole], [whole.bfloat16()], [whole.clone()], step=1, lr=0.1, impl="triton")
    with pytest.raises(ValueError, match="at least one gradient"):
        grad_norm([])
