"""RMSNorm, add + RMSNorm and LayerNorm by kernel equal their eager lines in float64, forward and backward."""

import pytest
import torch

from train.kernels import add_rms_norm, layer_norm, rms_norm

SHAPES = [(1, 1), (3, 5, 33), (7, 64), (2, 3000), (0, 8)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norms_equal_float64_on_odd_shapes(device, dtype, shape, agree, poisoned):
    x, residual = (poisoned(torch.randn(shape, device=device).to(dtype) * 3 + 1) for _ in range(2))
    weight, bias = (poisoned(torch.randn(shape[-1], device=device)) for _ in range(2))
    # A row of one element has no variance to speak of: eps keeps its slope within what FP32 resolves.
    eps = 1e-2 if shape[-1] == 1 else 1e-5
    agree(lambda x, w, impl: rms_norm(x, w, eps, impl=impl), x, weight)
    agree(lambda x, w, b, impl: layer_norm(x, w, b, eps, impl=impl), x, weight, bias)
    agree(lambda x, w, impl: layer_norm(x, w, None, eps, impl=impl), x, weight)
    agree(lambda x, r, w, impl: add_rms_norm(x, r, w, eps, impl=impl), x, residual, weight)


@pytest.mark.parametrize(
    "view",
    [lambda x: x[:, ::2], lambda x: x.t(), lambda x: x[:1].expand(6, -1), lambda x: x[:, :1].expand(-1, 9), lambda x: x[2:, 3:]],
    ids=["columns_apart", "transposed", "rows_expanded", "columns_expanded", "inner"],
)
def test_norms_read_strided_and_expanded_inputs_and_gradients(device, agree, view):
    x = view(torch.randn(8, 20, device=device))
    weight = torch.randn(2 * x.shape[1], device=device)[::2]

    def strided(like):
        return torch.randn(1, like.shape[1], device=device).expand_as(like)

    agree(lambda x, w, impl: rms_norm(x, w, 1e-5, impl=impl), x, weight, upstream=strided)
    agree(lambda x, r, w, impl: add_rms_norm(x, r, w, 1e-5, impl=impl), x, x * 2, weight, upstream=strided)
    agree(lambda x, w, b, impl: layer_norm(x, w, b, 0.1, impl=impl), x, weight, weight + 1, upstream=strided)


def test_a_wider_residual_stream_keeps_its_dtype(device, agree):
    x, residual = torch.randn(4, 40, device=device).bfloat16(), torch.randn(4, 40, device=device)
    weight = torch.randn(40, device=device)
    normed, total = add_rms_norm(x, residual, weight, 1e-5, impl="triton")
    assert normed.dtype == torch.bfloat16 and total.dtype == torch.float32
    assert torch.equal(total, x.float() + residual)
    agree(lambda x, r, w, impl: add_rms_norm(x, r, w, 1e-5, impl=impl), x, residual, weight)


def test_norms_reach_beyond_32_bit_offsets_forward_and_backward(far_rows, device):
    rows, weight = far_rows(40), torch.randn(40, device=device)
    x, found = rows.clone().requires_grad_(), {}
    for impl in ("triton", "eager"):
        results = [f(v) for f in norms(rows, weight, impl) for v in (rows, x)]
        found[impl] = [*results, *torch.autograd.grad(results[1::2], x, [rows] * (len(results) // 2))]
    torch.testing.assert_close(found["triton"], found["eager"], rtol=2e-2, atol=2e-2)


def norms(residual, weight, impl):
    """Every norm as a function of x, whose result is x's shape."""
    return (
        lambda x: rms_norm(x, weight, impl=impl),
        lambda x: layer_norm(x, weight, weight, impl=impl),
        lambda x: add_rms_norm(x, residual, weight, impl=impl)[0],
    )


def test_a_norm_of_one_result_alone_has_gradients(device):
    x, residual, weight = (torch.randn(shape, device=device, requires_grad=True) for shape in ((4, 8), (4, 8), (8,)))
    for index in (0, 1):
        found = torch.autograd.grad(add_rms_norm(x, residual, weight, impl="triton")[index].sum(), (x, residual))
        exact = torch.autograd.grad(add_rms_norm(x, residual, weight, impl="eager")[index].sum(), (x, residual))
        torch.testing.assert_close(found, exact)


@pytest.mark.parametrize("bad", [(9,), (8, 1)], ids=str)
def test_norms_name_shapes_that_do_not_fit(bad):
    with pytest.raises(ValueError, match=r"\(4, 8\)"):
        rms_norm(torch.randn(4, 8), torch.randn(bad))
