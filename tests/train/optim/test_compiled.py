"""The compiled steps, as inductor generates them for the CPU, follow the papers as the eager ones do."""

import pytest
import torch

from tests.train.optim.cases import gradients, parameter, travelled_error
from tests.train.optim.papers import PaperAdafactor, PaperCAME
from train.compiling import CompileCount, why_not
from train.optim.adafactor import Adafactor
from train.optim.came import CAME

RULES = {
    "adafactor": (lambda p: Adafactor(p, weight_decay=0.1, impl="compile"), lambda: PaperAdafactor(weight_decay=0.1)),
    "came": (lambda p: CAME(p, lr=1e-3, warmup_steps=1, weight_decay=0.1, impl="compile"), lambda: PaperCAME(weight_decay=0.1)),
}


@pytest.mark.skipif(bool(why_not(torch.device("cpu"))), reason=why_not(torch.device("cpu")))
@pytest.mark.parametrize("rule", RULES)
def test_twenty_compiled_steps_follow_the_paper(rule: str) -> None:
    build, paper = RULES[rule]
    count, p = CompileCount(), parameter("matrix")
    optimizer, oracle = build([p]), paper()
    start = reference = p.detach().double().clone()
    for g in gradients(p):
        p.grad = g.clone()
        optimizer.step()
        reference = oracle(reference, g.double())
    assert count.graphs == 1
    assert travelled_error(p, reference, start) < 1e-5
