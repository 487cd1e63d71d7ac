"""What signals ask of a trainer."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import pytest

from train import interrupt
from train.interrupt import Interrupt


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[Interrupt, list[int], list[float]]:
    """An interrupt, the exit codes that it left with, and its clock."""
    left: list[int] = []
    clock = [100.0]
    monkeypatch.setattr(interrupt, "os", SimpleNamespace(_exit=left.append))
    monkeypatch.setattr(interrupt, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return Interrupt(), left, clock


def test_sigterm_from_several_sides_lets_it_save(asked: tuple[Interrupt, list[int], list[float]]) -> None:
    came, left, clock = asked
    for _ in range(3):
        came._handle(signal.SIGTERM, None)
        clock[0] += 10
    assert came.came and left == []


def test_a_second_ctrl_c_leaves_at_once_but_not_one_that_torchrun_passed_on(asked: tuple[Interrupt, list[int], list[float]]) -> None:
    came, left, clock = asked
    came._handle(signal.SIGINT, None)
    clock[0] += 0.2
    came._handle(signal.SIGINT, None)
    assert came.came and left == []
    clock[0] += 2
    came._handle(signal.SIGINT, None)
    assert left == [130]


def test_signals_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    came = Interrupt()
    try:
        came.install()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)
        assert came.signal is signal.SIGTERM
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
