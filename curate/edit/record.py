"""What an edit did: new texts, bytes removed and added by kind, and documents that it drops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.dedup.exact import text_buffers
from schemas.tables import CHANGE, EDITS

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

_A = np.uint64(0x9E3779B97F4A7C15)
_B = np.uint64(0xC2B2AE3D27D4EB4F)
_C = np.uint64(0x165667B19E3779F9)
_S29, _S31, _S32 = np.uint64(29), np.uint64(31), np.uint64(32)


@dataclass(frozen=True)
class Failed:
    """Documents that an edit drops: row, reason, and the value and threshold behind it (NaN where there is none)."""

    row: Int64
    rule: Sequence[str]
    value: Float64
    threshold: Float64

    @classmethod
    def none(cls) -> Failed:
        """No document."""
        return cls(np.empty(0, np.int64), [], np.empty(0), np.empty(0))


@dataclass(frozen=True)
class Edited:
    """What became of a batch of texts.

    Attributes:
        texts: the new texts; that of a document that failed is the old one.
        kinds: names of the kinds of change.
        counts: changes of each text by kind, shape (texts, kinds).
        removed: bytes taken away, counted where it is done and not from lengths, shape (texts, kinds).
        added: bytes put in, the same.
        failures: documents that the edit drops.
    """

    texts: pa.LargeStringArray
    kinds: Sequence[str]
    counts: Int64
    removed: Int64
    added: Int64
    failures: Failed


@numba.njit(nogil=True, cache=True)
def _hash_texts(data, offsets, out):  # type: ignore[no-untyped-def]
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        low, high = _B, _C
        at = start
        while at < end:
            block = np.uint64(0)
            for i in range(8):
                if at + i < end:
                    block |= np.uint64(data[at + i]) << np.uint64(8 * i)
            low = (low ^ block) * _A
            low ^= low >> _S32
            high = (high ^ (block * _C)) * _B
            high ^= high >> _S29
            at += 8
        size = np.uint64(end - start)
        low = ((low ^ size) * _C) ^ (high >> _S31)
        high = ((high ^ size) * _A) ^ (low >> _S31)
        out[row, 0], out[row, 1] = low, high


def text_hashes(texts: pa.LargeStringArray) -> npt.NDArray[np.uint64]:
    """128-bit hashes of the bytes of texts (not cryptographic), shape (texts, 2)."""
    data, offsets = text_buffers(texts)
    out = np.empty((len(texts), 2), np.uint64)
    _hash_texts(data, offsets, out)
    return out


def edit_rows(
    places: npt.NDArray[np.uint64], before: pa.LargeStringArray, done: Edited, versions: npt.NDArray[np.int32], step: int, edit: str
) -> tuple[npt.NDArray[np.bool_], pa.Table]:
    """Which texts changed, and their rows of the edits table less doc_id and source.

    Args:
        places: locator of each text.
        before: the texts as they were.
        done: what became of them.
        versions: text version of each before the edit.
        step: place of the edit in the recipe.
        edit: its name.
    """
    old, new = text_hashes(before), text_hashes(done.texts)
    changed = np.any(old != new, axis=1)
    rows = np.flatnonzero(changed)
    sizes = [np.diff(text_buffers(texts)[1])[rows] for texts in (before, done.texts)]
    amounts = [part[rows] for part in (done.counts, done.removed, done.added)]
    told = (amounts[0] != 0) | (amounts[1] != 0) | (amounts[2] != 0)
    kinds = pa.array(done.kinds, pa.string()).take(pa.array(np.nonzero(told)[1]))
    structs = pa.StructArray.from_arrays([kinds, *(pa.array(part[told]) for part in amounts)], fields=list(CHANGE))
    offsets = np.concatenate([[0], np.cumsum(told.sum(axis=1))]).astype(np.int32)
    columns = {
        "locator": places[rows],
        "step": pa.array(np.full(len(rows), step, np.int32)),
        "edit": pa.array([edit] * len(rows), pa.string()),
        "text_version": pa.array((versions[rows] + 1).astype(np.int32)),
        "changes": pa.ListArray.from_arrays(pa.array(offsets), structs, type=EDITS.field("changes").type),
        "removed": amounts[1].sum(axis=1),
        "added": amounts[2].sum(axis=1),
        "bytes_before": sizes[0],
        "bytes_after": sizes[1],
        "hash_before": _binary(old[rows]),
        "hash_after": _binary(new[rows]),
    }
    return changed, pa.table(columns)


def _binary(hashes: npt.NDArray[np.uint64]) -> pa.Array:
    data = np.ascontiguousarray(hashes).astype(">u8").tobytes()
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(hashes), [None, pa.py_buffer(data)])
