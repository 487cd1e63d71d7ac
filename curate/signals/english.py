"""The tables of the English tokenizer, and how compiled code looks strings up in them by hash."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from curate.signals.code_points import point_of
from curate.signals.hashing import SPREAD, following, home, part
from curate.signals.kernels import at, small

SLOTS_SHIFT = np.uint64(64 - 12)
"""Exceptions and units live in tables of 4,096 slots."""
FILTER_SHIFT = np.uint64(64 - 15)
"""Filters have 32,768 bits: four kilobytes, which stay in the first cache."""
MAX_EXCEPTION = 16
LAST_LENGTH = np.uint32(255)


class Rules(NamedTuple):
    """The tables that splitting looks at; a tuple of arrays, so that compiled code takes it as an argument."""

    classes: npt.NDArray[np.uint32]
    points: npt.NDArray[np.uint32]  # the code point of each byte of a text coded in bytes; texts of wider codes do without
    powers: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint32]  # by first character (all from 255 on together), bit k: an exception of k characters starts so
    keys: npt.NDArray[np.uint64]  # exceptions by hash, open addressing; 0 is free
    cuts: npt.NDArray[np.uint32]  # bit k: a word of the exception starts at its k-th character
    joins: npt.NDArray[np.uint32]  # the same for the words it would fall into; 0 where joining cannot happen
    known: npt.NDArray[np.uint64]  # a filter of the exceptions
    join_starts: npt.NDArray[np.uint64]  # a filter of the first words of joinable exceptions
    units: npt.NDArray[np.uint64]  # units by hash


@small
def in_filter(bits, key):  # type: ignore[no-untyped-def]
    """Whether a key may be in the set that a filter was made of."""
    place = (key * SPREAD) >> FILTER_SHIFT
    return (bits[place >> np.uint64(6)] >> (place & np.uint64(63))) & np.uint64(1)


@small
def slot_of(keys, key):  # type: ignore[no-untyped-def]
    """The slot that holds a key, or -1."""
    slot = home(key, SLOTS_SHIFT)
    while keys[slot] != 0:
        if keys[slot] == key:
            return np.int64(slot)
        slot = following(keys, slot)
    return -1


@small
def exception_slot(rules, key):  # type: ignore[no-untyped-def]
    """The slot of the exception with this hash, or -1."""
    return slot_of(rules.keys, key) if in_filter(rules.known, key) else -1


@small
def exception_at(rules, s, prefix, a, b):  # type: ignore[no-untyped-def]
    """The slot of the exception that s[a:b] is, or -1."""
    if (
        b - a > MAX_EXCEPTION
        or b <= a
        or not (at(rules.lengths, min(point_of(rules.points, s, a), LAST_LENGTH)) >> np.uint32(b - a)) & np.uint32(1)
    ):
        return -1
    return exception_slot(rules, part(prefix, rules.powers, a, b))
