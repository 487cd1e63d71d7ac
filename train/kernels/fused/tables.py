"""Multi-tensor launches: a table of addresses and sizes, and a list of (tensor, block) that gives every program its work."""

# Triton's decorator hides types, and a kernel's arguments are pointers and scalars of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

ELEMENT = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_VECTOR = 16


@triton.jit
def field(entries, tensor, FIELDS: tl.constexpr, FIELD: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return a tensor's address of one kind, as a pointer; ``ALIGNED`` says that it is a multiple of 16."""
    address = tl.load(entries + tensor * FIELDS + FIELD)
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address.to(tl.pointer_type(DTYPE))


@triton.jit
def extent(entries, tensor, FIELDS: tl.constexpr, FIELD: tl.constexpr, WIDE: tl.constexpr):
    """Return a size from the table; ``WIDE`` says that it is a multiple of 16."""
    size = tl.load(entries + tensor * FIELDS + FIELD)
    if WIDE:
        size = tl.multiple_of(size, 16)
    return size


@dataclass(frozen=True)
class Table:
    """Entries for one launch.

    Attributes:
        entries: (n, fields) of int64: addresses of one tensor per field, then numbers, of which the last are sizes.
        work: (programs, 2) of int32: tensor and block of each program.
        blocks: most blocks of any tensor.
        aligned: every tensor starts at a multiple of 16 bytes, so that loads may be wide.
        wide: ``aligned``, and so are all rows of matrices: their length, the last size, is a multiple of 16.
    """

    entries: torch.Tensor
    work: torch.Tensor
    blocks: int
    aligned: bool
    wide: bool


def table(fields: Sequence[Sequence[torch.Tensor]], sizes: Sequence[Sequence[int]], blocks: Sequence[int]) -> Table:
    """Return the table of ``fields`` (each a list of n contiguous tensors), ``sizes`` (n rows) and ``blocks`` (n counts).

    Raises:
        ValueError: lists that differ in length, or a tensor that is not contiguous.
    """
    if any(len(field) != len(sizes) for field in fields):
        raise ValueError(f"a multi-tensor step needs one tensor of each kind per parameter; got {[len(field) for field in fields]}")
    if not all(tensor.is_contiguous() for field in fields for tensor in field):
        raise ValueError("a multi-tensor step needs contiguous parameters, gradients and states")
    device = fields[0][0].device
    rows = [[*(field[i].data_ptr() for field in fields), *size] for i, size in enumerate(sizes)]
    aligned = all(address % _VECTOR == 0 for row in rows for address in row[: len(fields)])
    counts = torch.tensor(blocks, dtype=torch.int32)
    owner = torch.repeat_interleave(torch.arange(len(blocks), dtype=torch.int32), counts)
    block = torch.arange(len(owner), dtype=torch.int32) - (counts.cumsum(0, dtype=torch.int32) - counts)[owner]
    # A copy from pageable memory is staged before it returns, so that neither table can be freed under it.
    return Table(
        entries=torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True),
        work=torch.stack((owner, block), dim=1).contiguous().to(device, non_blocking=True),
        blocks=max(blocks),
        aligned=aligned,
        wide=aligned and all(size[-1] % _VECTOR == 0 for size in sizes),
    )


def dtype_of(tensors: Sequence[torch.Tensor]) -> tl.dtype:
    """Return the element type that all tensors share, as kernels name it.

    Raises:
        ValueError: more than one dtype, or one that kernels do not take.
    """
    found = {tensor.dtype for tensor in tensors}
    if len(found) != 1 or not found <= set(ELEMENT):
        names = ", ".join(sorted(map(str, found)))
        raise ValueError(f"a multi-tensor step takes one of float32, bfloat16, float16 for all tensors of a kind; got {names}")
    return ELEMENT[found.pop()]
