"""RoPE by kernel equals its eager lines in float64, and its gradient is the opposite rotation."""

import pytest
import torch

from train.kernels import rope


def angles(shape, device):
    angle = torch.rand(shape, device=device) * 7
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 2), (2, 5, 3, 1, 6), (3, 7, 6, 2, 10), (1, 3, 40, 8, 128), (0, 4, 2, 2, 8)], ids=str)
@pytest.mark.parametrize("own_positions", [False, True])
def test_rope_equals_float64_on_odd_shapes(device, dtype, shape, own_positions, agree, poisoned):
    batch, length, heads, key_heads, width = shape
    cos, sin = angles((batch, length, width // 2) if own_positions else (length, width // 2), device)
    q = poisoned(torch.randn(batch, length, heads, width, device=device).to(dtype))
    k = poisoned(torch.randn(batch, length, key_heads, width, device=device).to(dtype))
    agree(lambda q, k, impl: rope(q, k, cos, sin, impl=impl), q, k)


def test_rope_reads_views_of_one_projection_and_transposed_heads(device, agree):
    cos, sin = angles((6, 2 * 4), device)
    cos, sin = cos[:, ::2], sin[:, ::2]
    joint = torch.randn(2, 6, 5, 8, device=device)
    agree(lambda q, k, impl: rope(q, k, cos, sin, impl=impl), joint[:, :, :3], joint[:, :, 3:])
    transposed = torch.randn(2, 5, 6, 8, device=device).transpose(1, 2)
    agree(
        lambda q, k, impl: rope(q, k, cos, sin, impl=impl),
        transposed,
        transposed[:, :, :1].expand(-1, -1, 4, -1),
        upstream=lambda like: torch.randn(like.shape[-1], device=device).expand_as(like),
    )


def test_rope_reaches_beyond_32_bit_offsets(far_rows, device):
    rows = far_rows(40).unflatten(1, (5, 8)).unsqueeze(0)
    cos, sin = angles((3, 4), device)
    found, exact = (rope(rows[:, :, :3], rows[:, :, 3:], cos, sin, impl=impl) for impl in ("triton", "eager"))
    torch.testing.assert_close(found, exact, rtol=1e-2, atol=1e-2)


def test_a_rotation_and_its_opposite_restore_the_input(device):
    cos, sin = angles((4, 8), device)
    q, k = torch.randn(1, 4, 2, 16, device=device), torch.randn(1, 4, 1, 16, device=device)
    back = rope(*rope(q, k, cos, sin, impl="triton"), cos, -sin, impl="triton")
    torch.testing.assert_close(back, (q, k))


def test_scores_depend_on_the_distance_of_positions_alone(device):
    position = torch.arange(12, device=device)[:, None] * torch.tensor([1.0, 0.1, 0.01], device=device)
    vector = torch.randn(1, 1, 1, 6, device=device).expand(1, 12, 1, 6)
    q, k = rope(vector, vector * 2, position.cos(), position.sin(), impl="triton")
    scores = q[0, :, 0] @ k[0, :, 0].t()
    torch.testing.assert_close(scores[3, 1], scores[11, 9])


def test_rope_names_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"cos and sin must be \(4, 8\) or \(2, 4, 8\)"):
        rope(torch.randn(2, 4, 1, 16), torch.randn(2, 4, 1, 16), torch.randn(4, 16), torch.randn(4, 16))
