"""SIGTERM and SIGINT ask the loop to save and leave; Ctrl-C again, a moment later, leaves at once.

One wish to stop often comes as several signals: a service manager signals every process, the flow that started this one passes its own on,
torchrun its own to each rank. So a further SIGTERM hastens nothing (SIGKILL does), and Ctrl-C only when it is a second one of a person.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

SAME_SECONDS = 1.0
"""Signals that come so close after the first are the same wish."""


class Interrupted(Exception):
    """The run was asked to stop and has saved."""


class Interrupt:
    """Whether a signal has come."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._since = 0.0

    def install(self) -> None:
        """Take over both signals; only the main thread may call this."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal, self._since = signal.Signals(number), time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._since > SAME_SECONDS:
            os._exit(128 + number)

    @property
    def came(self) -> bool:
        """Whether to save and leave."""
        return self.signal is not None
