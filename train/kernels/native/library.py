"""The C++ steps as a shared library: compiled once for a machine, source and compiler, then found in the user's cache.

Failure model: the library is compiled under a passing name and renamed into place, so that a killed build leaves nothing that would be
loaded and several processes may build at once.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from schemas.working_copy import cache_folder

_SOURCE = Path(__file__).with_name("factored_steps.cpp")
_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fopenmp-simd", "-std=c++17", "-shared", "-fPIC", "-pthread")


@functools.cache
def library() -> ctypes.CDLL:
    """Return the loaded library, compiled where the cache has none for this machine.

    Raises:
        RuntimeError: no compiler, or one that fails; with what it said.
    """
    folder = cache_folder() / "native"
    path = folder / f"{_SOURCE.stem}-{key()}.so"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".") as passing:
                built = Path(passing, path.name)
                _run([_compiler(), *_FLAGS, str(_SOURCE), "-o", str(built)])
                built.replace(path)
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeError(f"the compiled steps cannot be kept or loaded: {error}") from error
    for name in ("adafactor_step", "came_step"):
        function = getattr(loaded, name)
        function.restype = None
        function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    return loaded


@functools.cache
def key() -> str:
    """Return what the library's results depend on, as hexadecimal digits: its source, the compiler's version, this machine's instructions.

    Raises:
        RuntimeError: no compiler, or one that fails.
    """
    machine = _run([_compiler(), "-march=native", "-dM", "-E", "-x", "c++", os.devnull])  # the macros that a compiler predefines
    text = "\0".join([_SOURCE.read_text(encoding="utf-8"), *_FLAGS, machine])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@functools.cache
def why_not() -> str:
    """Return why this machine cannot have the library, empty when it can."""
    try:
        library()
    except RuntimeError as error:
        return str(error)
    return ""


def _compiler() -> str:
    found = next(filter(None, map(shutil.which, (os.environ.get("CXX") or "g++", "g++", "clang++"))), None)
    if found is None:
        raise RuntimeError("no C++ compiler (g++)")
    return found


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{command[0]} failed: {error.stderr.strip()[-500:]}") from error
