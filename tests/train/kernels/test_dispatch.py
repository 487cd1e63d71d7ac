"""Every operation has an eager, a compiled and a Triton implementation behind one function, and runs without triton."""

import subprocess
import sys

import pytest
import torch

from train.kernels import add_rms_norm, bias_gelu_dropout, layer_norm, linear_cross_entropy, rms_norm, rope, swiglu

ROW, WEIGHT, ANGLE = torch.randn(4, 6, 8), torch.randn(8), torch.randn(6, 4)
OPERATIONS = {
    "rms_norm": lambda impl: rms_norm(ROW, WEIGHT, impl=impl),
    "add_rms_norm": lambda impl: add_rms_norm(ROW, ROW, WEIGHT, impl=impl),
    "layer_norm": lambda impl: layer_norm(ROW, WEIGHT, WEIGHT, impl=impl),
    "rope": lambda impl: rope(ROW[:, :, None], ROW[:, :, None], ANGLE, ANGLE, impl=impl),
    "swiglu": lambda impl: swiglu(ROW, ROW, impl=impl),
    "bias_gelu_dropout": lambda impl: bias_gelu_dropout(ROW, WEIGHT, 0.2, 1, 2, impl=impl),
    "linear_cross_entropy": lambda impl: linear_cross_entropy(ROW[0], ROW[1], torch.arange(6) % 6, impl=impl),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_compiled_equals_eager(name, monkeypatch):
    from train.kernels import dispatch

    # The graph is what is tested here; generating machine code for it takes half a minute.
    monkeypatch.setattr(dispatch, "compiled", lambda function: torch.compile(function, backend="aot_eager", fullgraph=True))
    for module in ("norm", "rotary", "activation"):
        monkeypatch.setattr(f"train.kernels.{module}.compiled", dispatch.compiled)
    torch.testing.assert_close(OPERATIONS[name]("compile"), OPERATIONS[name]("eager"))


@pytest.mark.parametrize("name", OPERATIONS)
def test_kernels_pass_torch_compile_in_one_graph(name):
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here, not interpreted")
    traced = torch.compile(lambda: OPERATIONS[name]("triton"), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(traced(), OPERATIONS[name]("eager"))


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_unknown_implementation_is_refused(name):
    with pytest.raises(ValueError, match="cuda_graph.*auto, eager, compile, triton"):
        OPERATIONS[name]("cuda_graph")


def test_kernels_refuse_float64_rather_than_round_it():
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match="float64"):
        rms_norm(ROW.double(), WEIGHT, impl="triton")


def test_without_triton_everything_but_kernels_works():
    code = """
import sys
sys.modules["triton"] = None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else find(name, *rest)
import torch
from train.kernels import rms_norm
assert rms_norm(torch.ones(2, 4), torch.ones(4)).shape == (2, 4)
try:
    rms_norm(torch.ones(2, 4), torch.ones(4), impl="triton")
except ValueError as error:
    assert "needs the package triton" in str(error), error
else:
    raise AssertionError("ran a kernel without triton")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
