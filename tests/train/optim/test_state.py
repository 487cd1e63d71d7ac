"""States and BF16 weights of the own optimizers: what is kept, what it weighs, and what a resume gives back."""

import copy
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.train.optim.cases import SHAPES, gradients, parameter
from train.optim import build_optimizer, weights
from train.optim.adafactor import Adafactor
from train.optim.came import CAME
from train.optim.sophia import Sophia

BUILDS = {
    "adafactor": lambda p, **o: Adafactor(p, **o),
    "adafactor_momentum": lambda p, **o: Adafactor(p, beta1=0.9, momentum_dtype="bfloat16", **o),
    "came": lambda p, **o: CAME(p, lr=1e-3, warmup_steps=1, weight_decay=0.1, **o),
    "came_bf16_momentum": lambda p, **o: CAME(p, lr=1e-3, warmup_steps=1, momentum_dtype="bfloat16", **o),
    "sophia": lambda p, **o: Sophia(p, lr=1e-3, **o),
}
WEIGHTS = {"fp32": (torch.float32, {}), "bf16": (torch.bfloat16, {"seed": 5}), "bf16_master": (torch.bfloat16, {"rounding": "master"})}


def steps(optimizer, params, grads, numbers) -> None:
    for i in numbers:
        for p, sequence in zip(params, grads, strict=True):
            p.grad = sequence[i].to(p.dtype)
        if isinstance(optimizer, Sophia) and optimizer.curvature_due():
            optimizer.update_curvature(tokens=512)
        optimizer.step()


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("name", BUILDS)
def test_a_resume_goes_on_bit_for_bit(name: str, kind: str) -> None:
    dtype, options = WEIGHTS[kind]
    params = [parameter(shape, dtype) for shape in SHAPES]
    grads = [gradients(p) for p in params]
    optimizer = BUILDS[name](params, **options)
    steps(optimizer, params, grads, range(6))

    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "params": [p.detach() for p in params]}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed_params = [nn.Parameter(p.clone()) for p in saved["params"]]
    resumed = BUILDS[name](resumed_params, **options)
    resumed.load_state_dict(saved["optimizer"])
    for p, q in zip(params, resumed_params, strict=True):
        assert optimizer.state[p].keys() == resumed.state[q].keys()
        for key, value in optimizer.state[p].items():
            loaded = resumed.state[q][key]
            assert loaded.dtype == value.dtype and torch.equal(loaded, value), key

    steps(optimizer, params, grads, range(6, 12))
    steps(resumed, resumed_params, grads, range(6, 12))
    for p, q in zip(params, resumed_params, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("name", ["adafactor", "came", "sophia"])
def test_fp32_states_survive_a_load_with_bf16_parameters(name: str) -> None:
    p = parameter("matrix", torch.bfloat16)
    optimizer = BUILDS[name]([p])
    steps(optimizer, [p], [gradients(p)], range(2))
    other = BUILDS[name]([parameter("matrix", torch.bfloat16)])
    other.load_state_dict(optimizer.state_dict())
    for state in (optimizer.state[p], next(iter(other.state.values()))):
        assert all(value.dtype == torch.float32 for value in state.values())
        assert any(not torch.equal(value, value.bfloat16().float()) for value in state.values())


def test_a_loaded_state_shares_no_memory_with_where_it_came_from() -> None:
    p, q = parameter("matrix"), parameter("matrix")
    one, two = BUILDS["came"]([p]), BUILDS["came"]([q])
    steps(one, [p], [gradients(p)], range(2))
    two.load_state_dict(one.state_dict())
    before = two.state[q]["exp_avg"].clone()
    steps(one, [p], [gradients(p)], range(2, 3))
    assert torch.equal(two.state[q]["exp_avg"], before)
    copied = copy.deepcopy(two)
    assert copied.report()["state_bytes"] == two.report()["state_bytes"]


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(list(SHAPES)), name=st.sampled_from(sorted(BUILDS)), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_the_order_of_parameters_changes_nothing(order, name, dtype) -> None:
    results = []
    for shapes in (list(SHAPES), order):
        params = {shape: parameter(shape, dtype) for shape in shapes}
        optimizer = BUILDS[name]([{"params": list(params.items())}])
        steps(optimizer, list(params.values()), [gradients(p) for p in params.values()], range(3))
        results.append(params)
    assert all(torch.equal(results[0][shape], results[1][shape]) for shape in SHAPES)


@pytest.mark.parametrize("name", BUILDS)
def test_cache_blocks_do_not_change_the_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for block in (1 << 20, 100):
        monkeypatch.setitem(weights._BLOCK, "cpu", block)
        params = [parameter(shape, torch.float64) for shape in SHAPES if shape != "blocks"]
        optimizer = BUILDS[name](params)
        steps(optimizer, params, [gradients(p) for p in params], range(4))
        results.append((params, optimizer.report()))
    for p, q in zip(results[0][0], results[1][0], strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3 if "momentum" in name else 1e-10, atol=1e-12)
    assert results[0][1]["update_rms"] == pytest.approx(results[1][1]["update_rms"])
    assert results[0][1]["share_clipped"] == pytest.approx(results[1][1]["share_clipped"])


def test_bf16_weights_keep_small_updates_stochastically_or_in_a_master_and_lose_them_to_nearest() -> None:
    def travelled(rounding: str) -> float:
        p = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
        optimizer = Sophia([p], lr=1e-4, weight_decay=0.0, rounding=rounding)
        for _ in range(50):
            p.grad = torch.ones_like(p)
            optimizer.step()
        return 1 - float(p.detach().float().mean())

    assert travelled("nearest") == 0
    assert travelled("master") == pytest.approx(50e-4, abs=2e-3)
    assert travelled("stochastic") == pytest.approx(50e-4, rel=0.15)


def test_stochastic_rounding_is_exact_on_average_and_leaves_infinities_and_nan() -> None:
    noise = torch.Generator().manual_seed(0)
    value = torch.full((200_000,), 1.0 + 2**-7 * 0.3)
    rounded = weights.stochastic_bf16(value, noise).float()
    assert set(rounded.unique().tolist()) == {1.0, 1.0 + 2**-7}
    assert float((rounded > 1).float().mean()) == pytest.approx(0.3, abs=0.005)
    exact = torch.tensor([0.0, -0.0, 1.5, -2.0])
    assert torch.equal(weights.stochastic_bf16(exact, noise).float(), exact)
    special = weights.stochastic_bf16(torch.tensor([float("inf"), -float("inf"), float("nan")]), noise)
    assert special[0] == float("inf") and special[1] == -float("inf") and special[2].isnan()


def test_rounding_noise_differs_between_parameters_and_steps_and_repeats_with_the_seed() -> None:
    def draw(seed: int, name: str, step: int, offset: tuple[int, ...] = (0,)) -> list[int]:
        generator = weights.noise_for(torch.Generator(), seed=seed, name=name, step=step, offset=offset)
        return torch.randint(0, 1 << 16, (8,), generator=generator).tolist()

    base = draw(0, "a", 1)
    assert draw(0, "a", 1) == base
    assert all(other != base for other in (draw(1, "a", 1), draw(0, "b", 1), draw(0, "a", 2), draw(0, "a", 1, (4,))))


@pytest.mark.parametrize(
    ("name", "options", "least", "most"),
    [
        ("adamw", {}, 8.0, 8.0),
        ("adafactor", {}, 0.0, 0.1),
        ("adafactor", {"beta1": 0.9, "momentum_dtype": "bfloat16"}, 2.0, 2.1),
        ("came", {}, 4.0, 4.1),
        ("came", {"momentum_dtype": "bfloat16"}, 2.0, 2.1),
        ("sophia", {}, 8.0, 8.0),
    ],
)
def test_state_bytes_per_parameter(name: str, options: dict, least: float, most: float) -> None:
    model = nn.Sequential(nn.Embedding(2000, 128), nn.Linear(128, 512), nn.Linear(512, 128))
    optimizer = build_optimizer(name, model.named_parameters(), lr=1e-3, warmup_steps=10, **options)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    report = optimizer.report()
    assert least <= report["state_bytes_per_parameter"] <= most
    held = sum(value.nbytes for state in optimizer.state.values() for value in state.values() if value.ndim)
    assert report["state_bytes"] == held


def test_the_report_tells_how_large_the_first_updates_of_came_are() -> None:
    p = parameter("blocks")
    optimizer = BUILDS["came"]([p])
    assert optimizer.report()["update_rms"] == 0
    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    before = p.detach().clone()
    optimizer.param_groups[0]["weight_decay"] = 0.0
    optimizer.step()
    report = optimizer.report()
    assert report["update_rms"] == pytest.approx(float((p.detach() - before).square().mean().sqrt()) / 1e-3, rel=1e-4)
    assert report["update_rms"] > 5
    assert report["share_clipped"] == 1


def test_the_report_of_adafactor_and_sophia_is_that_of_their_last_step() -> None:
    for name, factor in (("adafactor", 1e-2 * 0.5), ("sophia", 1e-3)):
        p = nn.Parameter(torch.full((64, 32), 0.5))
        optimizer = BUILDS[name]([p])
        optimizer.param_groups[0]["weight_decay"] = 0.0
        for g in gradients(p)[:3]:
            before, p.grad = p.detach().clone(), g
            scale = float(before.square().mean().sqrt()) / 0.5 if name == "adafactor" else 1.0
            optimizer.step()
        moved = float((p.detach() - before).square().mean().sqrt())
        assert optimizer.report()["update_rms"] == pytest.approx(moved / factor / scale, rel=1e-3)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda p: CAME(p, lr=1e-3), "warm-up"),
        (lambda p: CAME(p, lr=1e-3, warmup_steps=0), "warmup_steps"),
        (lambda p: CAME(p, warmup_steps=1, betas=(0.9, 1.0, 0.9)), "betas"),
        (lambda p: CAME(p, warmup_steps=1, momentum_dtype="float8"), "momentum_dtype"),
        (lambda p: Adafactor(p, clip=0.0), "clip"),
        (lambda p: Adafactor(p, rounding="down"), "rounding"),
        (lambda p: Sophia(p, estimator="exact"), "estimator"),
        (lambda p: Sophia(p).update_curvature(loss=torch.zeros(())), "tokens"),
        (lambda p: Sophia(p, estimator="hutchinson").update_curvature(tokens=4), "loss"),
    ],
)
def test_errors_say_what_is_wrong(build, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build([parameter("matrix")])


def test_sparse_gradients_integer_and_fp16_parameters_are_refused() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ValueError, match="sparse"):
        Adafactor(table.parameters()).step()
    with pytest.raises(ValueError, match="floating"):
        Adafactor([nn.Parameter(torch.zeros(3, dtype=torch.int32), requires_grad=False)])
    with pytest.raises(ValueError, match="FP16"):
        Adafactor([nn.Parameter(torch.zeros(3, dtype=torch.float16))])
