"""What a person sees: one line that is drawn again on a terminal, few lines elsewhere, nothing from other ranks."""

from __future__ import annotations

import io

import train.progress
from train.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_live_line_that_other_lines_replace():
    stream = Terminal()
    progress = Progress("code", 2, 4, stream=stream)
    progress.step(3, 2.5, 12_345.0)
    progress.line("held out 2.4")
    progress.step(4, 2.0, 12_345.0)
    progress.close()
    text = stream.getvalue()
    assert "[###############.....] code  3/4  loss 2.500  12.3 k tokens/s" in text and "left" in text
    assert text.count("\n") == 2 and text.endswith("\n")
    first, second = text.split("\n")[:2]
    assert first.endswith("held out 2.4") and first.count("\r") == 3 and "4/4" in second


def test_elsewhere_lines_are_few_and_plain(monkeypatch):
    monkeypatch.setattr(train.progress, "_QUIET_SECONDS", 3600.0)
    stream = io.StringIO()
    progress = Progress("code", 0, 100, stream=stream)
    for done in range(1, 101):
        progress.step(done, 1.0, 100.0)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2 and "\r" not in stream.getvalue() and lines[-1].startswith("code  100/100")
    silent = io.StringIO()
    other = Progress("code", 0, 1, shown=False, stream=silent)
    other.step(1, 1.0, 1.0)
    other.line("x")
    other.close()
    assert silent.getvalue() == ""
