"""The own optimizers by kernels over many tensors are the optimizers by eager lines: where they go, what they keep, what they report."""

import copy

import pytest
import torch
from torch import nn

from tests.train.optim.cases import gradients, parameter, travelled_error
from train.kernels import steps
from train.kernels.native import library
from train.optim.adafactor import Adafactor
from train.optim.adamw import adamw
from train.optim.came import CAME
from train.optim.lion import Lion
from train.optim.sophia import Sophia

SHAPES = ["matrix", "vector", "batched", "one_row", "strided"]
BUILDS = {
    "adafactor": lambda p, **o: Adafactor(p, weight_decay=0.1, **o),
    "adafactor_momentum": lambda p, **o: Adafactor(p, beta1=0.9, **o),
    "came": lambda p, **o: CAME(p, lr=1e-3, warmup_steps=1, weight_decay=0.1, **o),
    "sophia": lambda p, **o: Sophia(p, lr=1e-3, **o),
}
COUNT = 4


@pytest.fixture(params=["compile", "native", "triton"])
def impl(request, device, monkeypatch):
    if request.param != "triton" and device == "cuda":
        pytest.skip("compiled and native steps are the CPU's")
    if request.param == "native" and library.why_not():
        pytest.skip(library.why_not())
    monkeypatch.setattr(steps, "compiled_by_shape", lambda lines: torch.compile(lines, backend="aot_eager", dynamic=False, fullgraph=True))
    with torch._dynamo.config.patch(recompile_limit=64):
        yield request.param


def made(device, dtype=torch.float32, shapes=SHAPES):
    parameters = [(shape, nn.Parameter(parameter(shape, dtype).detach().to(device))) for shape in shapes]
    return parameters, [[grad.to(device, dtype) for grad in gradients(p)] for _, p in parameters]


def go(optimizer, parameters, grads, numbers):
    for i in numbers:
        for (_, p), sequence in zip(parameters, grads, strict=True):
            p.grad = sequence[i].clone()
        if isinstance(optimizer, Sophia) and optimizer.curvature_due():
            optimizer.update_curvature(tokens=512)
        optimizer.step()


@pytest.mark.parametrize("name", BUILDS)
def test_kernels_take_the_steps_of_the_eager_lines_and_report_the_same(device, impl, name, monkeypatch):
    taken = []
    together = type(BUILDS[name]([parameter("matrix")]))._together
    monkeypatch.setattr(
        type(BUILDS[name]([parameter("matrix")])),
        "_together",
        lambda self, parts, *rest: (taken.extend(part.name for part in parts), together(self, parts, *rest))[1],
    )
    found = {}
    for how in ("eager", impl):
        parameters, grads = made(device)
        optimizer = BUILDS[name]([{"params": parameters}], impl=how)
        go(optimizer, parameters, grads, range(COUNT))
        found[how] = parameters, optimizer.report()
    wanted = {"matrix", "one_row"}
    wanted |= {"vector", "batched", "strided"} if name == "sophia" else {"batched", "strided"} if impl == "compile" else set()
    wanted -= {"strided"} if impl == "triton" else set()
    wanted = set() if impl == "native" and name == "sophia" else wanted
    assert set(taken) == wanted
    for (shape, p), (_, q) in zip(found[impl][0], found["eager"][0], strict=True):
        assert travelled_error(p, q.detach(), parameter(shape).detach().to(device)) <= 1e-5, shape
    assert found[impl][1] == pytest.approx(found["eager"][1], rel=1e-4)


@pytest.mark.parametrize("kind", ["stochastic", "master"])
@pytest.mark.parametrize("name", ["came", "adafactor", "sophia"])
def test_a_resume_by_kernels_goes_on_bit_for_bit_and_in_any_order_of_parameters(device, name, kind):
    dtype = torch.float32 if kind == "fp32" else torch.bfloat16
    options = {"impl": "triton", "rounding": "master" if kind == "master" else "stochastic"}
    shapes = ["matrix", "vector", "one_row"]
    parameters, grads = made(device, dtype, shapes)
    optimizer = BUILDS[name]([{"params": parameters}], **options)
    go(optimizer, parameters, grads, range(2))
    copies = [(shape, nn.Parameter(p.detach().clone())) for shape, p in parameters]
    resumed = BUILDS[name]([{"params": copies}], **options)
    resumed.load_state_dict(optimizer.state_dict())
    go(optimizer, parameters, grads, range(2, 3))
    go(resumed, copies, grads, range(2, 3))
    other, others = made(device, dtype, shapes[::-1])
    turned = BUILDS[name]([{"params": other}], **options)
    go(turned, other, others, range(3))
    for (_, p), (_, q), (_, r) in zip(parameters, copies, other[::-1], strict=True):
        assert torch.equal(p, q) and torch.equal(p, r)


def test_adamw_by_kernel_is_torchs_and_resumes_from_its_state(device):
    found = []
    for impl in ("torch", "triton"):
        parameters, grads = made(device, shapes=["matrix", "vector", "batched"])
        optimizer = adamw([{"params": parameters, "lr": 1e-2, "weight_decay": 0.1}], impl=impl)
        go(optimizer, parameters, grads, range(3))
        copies = [(shape, nn.Parameter(p.detach().clone())) for shape, p in parameters]
        resumed = adamw([{"params": copies, "lr": 1e-2, "weight_decay": 0.1}], impl="triton")
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch's load shares tensors
        go(resumed, copies, grads, range(3, COUNT))
        go(optimizer, parameters, grads, range(3, COUNT))
        found += [parameters, copies]
    assert all(torch.equal(p, q) for (_, p), (_, q) in zip(found[2], found[3], strict=True))
    for candidate in found[1:]:
        for (shape, p), (_, q) in zip(candidate, found[0], strict=True):
            assert travelled_error(p, q.detach(), parameter(shape).detach().to(device)) <= 1e-5


def test_who_computes_is_chosen_by_device_and_can_be_told(device, monkeypatch):
    taken = []
    monkeypatch.setattr(CAME, "_together", lambda self, parts, states, group, step, seeds, impl: taken.append(impl))
    for impl in ("auto", "eager", "triton"):
        parameters, grads = made(device, shapes=["matrix"])
        go(CAME([{"params": parameters}], warmup_steps=1, impl=impl), parameters, grads, range(1))
    assert taken == (["triton", "triton"] if device == "cuda" else ["triton"])
    with pytest.raises(ValueError, match=r"impl.*auto, eager, compile, native, triton"):
        CAME(parameters, warmup_steps=1, impl="cuda")


def test_without_a_compiler_a_compiled_optimizer_runs_eagerly_and_says_so(monkeypatch):
    from train.optim import sharded

    monkeypatch.setattr(sharded, "why_not", lambda device: "no C++ compiler (g++)")
    sharded._can_compile.cache_clear()
    found = []
    for impl in ("compile", "eager"):
        p = parameter("matrix")
        optimizer = CAME([p], warmup_steps=1, impl=impl)
        p.grad = gradients(p)[0]
        if impl == "compile":
            with pytest.warns(UserWarning, match=r"eagerly, not compiled: no C\+\+ compiler"):
                optimizer.step()
        else:
            optimizer.step()
        found.append(p)
    sharded._can_compile.cache_clear()
    assert torch.equal(*found)


def test_rules_without_a_step_over_many_tensors_are_eager_whatever_is_asked(device):
    parameters, grads = made(device, shapes=["matrix"])
    go(Lion([{"params": parameters}], lr=1e-3), parameters, grads, range(1))
