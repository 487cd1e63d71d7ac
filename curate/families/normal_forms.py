"""Texts as RedPajama normalises them: without ASCII punctuation, in lower case, in NFD; compiled, but for the rare text that needs Python.

A code point becomes what Python makes of it alone. That is what it makes of the whole text, unless it holds a capital sigma, whose lower
case depends on its neighbours, or marks that NFD puts into another order.
"""

from __future__ import annotations

import string
import unicodedata
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from curate.signals.kernels import kernel

LIMIT = 0x40000
"""Code points from here on are neither letters, marks nor decomposed; they stay as they are."""
SEVERAL = np.uint32(1 << 31)
"""Set where a code point does not become a single one that starts a character; the other bits say where it is told what it becomes."""
PLACE = np.uint32((1 << 31) - 1)
SIGMA = 0x3A3
_DELETED = string.punctuation.encode()


class Forms(NamedTuple):
    """What each code point below LIMIT becomes; a tuple of arrays, so that compiled code takes it as an argument."""

    single: npt.NDArray[np.uint32]  # what it becomes, or SEVERAL and a place in `starts`
    starts: npt.NDArray[np.int32]  # where the code points of that place start; those of the first place are never used
    codes: npt.NDArray[np.uint32]
    orders: npt.NDArray[np.uint8]  # canonical combining class of each


def normalised(text: str) -> str:
    """The text without ASCII punctuation, in lower case, in NFD; white space as it was."""
    plain = text.encode().translate(None, _DELETED).decode().lower()
    return plain if plain.isascii() else unicodedata.normalize("NFD", plain)


@lru_cache(maxsize=1)
def forms() -> Forms:
    """The tables, a tenth of a second."""
    single = np.arange(LIMIT, dtype=np.uint32)
    starts: list[int] = [0, 0]
    codes: list[int] = []
    orders: list[int] = []
    single[SIGMA] = SEVERAL
    for code in range(LIMIT):
        if 0xD800 <= code < 0xE000 or code == SIGMA:
            continue
        char = chr(code)
        form = normalised(char)
        if form == char and not unicodedata.combining(char):
            continue
        if len(form) == 1 and not unicodedata.combining(form):
            single[code] = ord(form)
            continue
        single[code] = SEVERAL | np.uint32(len(starts) - 1)
        codes += map(ord, form)
        orders += map(unicodedata.combining, form)
        starts.append(len(codes))
    return Forms(single, np.array(starts, np.int32), np.array(codes, np.uint32), np.array(orders, np.uint8))


@kernel
def normalise(forms, c, m):  # type: ignore[no-untyped-def]
    """Writes the normalised text of code points, up to four for each; returns how many there are, or -1 where it takes Python."""
    n = 0
    last = np.uint8(0)
    for k in range(len(c)):
        code = c[k]
        form = forms.single[code] if code < LIMIT else code
        if form < SEVERAL:
            m[n] = form
            n += 1
            last = np.uint8(0)
            continue
        place = np.int64(form & PLACE)
        if place == 0:
            return -1
        for part in range(forms.starts[place], forms.starts[place + 1]):
            order = forms.orders[part]
            if order > 0 and order < last:
                return -1
            m[n] = forms.codes[part]
            n += 1
            last = order
    return n
