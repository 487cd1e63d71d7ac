"""SIGTERM and SIGINT: the first asks the loop to save and leave, a second one leaves at once."""

from __future__ import annotations

import os
import signal
from types import FrameType


class Interrupted(Exception):
    """The run was asked to stop and has saved."""


class Interrupt:
    """Whether a signal has come."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def install(self) -> None:
        """Take over both signals; only the main thread may call this."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            os._exit(128 + number)
        self.signal = signal.Signals(number)

    @property
    def came(self) -> bool:
        """Whether to save and leave."""
        return self.signal is not None
