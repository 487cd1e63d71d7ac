"""Saves checkpoints beside the training: a copy is taken between two steps, and a thread makes it durable while training goes on.

Failure model. One save is pending at most; the next, an interrupt and the end of the stage wait for it. Until it is durable nothing names
it and nothing older is pruned, so a process that dies meanwhile resumes from the checkpoint before. Where parameters are split each rank
writes its own part into one staging folder and then says so in a file; rank 0 publishes the whole when all have.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from schemas.store import TEMPORARY
from train.checkpoint import prune, publish_parts, write_part
from train.parallel import Ranks
from train.sharding import to_pieces

PARTS_SECONDS = 10.0
"""How long a run that ends waits for other ranks' parts of a checkpoint."""


class Saver:
    """Saves a stage's checkpoints.

    Args:
        root: the lake.
        folder: the stage's folder in it.
        ranks: all ranks.
        asynchronous: return once a copy is taken.
        last: newest checkpoints that stay.
        every: checkpoints before steps that are multiples of it stay too; 0 is none.

    Attributes:
        seconds: how long the last save took until it was durable, None before any.
    """

    def __init__(self, root: Path, folder: str, ranks: Ranks, *, asynchronous: bool, last: int, every: int) -> None:
        self.root, self.folder, self.ranks, self.asynchronous = root, folder, ranks, asynchronous
        self.last, self.every = last, every
        self.seconds: float | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._copy: dict[str, Any] = {}
        self._left = math.inf

    def save(self, path: str, tensors: Callable[[], dict[str, Any]], state: dict[str, Any], keep: set[str]) -> None:
        """Save a checkpoint; every rank must call.

        Args:
            path: its place in the lake.
            tensors: gives what to save; called on ranks that write.
            state: saved as JSON.
            keep: checkpoints that stay whatever their age.

        Raises:
            LakeError: this save or the one before cannot be written.
        """
        self.wait()
        began = time.perf_counter()
        staging = self.ranks.broadcast(f"{TEMPORARY}{secrets.token_hex(8)}-{Path(path).name}")
        if self.ranks.part is not None:
            found = {name: to_pieces(value) for name, value in tensors().items()}
            arrived = None
            if self.asynchronous:
                found = self._copy = copied(found, self._copy)
                if self.ranks.device.type == "cuda":
                    arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                    arrived.record()

            def work() -> None:
                if arrived is not None:
                    arrived.synchronize()
                self._write(path, staging, found, state, keep, began)

            self._start(work)
        if not self.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Wait until what is pending is durable; every rank must call.

        Raises:
            LakeError: it could not be written.
        """
        self.close()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        self.ranks.broadcast(None)

    def leave(self) -> None:
        """Wait for this rank's pending work at the end of the run, and no longer than ``PARTS_SECONDS`` for that of other ranks."""
        self._left = time.monotonic()
        self.close()

    def close(self) -> None:
        """Wait for this rank's pending work, whatever becomes of it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # told by wait, in the main thread
                self._error = error

        self._thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self._thread.start()

    def _write(self, path: str, staging: str, tensors: dict[str, Any], state: dict[str, Any], keep: set[str], began: float) -> None:
        folder = (self.root / path).parent / staging
        part, parts = self.ranks.part or 0, self.ranks.parts
        write_part(folder, tensors, part, parts)
        if self.ranks.first:
            publish_parts(folder, self.root / path, state, parts, lambda: time.monotonic() > self._left + PARTS_SECONDS)
            prune(self.root, self.folder, keep, self.last, self.every)
        self.seconds = time.perf_counter() - began


def copied(value: Any, into: Any) -> Any:
    """Copy tensors, in dicts, lists and tuples, to the CPU; into those of an earlier copy where they fit, whose pages are there already."""
    if isinstance(value, dict):
        return {key: copied(inner, into.get(key) if isinstance(into, dict) else None) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        before = into if isinstance(into, list | tuple) and len(into) == len(value) else [None] * len(value)
        return type(value)(copied(inner, old) for inner, old in zip(value, before, strict=True))
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if hasattr(value, "__tensor_flatten__"):  # a packaged optimizer's state of several tensors
        return value.clone().cpu()
    if not isinstance(into, torch.Tensor) or (into.shape, into.dtype) != (value.shape, value.dtype):
        into = room_for(value)
    return into.copy_(value, non_blocking=value.is_cuda)


def room_for(value: torch.Tensor) -> torch.Tensor:
    """Memory of the CPU for a copy: pinned for what is on a CUDA device, if there is so much (else copies are slower, and wait)."""
    if value.is_cuda:
        with contextlib.suppress(RuntimeError):
            return torch.empty_like(value, device="cpu", pin_memory=True)
    return torch.empty_like(value, device="cpu")
