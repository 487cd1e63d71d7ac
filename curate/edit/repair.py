"""Text repair by ftfy (Speer 2019), and Unicode form NFC; only texts that may need it leave the Arrow buffers.

A compiled look at every byte tells which texts may change. What it lets pass is sound: it looks for more than ftfy acts on, and tests
hold that what it passes is what ftfy leaves alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from curate.dedup.exact import text_buffers
from curate.edit.record import Edited, Failed
from schemas.errors import InputError

REPAIR_VERSION = 1
"""Raised whenever the outcome for any text changes, but for other versions of ftfy and Unicode."""

KINDS = ("ftfy", "nfc")
SURE, PAIR, FORM, ENTITY = 1, 2, 4, 8
"""Why a text may change: ftfy will look; only if it reads as a mixed-up encoding; only its normal form; only its HTML entities."""

_ONE, _OFTEN, _RARE = 16, 32, 64  # suspicious by itself; beside a rare one; beside one of either kind
_LETTERS = "ВГРСΒΓΞΟ"  # named in ftfy's patterns, which look for rare characters beside them
TABLE_SIZE = 0x30000


@lru_cache(maxsize=1)
def flag_table() -> npt.NDArray[np.uint8]:
    """What each code point makes likely; built once a process.

    Raises:
        InputError: ftfy is not installed.
    """
    try:
        from ftfy import badness, chardata
    except ImportError as error:
        raise InputError("the edit 'repair' needs ftfy", where="edits", fix="pip install 'gristmill[text]'") from error
    flags = np.zeros(TABLE_SIZE, np.uint8)
    for code in [*chardata.LIGATURES, *chardata.CONTROL_CHARS, 13, 0x85, 0x2028, 0x2029, *range(0x80, 0xA0)]:
        flags[code] |= SURE
    kinds = {_OFTEN: ("common", "lower_common", "upper_common"), _RARE: tuple(badness.MOJIBAKE_CATEGORIES)}
    kinds[_RARE] = tuple(name for name in kinds[_RARE] if name not in kinds[_OFTEN])
    listed = {kind: re.compile("|".join(f"[{badness.MOJIBAKE_CATEGORIES[name]}]" for name in names)) for kind, names in kinds.items()}
    literal = set(re.sub(r"(?m)^\s*#.*$", "", badness.BADNESS_RE.pattern)) - set("".join(badness.MOJIBAKE_CATEGORIES.values()))
    seconds = set()
    for code in range(0x80, TABLE_SIZE):
        if 0xD800 <= code < 0xE000:
            continue
        char = chr(code)
        if code < 0x10000:
            flags[code] |= _RARE if char in literal and char not in _LETTERS else 0
            flags[code] |= _OFTEN if char in _LETTERS else 0
            for kind, pattern in listed.items():
                flags[code] |= kind if pattern.match(char) else 0
        parts = unicodedata.decomposition(char).split()
        if len(parts) == 2 and parts[0][0] != "<":
            seconds.add(int(parts[1], 16))
        if unicodedata.combining(char) or not unicodedata.is_normalized("NFC", char):
            flags[code] |= FORM
    for code in [*seconds, *range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]:
        flags[code] |= FORM
    for char in "ŒœÂÃ":
        flags[ord(char)] |= _ONE
    return flags


@njit(nogil=True, cache=True)
def _look(flags, data, offsets, out):  # type: ignore[no-untyped-def]
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        found, last, entity, tag = np.int64(0), np.int64(0), 0, False
        while at < end:
            byte = np.int64(data[at])
            if byte < 0x80:
                last = np.int64(0)
                if flags[byte] & SURE:
                    found |= SURE
                # An entity is & and up to 25 letters, digits or # and a semicolon; ftfy leaves them all alone after a <.
                tag |= byte == 60
                if byte == 38:
                    entity = 1
                elif entity and byte == 59:
                    found |= 0 if tag else ENTITY
                    entity = 0
                elif entity:
                    part = (48 <= byte <= 57) or (65 <= byte <= 90) or (97 <= byte <= 122) or byte == 35
                    entity = entity + 1 if part and entity < 26 else 0
                at += 1
                continue
            entity = 0
            size = 2 if byte < 0xE0 else (3 if byte < 0xF0 else 4)
            code = byte & (0x7F >> size)
            for i in range(1, size):
                code = (code << 6) | np.int64(data[at + i] & 63)
            at += size
            flag = flags[min(code, TABLE_SIZE - 1)]
            found |= np.int64(flag & (SURE | FORM))
            both = (last & (_OFTEN | _RARE)) and (flag & (_OFTEN | _RARE)) and ((last | flag) & _RARE)
            if flag & _ONE or both:
                found |= PAIR
            last = np.int64(flag)
        out[row] = found


def suspicions(texts: pa.LargeStringArray) -> npt.NDArray[np.uint8]:
    """Bits that say why each text may change, 0 where it cannot; shape (texts,)."""
    data, offsets = text_buffers(texts)
    out = np.zeros(len(texts), np.uint8)
    _look(flag_table(), data, offsets, out)
    return out


@lru_cache(maxsize=1)
def _fixer() -> Callable[[str], str]:
    """Ftfy with typographic quotes and full-width characters left as they are."""
    from ftfy import TextFixerConfig, fix_text

    config = TextFixerConfig(uncurl_quotes=False, fix_character_width=False, normalization="NFC", explain=False)
    return lambda text: fix_text(text, config)


def repair(texts: pa.LargeStringArray) -> Edited:
    """Texts put right.

    Args:
        texts: large strings without nulls.

    Raises:
        InputError: ftfy is not installed.
    """
    found = suspicions(texts)
    rows = np.flatnonzero(found)
    counts = np.zeros((len(texts), len(KINDS)), np.int64)
    removed, added = np.zeros_like(counts), np.zeros_like(counts)
    if not len(rows):
        return Edited(texts, KINDS, counts, removed, added, Failed.none())
    chosen = texts.take(pa.array(rows))
    new = pc.utf8_normalize(chosen, form="NFC")
    new, by_ftfy = _by_ftfy(chosen, new, found[rows])
    for kind, here in enumerate((by_ftfy, ~by_ftfy)):
        grown = _sizes(new)[here] - _sizes(chosen)[here]
        counts[rows[here], kind] = pc.not_equal(chosen, new).to_numpy(zero_copy_only=False)[here]
        removed[rows[here], kind], added[rows[here], kind] = np.maximum(-grown, 0), np.maximum(grown, 0)
    order = np.arange(len(texts))
    order[rows] = len(texts) + np.arange(len(rows))
    return Edited(pa.concat_arrays([texts, new]).take(pa.array(order)), KINDS, counts, removed, added, Failed.none())


def _by_ftfy(texts: Any, normal: Any, found: npt.NDArray[np.uint8]) -> tuple[Any, npt.NDArray[np.bool_]]:
    """The texts with those that ftfy must look at put right, and which those are; the others are in normal form."""
    from ftfy.badness import is_bad

    asked = (found & (SURE | ENTITY)) != 0
    for row in np.flatnonzero(~asked & (found & PAIR != 0)):
        asked[row] = is_bad(texts[row].as_py())
    fix = _fixer()
    fixed = pa.array([fix(texts[row].as_py()) for row in np.flatnonzero(asked)], pa.large_string())
    order = np.arange(len(texts))
    order[asked] = len(texts) + np.arange(len(fixed))
    return pa.concat_arrays([normal.cast(pa.large_string()), fixed]).take(pa.array(order)), asked


def _sizes(texts: Any) -> npt.NDArray[np.int64]:
    return np.diff(text_buffers(texts)[1])
