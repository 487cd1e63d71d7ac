"""Repeated lines, paragraphs and runs of tokens: what is compared, and texts without what came before."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.dedup.lines import LINES_VERSION, Units, cut_units, repeats, split_units
from curate.dedup.substrings import SUBSTRINGS_VERSION, split_windows
from curate.edit.record import Edited, Failed

Json = Any
REPEATED_VERSION = LINES_VERSION + SUBSTRINGS_VERSION
"""Raised whenever the outcome for any texts changes."""


def compared(texts: pa.LargeStringArray, settings: Json) -> tuple[Units, npt.NDArray[np.bool_]]:
    """Units of texts, and which of them are long enough to be compared."""
    if settings["edit"] == "substrings":
        units = split_windows(texts, settings["min_tokens"])
        return units, np.ones(len(units.row), np.bool_)
    units = split_units(texts, "line" if settings["edit"] == "lines" else "paragraph")
    return units, units.size >= settings["min_bytes"]


def overlap(settings: Json) -> int:
    """How many units in a row overlap the first of them, itself counted."""
    return int(settings.get("min_tokens", 1))


class CutRepeated:
    """Cuts out units that are repeated, batch after batch of one shard.

    Args:
        settings: the recipe's edit.
        drops: for repeats in the whole corpus, which of the shard's compared units go, in order; None for repeats within documents.
    """

    def __init__(self, settings: Json, drops: npt.NDArray[np.bool_] | None) -> None:
        self.settings, self.drops, self.place = settings, drops, 0

    def __call__(self, texts: pa.LargeStringArray) -> Edited:
        """See ``curate.edit.record.Edited``; the next batch of the shard."""
        units, long = compared(texts, self.settings)
        drop = np.zeros(len(long), np.bool_)
        if self.settings["within"] == "document":
            drop[long] = repeats(units.hashes[long], units.row[long].astype(np.int64), overlap(self.settings))
        elif self.drops is not None:
            stop = self.place + int(np.count_nonzero(long))
            drop[long], self.place = self.drops[self.place : stop], stop
        cut, _ = cut_units(texts, units, drop)
        rows, first, last = runs(units, drop)
        count, removed = np.zeros((2, len(texts), 1), np.int64)
        np.add.at(count[:, 0], rows, 1)
        np.add.at(removed[:, 0], rows, last - first)
        return Edited(cut, [self.settings["edit"].removesuffix("s")], count, removed, np.zeros_like(removed), Failed.none())


def runs(units: Units, drop: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row, first byte and end of each cut; overlapping windows make one."""
    row, start, stop = (part[drop].astype(np.int64) for part in (units.row, units.start, units.stop))
    new = np.ones(len(row), np.bool_)
    new[1:] = (row[1:] != row[:-1]) | (start[1:] >= stop[:-1])
    first = np.flatnonzero(new)
    ends = np.append(first[1:], len(row)) - 1 if len(row) else first
    return row[first], start[first], stop[ends]
