"""Safetensors files: a length, a JSON header of names, types, shapes and offsets, then raw bytes. Reading runs no code of the file."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from schemas.errors import LakeError

_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "U8": torch.uint8}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_LONGEST_HEADER = 100_000_000


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors in the order of their names; the same tensors give the same bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            file.write(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def read_tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and tensors of a file, as views of the mapped file.

    Raises:
        LakeError: it is no safetensors file, or was cut short.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        (length,) = struct.unpack_from("<Q", mapped)
        if length > min(_LONGEST_HEADER, len(mapped) - 8):
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(mapped[8 : 8 + length])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            first, end = entry["data_offsets"]
            dtype, shape = _TYPES[entry["dtype"]], tuple(entry["shape"])
            if not 0 <= first <= end <= len(mapped) - 8 - length or end - first != dtype.itemsize * torch.Size(shape).numel():
                raise ValueError(f"{name} has offsets {first} and {end} for {entry['dtype']} of shape {shape}")
            flat = torch.frombuffer(mapped, dtype=torch.uint8, count=end - first, offset=8 + length + first) if end > first else None
            yield name, torch.empty(shape, dtype=dtype) if flat is None else _typed(flat, dtype).view(shape)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise LakeError(f"not a safetensors file: {error}", where=str(path), fix="get the file again") from error


def _typed(flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return flat.view(dtype) if flat.data_ptr() % dtype.itemsize == 0 else flat.clone().view(dtype)
