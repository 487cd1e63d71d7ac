"""Signals that a function of the user's own computes: what it is given, and what it must return."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import GristmillError, RecipeError
from schemas.store import checksum

BATCH = 1024
"""Documents of a batch, counted from the beginning of the shard whatever the run's settings."""

GIVEN = ("doc_id", "source", "id", "text", "url", "date", "license", "meta")
"""Columns of the batches that a function gets."""

Function = Callable[[pa.RecordBatch], Any]


class ScoreError(GristmillError):
    """A user's function that failed, or returned something else than a number for each document."""


def code_of(name: str) -> dict[str, str | None]:
    """What of a function's name belongs to a step's key: its file's content and no path, or its module's name."""
    place, _, function = name.partition(":")
    return {"function": function, "module": None if _is_file(place) else place, "file": checksum(Path(place)) if _is_file(place) else None}


def _is_file(place: str) -> bool:
    return place.endswith(".py")


@lru_cache(maxsize=32)
def load_function(name: str, where: str) -> Function:
    """Import ``package.module:function`` or ``path/file.py:function``.

    Raises:
        RecipeError: there is no such module, file or function; or importing it fails.
    """
    place, colon, attribute = name.partition(":")
    if not colon or not place or not attribute:
        raise RecipeError(f"{name!r} names no function", where=where, fix="write package.module:function, or file.py:function")
    try:
        module: Any = _file_module(place) if _is_file(place) else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise RecipeError(
            f"{place} cannot be imported: {_said(error)}",
            where=where,
            fix="install it, add its folder to PYTHONPATH, or name a .py file beside the recipe",
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise RecipeError(f"{place} has no function {attribute!r}", where=where, fix="correct the name after the colon")
    return found  # type: ignore[no-any-return]


def _file_module(place: str) -> Any:
    name = f"gristmill_signal_{checksum(Path(place))}"
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def score(function: Function, documents: pa.Table, name: str, where: str) -> pa.Array:
    """The function's value for each document, float64; NaN is null.

    Args:
        function: called with record batches of columns ``GIVEN``, ``doc_id`` as binary.
        documents: a documents shard.
        name: how the recipe names the function.
        where: signal and shard, for messages.

    Raises:
        ScoreError: the function raised, or returned another number of values, or no numbers; says for which documents.
    """
    parts: list[pa.Array] = []
    for first in range(0, documents.num_rows, BATCH):
        part = documents.slice(first, BATCH).combine_chunks()
        at = f"{where}, documents {first} to {first + part.num_rows - 1}"
        try:
            result = function(part.to_batches()[0])
        except (Exception, SystemExit) as error:  # whose code 0 would end the run as if all were done
            raise ScoreError(f"{name} raised {_said(error)}", where=at, fix="correct the function, then run again") from error
        parts.append(_numbers(result, part.num_rows, name, at))
    return pa.concat_arrays(parts) if parts else pa.array([], pa.float64())


def _said(error: BaseException) -> str:
    """An exception's type, words, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {error} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def _numbers(result: Any, rows: int, name: str, where: str) -> pa.Array:
    """A function's result as float64.

    Raises:
        ScoreError: it is not one number for each document.
    """
    fix = "return a list, a NumPy array or an Arrow array with one number (or null) for each document"
    try:
        array = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
        if not isinstance(array, pa.Array):
            array = pa.array(array if isinstance(array, list) else np.asarray(array))
    except (ValueError, TypeError, NotImplementedError, OverflowError) as error:
        raise ScoreError(f"{name} returned {type(result).__name__}, which is no array: {error}", where=where, fix=fix) from error
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise ScoreError(f"{name} returned values of type {kind}", where=where, fix=fix)
    if len(array) != rows:
        raise ScoreError(f"{name} returned {len(array)} values for {rows} documents", where=where, fix=fix)
    if pa.types.is_boolean(kind) or pa.types.is_float16(kind):
        array = array.cast(pa.int8() if pa.types.is_boolean(kind) else pa.float32())
    values = array.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)
