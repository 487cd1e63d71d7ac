"""How the compiled functions of this package are built, and what ties compiled code on disk to its sources.

Kernels are compiled without numba's runtime: they allocate nothing, and counting references to the arrays they pass on made splitting
words three times slower. They are not cached one by one, since numba's cache looks only at the file of the function that is called, not
at the files of the functions it calls. Only entry points are cached; each captures `sources_digest()`, and as numba keys its cache by
captured values, a change anywhere compiles anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles a function that allocates nothing; it runs without the GIL."""
    return njit(nogil=True, _nrt=False)(function)  # type: ignore[call-overload]


def small(function: Callable[..., Any]) -> Any:
    """Like `kernel`, for functions that are compiled into their callers: each array of an argument costs a call seven words."""
    return njit(nogil=True, _nrt=False, forceinline=True)(function)  # type: ignore[call-overload]


def inlined(function: Callable[..., Any]) -> Any:
    """Like `kernel`, for small functions that are copied into their callers."""
    return njit(nogil=True, _nrt=False, inline="always")(function)  # type: ignore[call-overload]


@inlined
def at(array, place):  # type: ignore[no-untyped-def]
    """array[place] of a place that is not negative; a signed one would first be asked whether it counts from the end."""
    return array[np.uint64(place)]


def sources_digest(*sources: str) -> int:
    """63 bits of a hash of every source file of this package and of the signals schema; or of the given files alone, and this one."""
    here = Path(__file__).parent
    files = [*sorted(here.glob("*.py")), here.parent.parent / "schemas" / "signals.py"]
    if sources:
        files = [Path(__file__), *map(Path, sources)]
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        digest.update(file.read_bytes())
    return int.from_bytes(digest.digest(), "big") >> 1
