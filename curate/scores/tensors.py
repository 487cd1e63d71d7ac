"""Files of the safetensors format: a length, a JSON header, and the arrays' bytes. Nothing in them is ever run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import InputError

_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
_MOST_HEADER = 1 << 20
METADATA = "__metadata__"


def write_tensors(path: Path, arrays: Mapping[str, NDArray[np.float32]], note: Mapping[str, object]) -> None:
    """Write float32 arrays and a note (as JSON in the metadata's key ``gristmill``); the same values give the same bytes."""
    header: dict[str, object] = {METADATA: {"gristmill": json.dumps(note, sort_keys=True)}}
    place, parts = 0, []
    for name, array in sorted(arrays.items()):
        data = np.ascontiguousarray(array, dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [place, place + len(data)]}
        place += len(data)
        parts.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def read_tensors(path: Path) -> tuple[dict[str, NDArray[np.float32]], dict[str, object]]:
    """Arrays and note of a file of ``write_tensors``.

    Raises:
        InputError: no such file, or it is damaged or of another kind.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), fix="check the path") from error
    try:
        size = int.from_bytes(content[:8], "little")
        if not 0 < size <= _MOST_HEADER:
            raise ValueError("its header has an impossible length")
        header = json.loads(content[8 : 8 + size])
        note = json.loads(header.pop(METADATA)["gristmill"])
        return {name: _array(content, 8 + size, entry) for name, entry in header.items()}, dict(note)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"no classifier: {error}", where=str(path), fix="make one with `gristmill classify train GOOD BAD -o FILE`"
        ) from error


def _array(content: bytes, base: int, entry: Mapping[str, Any]) -> NDArray[np.float32]:
    first, last = (int(place) for place in entry["data_offsets"])
    shape = [int(size) for size in entry["shape"]]
    kind = _TYPES[entry["dtype"]]
    count = int(np.prod(shape))
    if not 0 <= first <= last <= len(content) - base or last - first != kind.itemsize * count:
        raise ValueError("an array reaches beyond the file")
    return np.frombuffer(content, kind, count, base + first).reshape(shape).astype(np.float32)
