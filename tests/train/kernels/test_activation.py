"""SwiGLU and bias + GELU + dropout by kernel equal their eager lines in float64; the mask is the same everywhere."""

import pytest
import torch

from train.kernels import bias_gelu_dropout, swiglu
from train.kernels.philox import keep_mask, keep_scale, philox

SHAPES = [(1, 1), (3, 5, 33), (4, 1030), (7, 64), (0, 8)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_activations_equal_float64_on_odd_shapes(device, dtype, shape, agree, poisoned):
    x, up = (poisoned(torch.randn(shape, device=device).to(dtype) * 2) for _ in range(2))
    bias = poisoned(torch.randn(shape[-1], device=device))
    agree(lambda gate, up, impl: swiglu(gate, up, impl=impl), x, up)
    agree(lambda x, b, impl: bias_gelu_dropout(x, b, 0.3, 2**62 + 11, 2**40 + 2**31 + 5, impl=impl), x, bias)
    agree(lambda x, b, impl: bias_gelu_dropout(x, b, 0.3, 1, 2, False, impl=impl), x, bias)


def test_activations_read_strided_and_expanded_inputs_and_gradients(device, agree):
    joint = torch.randn(6, 44, device=device)

    def strided(like):
        return torch.randn(like.shape[0], 1, device=device).expand_as(like)

    for gate, up in ((joint[:, :22], joint[:, 22:]), (joint.t()[:22], joint.t()[22:]), (joint[:1].expand(6, -1), joint)):
        agree(lambda gate, up, impl: swiglu(gate, up, impl=impl), gate, up, upstream=strided)
        bias = torch.randn(2 * gate.shape[1], device=device)[::2]
        agree(lambda x, b, impl: bias_gelu_dropout(x, b, 0.5, 7, 9, impl=impl), gate, bias, upstream=strided)


def test_activations_reach_beyond_32_bit_offsets_forward_and_backward(far_rows, device):
    rows, bias, found = far_rows(40), torch.randn(40, device=device), {}
    x = rows.clone().requires_grad_()
    for impl in ("triton", "eager"):
        far, near = (
            (swiglu(v, rows, impl=impl), swiglu(rows, v, impl=impl), bias_gelu_dropout(v, bias, 0.2, 1, 2, impl=impl)) for v in (rows, x)
        )
        found[impl] = [*far, *torch.autograd.grad(near, x, [rows] * 3)]
    torch.testing.assert_close(found["triton"], found["eager"], rtol=2e-2, atol=2e-2)


def test_the_mask_does_not_depend_on_the_block_size(device, monkeypatch):
    from train.kernels.fused import activation

    x, bias = torch.randn(5, 100, device=device), torch.zeros(100, device=device)
    expected = keep_mask(x.shape, 0.5, 3, 4, x.device)
    for block in ((1, 8), (2, 32), (8, 128)):
        monkeypatch.setattr(activation, "tile", lambda columns, block=block: block)
        assert torch.equal(bias_gelu_dropout(x, bias, 0.5, 3, 4, impl="triton") != 0, expected)


def test_the_mask_is_the_same_in_halves_of_the_batch_by_rows_of_the_whole(device):
    whole = keep_mask(torch.Size((4, 6, 10)), 0.5, 3, 4, torch.device(device))
    assert torch.equal(whole, keep_mask(torch.Size((24, 10)), 0.5, 3, 4, torch.device(device)).view(4, 6, 10))
    assert torch.equal(whole[:2], keep_mask(torch.Size((2, 6, 10)), 0.5, 3, 4, torch.device(device)))


def test_philox_gives_the_published_vectors():
    # Known answers of Random123 for philox4x32-10.
    zero, low = torch.zeros((), dtype=torch.int64), 0xFFFFFFFF
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert [int(w) for w in philox((zero, 0, 0, 0), 0)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert [int(w) for w in philox((zero + low, low, low, low), 2**64 - 1)] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    found = [int(w) for w in philox((zero + pi[0], *pi[1:]), 0x299F31D0 << 32 | 0xA4093822)]
    assert found == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_dropout_drops_its_share_and_keeps_the_mean():
    shape = torch.Size((1000, 1000))
    masks = [keep_mask(shape, 0.1, seed, offset, torch.device("cpu")) for seed, offset in ((0, 0), (0, 1), (1, 0))]
    for mask in masks:
        # Five standard deviations of a million draws.
        assert abs(float(mask.float().mean()) - 1 / keep_scale(0.1)) < 5 * (0.1 * 0.9 / 1e6) ** 0.5
        assert abs(keep_scale(0.1) - 1 / 0.9) < 1e-4
    for left, right in ((0, 1), (0, 2), (1, 2)):
        both = float((~masks[left] & ~masks[right]).float().mean())
        assert abs(both - 0.01) < 5 * (0.01 * 0.99 / 1e6) ** 0.5


@pytest.mark.parametrize("p", [-0.1, 1.0, 2.0])
def test_dropout_names_an_impossible_probability(p):
    with pytest.raises(ValueError, match=str(p)):
        bias_gelu_dropout(torch.randn(2, 4), torch.randn(4), p, 0, 0)
