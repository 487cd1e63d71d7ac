"""The mask within documents, and the two ways of attending under it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from schemas.model import ModelSettings, RopeScaling
from train import attention
from train.attention import attend, document_mask, rotary_frequencies
from train.model import Decoder

DOCUMENTS = torch.tensor([[0] * 5 + [1] * 60 + [2] * 63, [0] * 128])


def test_both_masks_let_a_query_see_the_keys_before_it_in_its_document():
    mask = document_mask(DOCUMENTS, flex=False)
    block = document_mask(DOCUMENTS, flex=True)
    for row in range(2):
        for query in range(0, 128, 9):
            seen = [key for key in range(query + 1) if DOCUMENTS[row, key] == DOCUMENTS[row, query]]
            assert (mask[row, 0, query] == 0).nonzero()[:, 0].tolist() == seen
            by_rule = [key for key in range(128) if block.mask_mod(row, 0, torch.tensor(query), torch.tensor(key))]
            assert by_rule == seen


def test_flex_attention_equals_masked_attention():
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 128, heads, 16, generator=generator) for heads in (4, 2, 2))
    one, two = (attend(q, k, v, document_mask(DOCUMENTS, flex=flex)) for flex in (False, True))
    torch.testing.assert_close(one, two, atol=2e-6, rtol=1e-5)


def test_on_a_cpu_bf16_attention_in_fp32_is_nearer_to_float64_and_in_bf16_outside(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, 128, 4, 16, generator=generator).bfloat16().requires_grad_() for _ in range(3)]
    mask = document_mask(DOCUMENTS, flex=False)
    exact = attend(*(part.detach().double() for part in inputs), mask)
    errors = []
    for longest in (0, 128):
        monkeypatch.setattr(attention, "_WIDE_TO", longest)
        with torch.autocast("cpu", torch.bfloat16):
            found = attend(*inputs, mask)
        assert {found.dtype, *(grad.dtype for grad in torch.autograd.grad(found.sum(), inputs))} == {torch.bfloat16}
        errors.append(float((found.detach().double() - exact).square().mean()))
    assert errors[1] < errors[0] < 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_losses_and_gradients_are_the_same_by_flex_attention_on_a_gpu(kind):
    settings = ModelSettings(kind=kind, layers=2, width=128, heads=4, kv_heads=0 if kind == "gpt2" else 2)
    tokens = torch.randint(0, 64, (2, 128), generator=torch.Generator().manual_seed(2)).cuda()
    documents = DOCUMENTS.cuda()
    positions = torch.from_numpy(np.concatenate([np.r_[:5, :60, :63], np.r_[:128]]).reshape(2, 128)).cuda()
    found = []
    for flex in (False, True):
        model = Decoder(settings, 64, 128, seed=3).cuda()
        model.flex = flex
        loss = model(tokens, tokens.roll(-1, 1), documents, positions).sum()
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(two, one, rtol=2e-3, atol=2e-3)


def test_linear_scaling_divides_every_frequency_and_llama3_only_long_waves():
    plain = rotary_frequencies(ModelSettings(width=256, heads=2))
    linear = rotary_frequencies(ModelSettings(width=256, heads=2, rope_scaling=RopeScaling("linear", 4)))
    torch.testing.assert_close(linear, plain / 4)
    three = rotary_frequencies(ModelSettings(width=256, heads=2, rope_scaling=RopeScaling("llama3", 8, 1, 4, 2048)))
    waves = 2 * torch.pi / plain
    assert torch.equal(three[waves < 512], plain[waves < 512])
    torch.testing.assert_close(three[waves > 2048], plain[waves > 2048] / 8)
    between = (waves > 512) & (waves < 2048)
    assert between.any() and ((three[between] < plain[between]) & (three[between] > plain[between] / 8)).all()
