"""The compiled steps, as inductor generates them for the CPU and as they are in C++, follow the papers as the eager ones do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.train.optim.cases import gradients, parameter, travelled_error
from tests.train.optim.papers import PaperAdafactor, PaperCAME
from train.compiling import CompileCount, why_not
from train.kernels import adafactor_step
from train.kernels.native import library
from train.optim.adafactor import Adafactor
from train.optim.came import CAME

RULES = {
    "adafactor": (lambda p, impl: Adafactor(p, weight_decay=0.1, impl=impl), lambda: PaperAdafactor(weight_decay=0.1)),
    "adafactor_momentum": (lambda p, impl: Adafactor(p, beta1=0.9, impl=impl), lambda: PaperAdafactor(beta1=0.9)),
    "came": (lambda p, impl: CAME(p, lr=1e-3, warmup_steps=1, weight_decay=0.1, impl=impl), lambda: PaperCAME(weight_decay=0.1)),
}
needs_native = pytest.mark.skipif(bool(library.why_not()), reason=library.why_not())


@pytest.mark.skipif(bool(why_not(torch.device("cpu"))), reason=why_not(torch.device("cpu")))
@pytest.mark.parametrize("rule", ["adafactor", "came"])
def test_twenty_compiled_steps_follow_the_paper(rule: str) -> None:
    count, p = CompileCount(), parameter("matrix")
    assert error_after_twenty_steps(rule, p, "compile") < 1e-5
    assert count.graphs == 1


@needs_native
@pytest.mark.parametrize("shape", ["matrix", "one_row", "one_column", "blocks", "wide"])
@pytest.mark.parametrize("rule", RULES)
def test_twenty_native_steps_follow_the_paper(rule: str, shape: str) -> None:
    wide = torch.randn(3, 4099, generator=torch.Generator().manual_seed(0)) * 0.02
    assert error_after_twenty_steps(rule, nn.Parameter(wide) if shape == "wide" else parameter(shape), "native") < 1e-5


def error_after_twenty_steps(rule: str, p: nn.Parameter, impl: str) -> float:
    build, paper = RULES[rule]
    optimizer, oracle = build([p], impl), paper()
    start = reference = p.detach().double().clone()
    for g in gradients(p):
        p.grad = g.clone()
        optimizer.step()
        reference = oracle(reference, g.double())
    return travelled_error(p, reference, start)


@needs_native
def test_the_number_of_threads_changes_no_bit_of_a_native_step() -> None:
    """One matrix is large enough for all threads to share its passes."""
    found = []
    for threads in (1, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            generator = torch.Generator().manual_seed(0)
            params = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((1100, 500), (40, 30), (7, 90))]
            optimizer = RULES["came"][0](params, "native")
            for _ in range(2):
                for p in params:
                    p.grad = torch.randn(p.shape, generator=generator)
                optimizer.step()
        finally:
            torch.set_num_threads(before)
        found.append(params)
    assert all(torch.equal(p, q) for p, q in zip(*found, strict=True))


@needs_native
def test_a_native_step_tells_autograd_that_weights_changed_and_refuses_what_it_cannot_read() -> None:
    p = parameter("matrix")
    loss = (p * p).sum()
    loss.backward(retain_graph=True)
    RULES["came"][0]([p], "native").step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    weight, rows, columns = torch.ones(4, 6), torch.ones(4), torch.ones(6)
    for wrong in (torch.ones(6, 4).t(), torch.ones(4, 6, dtype=torch.float64), torch.ones(4, 5)):
        with pytest.raises(ValueError, match="contiguous FP32"):
            adafactor_step([weight], [wrong], ([rows], [columns]), step=1, impl="native")


def test_a_compiler_that_fails_is_told_with_what_it_said(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no such machine >&2\nexit 1\n")
    broken.chmod(0o755)
    code = "from train.kernels.native import library; print(library.why_not())"
    environment = {**os.environ, "CXX": str(broken), "XDG_CACHE_HOME": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
    assert "failed: no such machine" in said
