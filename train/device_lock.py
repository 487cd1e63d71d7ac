"""A GPU belongs to one trainer at a time: an operating-system lock by device, held by the process that uses it.

The kernel frees it when the process dies, however it dies. A slot in an orchestrator's database stays taken by a killed process for
minutes, and knows nothing of a trainer that was started by hand.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from schemas.errors import GristmillError
from schemas.store import taken


@contextlib.contextmanager
def device_lock(device: torch.device) -> Iterator[None]:
    """Hold a CUDA device; other devices are not locked.

    Raises:
        GristmillError: another live trainer holds it (the message names its process).
    """
    if device.type != "cuda":
        yield
        return
    with exclusive(str(torch.cuda.get_device_properties(device).uuid), str(device)):
        yield


@contextlib.contextmanager
def exclusive(name: str, shown: str) -> Iterator[None]:
    """Hold this machine's lock of a name; the file stays, since removing one that another process has open would make two locks.

    Raises:
        GristmillError: a live process holds it.
    """
    path = Path(tempfile.gettempdir()) / f"gristmill-gpu-{name}.lock"
    descriptor = _open(path)
    try:
        if not taken(descriptor):
            holder = os.pread(descriptor, 32, 0).decode("utf-8", "replace").strip() or "?"
            fix = "wait for it to end or stop it (SIGTERM: it saves), or choose another device by CUDA_VISIBLE_DEVICES; then run again"
            raise GristmillError(f"a trainer is at work on this device already (process {holder})", where=shown, fix=fix)
        with contextlib.suppress(OSError):  # another user's file, which can be locked and not written to
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)  # made by another user: reading is enough for a lock
