"""Counts the bytes of tensors that are alive, by their storages: what eager operations allocated and nothing has freed."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Within the context, ``now`` is the bytes alive of all that was allocated in it, and ``peak`` the most there was."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage(), known)
        return out

    def _add(self, storage: torch.UntypedStorage, known: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in known or key in self._alive:
            return

        def gone(_: Any) -> None:
            self.now -= size
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)
