"""What every kernel's launch needs: rows of a strided tensor, the shape of a tile, and the number of programs that share a reduction."""

from __future__ import annotations

import torch
import triton

# Elements of a tile: enough bytes in flight for each program without spilling registers.
_TILE = 2048
_WIDEST = 1 << 16
_PROGRAMS_PER_PROCESSOR = 4
# The interpreter runs programs one after another: a few are enough to test that they share the work.
_INTERPRETED_PROGRAMS = 4


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as (rows, last dimension): a view where the strides allow it, else a copy."""
    shape = (tensor.shape[:-1].numel(), tensor.shape[-1])
    try:
        return tensor.view(shape)
    except RuntimeError:
        return tensor.reshape(shape)


def whole_row_tile(columns: int) -> tuple[int, int]:
    """Return (rows, columns) of a tile that spans whole rows.

    Raises:
        ValueError: for rows that no program can hold.
    """
    width = triton.next_power_of_2(columns)
    if width > _WIDEST:
        raise ValueError(f"this kernel holds rows of at most {_WIDEST} elements, got {columns}; use impl='eager'")
    return max(1, _TILE // width), width


def tile(columns: int) -> tuple[int, int]:
    """Return (rows, columns) of a tile; the columns are a multiple of 8 and may be fewer than a row has."""
    width = max(8, min(_TILE // 2, triton.next_power_of_2(columns)))
    return max(1, _TILE // width), width


def warps(elements: int) -> int:
    """Return warps for a tile of 2^n elements: about 8 elements a thread."""
    return min(16, max(1, elements // 256))


def sharers(tiles: int, device: torch.device) -> int:
    """Return how many programs share ``tiles`` tiles when each sums over its own before it writes."""
    limit = _INTERPRETED_PROGRAMS
    if device.type == "cuda":
        limit = _PROGRAMS_PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(tiles, limit))
