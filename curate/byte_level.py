"""Pieces of text as GPT-2's or Llama 3's pattern splits them, each encoded once: the library's own ids, several times sooner.

A byte-level tokenizer without a normaliser splits a text by a pattern and merges inside the pieces alone, so the ids of a text are those of
its pieces one after another. Text repeats its pieces: here they are found over UTF-8 bytes by a compiled kernel that does not hold the GIL,
looked up in a table by hash and compared byte for byte, and only those never met go to the library. Which code points are letters, numbers
or white space is asked of the library too, when one is first met, so that the split is its own whatever Unicode it follows.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from curate.signals.kernels import inlined, kernel

UNKNOWN, LETTER, NUMBER, OTHER, SPACE = 0, 1, 2, 3, 4
ASKED = 255
"""Class of a code point that the library is being asked about."""

MOST_PIECES = 400_000
MOST_BYTES = 1 << 25
"""Pieces, and their bytes, from which on the table is begun anew; some 60 MB."""

AT_ONCE = 4096
"""Code points that the library is asked about at once."""

_TOP = 0x110000

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


_NEWER = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DIGITS = {_NEWER: 3, _NEWER.replace("{1,3}", ""): 1}
"""Most digits of a piece by the pattern that Llama 3 took over from GPT-4, and its kind with digits apart."""


def pattern_of(tokenizer: dict[str, Any]) -> int | None:
    """The pattern by which a tokenizer.json splits text as it is, merging inside the pieces alone.

    Returns:
        0 for GPT-2's, else the most digits of a newer one; None where it does anything else.
    """
    steps, model = tokenizer.get("pre_tokenizer") or {}, tokenizer.get("model") or {}
    split, byte_level = (steps.get("pretokenizers") or [None, None])[:2] if len(steps.get("pretokenizers") or ()) == 2 else (None, steps)
    plain = (
        tokenizer.get("normalizer") is None
        and byte_level.get("type") == "ByteLevel"
        and not byte_level.get("add_prefix_space", True)
        and model.get("type") == "BPE"
        and not model.get("dropout")
        and all(token.get("special") for token in tokenizer.get("added_tokens") or ())
    )
    if not plain or byte_level.get("use_regex", True) != (split is None):
        return None
    if split is None:
        return 0
    isolated = split.get("type") == "Split" and split.get("behavior") == "Isolated" and not split.get("invert")
    return DIGITS.get((split.get("pattern") or {}).get("Regex", "")) if isolated else None


class PieceTable:
    """Pieces met so far with their ids; encodes texts by them, one call after another.

    Args:
        content: a tokenizer.json that has a pattern by ``pattern_of``.
    """

    def __init__(self, content: str) -> None:
        import tokenizers

        value = json.loads(content)
        self._digits = pattern_of(value) or 0
        self._kinds = [
            (kind, tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "removed", invert=True))
            for kind, pattern in ((LETTER, r"\p{L}+"), (NUMBER, r"\p{N}+"), (SPACE, r"\s+"))
        ]
        value["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        value["post_processor"] = None
        self._inner = tokenizers.Tokenizer.from_str(json.dumps(value))
        self._inner.encode_special_tokens = True
        self._inner.no_truncation()
        self._inner.no_padding()
        self._classes = np.zeros(_TOP, dtype=np.uint8)
        self._lock = Lock()
        self._clear()

    def _clear(self) -> None:
        self._slots = np.full(1 << 16, -1, dtype=np.int32)
        self._hashes = np.zeros(1 << 15, dtype=np.uint64)
        self._starts, self._lengths = np.zeros(1 << 15, dtype=np.int64), np.zeros(1 << 15, dtype=np.int64)
        self._count = 0
        self._kept: Bytes = np.zeros(0, dtype=np.uint8)  # bytes of the pieces, at ``_starts``
        self._tokens: NDArray[np.uint32] = np.zeros(0, dtype=np.uint32)  # ids of the pieces, one after another
        self._token_ends: Ints = np.zeros(1, dtype=np.int64)

    def encode_batch(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], Ints]:
        """See ``curate.tokenizer.Tokenizer``."""
        encoded = [text.encode() for text in texts]
        content = b"".join(encoded)
        data = np.frombuffer(content, dtype=np.uint8)
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(texts)), out=offsets[1:])
        with self._lock:
            return self._encode(content, data, offsets)

    def _encode(self, content: bytes, data: Bytes, offsets: Ints) -> tuple[NDArray[np.uint32], Ints]:
        if self._count > MOST_PIECES or len(self._kept) > MOST_BYTES:
            self._clear()
        self._classify(data)
        known = self._count
        found = np.empty(len(data), dtype=np.int32)  # a piece for each byte at most; what is not reached takes no memory
        ends = np.zeros(len(offsets), dtype=np.int64)
        text = 0
        while True:
            text, self._count = _find(
                data, offsets, text, self._digits, self._classes, self._slots, self._hashes, self._starts, self._lengths, self._kept, known,
                self._count, found, ends,
            )  # fmt: skip
            if text == len(offsets) - 1:
                break
            self._grow()
        self._learn(content, data, known)
        pieces = found[: ends[-1]]
        widths = np.diff(self._token_ends)
        totals = np.zeros(len(offsets), dtype=np.int64)
        _add_up(pieces, ends, widths, totals)
        ids = np.empty(totals[-1], dtype=np.uint32)
        _lay_out(pieces, self._token_ends, self._tokens, ids)
        return ids, totals

    def _grow(self) -> None:
        """Make room for four times the pieces."""
        room = len(self._hashes) * 4
        for name in ("_hashes", "_starts", "_lengths"):
            larger = np.empty(room, dtype=getattr(self, name).dtype)
            larger[: self._count] = getattr(self, name)[: self._count]
            setattr(self, name, larger)
        self._slots = np.full(room * 2, -1, dtype=np.int32)
        _fill_slots(self._hashes[: self._count], self._slots)

    def _learn(self, content: bytes, data: Bytes, known: int) -> None:
        """Encode the pieces that were met for the first time, and keep their bytes."""
        starts, lengths = self._starts[known : self._count], self._lengths[known : self._count]
        stops = starts + lengths
        texts = [content[start:stop].decode() for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        ids, widths = array("I"), np.zeros(len(texts), dtype=np.int64)
        for number, encoding in enumerate(self._inner.encode_batch_fast(texts, add_special_tokens=False)):
            widths[number] = len(encoding)
            ids.fromlist(encoding.ids)
        self._tokens = np.concatenate([self._tokens, np.frombuffer(ids, dtype=np.uint32)])
        self._token_ends = np.concatenate([self._token_ends, self._token_ends[-1] + np.cumsum(widths)])
        added = np.empty(int(lengths.sum()), dtype=np.uint8)
        _copy(data, starts, lengths, added, len(self._kept))
        self._kept = np.concatenate([self._kept, added])

    def _classify(self, data: Bytes) -> None:
        """Ask the library's regular expressions for the classes of code points that are met for the first time."""
        met = np.zeros(AT_ONCE, dtype=np.int64)
        while count := _unknown(data, self._classes, met):
            points = "".join(map(chr, met[:count].tolist()))
            classes = np.full(count, OTHER, dtype=np.uint8)
            for kind, split in self._kinds:
                for _, (start, stop) in split.pre_tokenize_str(points):
                    classes[start:stop] = kind
            self._classes[met[:count]] = classes


@inlined
def _width(first: int) -> int:
    """Bytes of a character by its first byte."""
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4


@kernel
def _point(data: Bytes, at: int) -> Any:
    """Code point that begins at a byte."""
    first = np.int64(data[at])
    if first < 0x80:
        return first
    if first < 0xE0:
        return (first & 0x1F) << 6 | (np.int64(data[at + 1]) & 0x3F)
    if first < 0xF0:
        return (first & 0x0F) << 12 | (np.int64(data[at + 1]) & 0x3F) << 6 | (np.int64(data[at + 2]) & 0x3F)
    high = (first & 0x07) << 18 | (np.int64(data[at + 1]) & 0x3F) << 12
    return high | (np.int64(data[at + 2]) & 0x3F) << 6 | (np.int64(data[at + 3]) & 0x3F)


@njit(nogil=True, cache=True)
def _unknown(data: Bytes, classes: Bytes, met: Ints) -> int:
    """Code points of unknown class, each once, as many as ``met`` has room for; marks them as asked."""
    count = 0
    at = 0
    while at < len(data):
        point = _point(data, at)
        if classes[point] == UNKNOWN:
            if count == len(met):
                return count
            classes[point] = ASKED
            met[count] = point
            count += 1
        at += _width(data[at])
    return count


@kernel
def _run(data: Bytes, at: int, end: int, classes: Bytes, kind: int) -> Any:
    """End of the characters of one class from a byte on."""
    while at < end:
        first = data[at]
        if (classes[first] if first < 0x80 else classes[_point(data, at)]) != kind:
            break
        at += _width(first)
    return at


@kernel
def _piece_end(data: Bytes, at: int, end: int, classes: Bytes) -> Any:
    r"""End of the piece that begins at a byte, by ``'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+``."""
    first = data[at]
    if first == 0x27 and at + 1 < end:
        a = data[at + 1]
        if a == 0x73 or a == 0x74 or a == 0x6D or a == 0x64:
            return at + 2
        if at + 2 < end:
            b = data[at + 2]
            if (a == 0x72 and b == 0x65) or (a == 0x76 and b == 0x65) or (a == 0x6C and b == 0x6C):
                return at + 3
    body = at + 1 if first == 0x20 else at
    if body < end:
        kind = classes[_point(data, body)]
        if kind != SPACE:
            return _run(data, body + _width(data[body]), end, classes, kind)
    return _space_end(data, at, end, classes)


@kernel
def _space_end(data: Bytes, at: int, end: int, classes: Bytes) -> Any:
    r"""End of the piece of white space that begins at a byte, by ``\s+(?!\S)|\s+``."""
    stop = _run(data, at, end, classes, SPACE)
    if stop == end:
        return stop
    last = stop - 1
    while data[last] & 0xC0 == 0x80:
        last -= 1
    return last if last > at else stop


@kernel
def _newer_end(data: Bytes, at: int, end: int, classes: Bytes, digits: int) -> Any:
    """End of the piece that begins at a byte, by the first pattern of ``DIGITS``, with so many digits at most."""
    first = data[at]
    if first == 0x27 and at + 1 < end:
        a = data[at + 1] | 0x20
        if a == 0x73 or a == 0x74 or a == 0x6D or a == 0x64:
            return at + 2
        if at + 2 < end:
            b = data[at + 2] | 0x20
            if (a == 0x72 and b == 0x65) or (a == 0x76 and b == 0x65) or (a == 0x6C and b == 0x6C):
                return at + 3
            if data[at + 1] == 0xC5 and data[at + 2] == 0xBF:  # the long s is an s to a pattern that ignores case
                return at + 3
    kind = classes[_point(data, at)]
    if kind == LETTER:
        return _run(data, at, end, classes, LETTER)
    after = at + _width(first)
    following = classes[_point(data, after)] if after < end else UNKNOWN
    if kind == NUMBER:
        taken = 1
        while taken < digits and after < end and classes[_point(data, after)] == NUMBER:
            after += _width(data[after])
            taken += 1
        return after
    if following == LETTER and first != 0x0A and first != 0x0D:
        return _run(data, after, end, classes, LETTER)
    if kind == OTHER or (first == 0x20 and following == OTHER):
        stop = _run(data, after, end, classes, OTHER)
        while stop < end and (data[stop] == 0x0A or data[stop] == 0x0D):
            stop += 1
        return stop
    line = _run(data, at, end, classes, SPACE) - 1
    while line >= at and data[line] != 0x0A and data[line] != 0x0D:
        line -= 1
    return line + 1 if line >= at else _space_end(data, at, end, classes)


@kernel
def _hash(data: Bytes, at: int, stop: int) -> np.uint64:
    """FNV-1a over the bytes, folded."""
    value = np.uint64(0xCBF29CE484222325)
    for i in range(at, stop):
        value = (value ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
    return value ^ (value >> np.uint64(29))


@kernel
def _differ(a: Bytes, i: int, b: Bytes, j: int, length: int) -> bool:
    k = 0
    while k < length and a[i + k] == b[j + k]:
        k += 1
    return k < length


@njit(nogil=True, cache=True)
def _find(
    data: Bytes,
    offsets: Ints,
    text: int,
    digits: int,
    classes: Bytes,
    slots: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    starts: Ints,
    lengths: Ints,
    kept: Bytes,
    known: int,
    count: int,
    found: NDArray[np.int32],
    ends: Ints,
) -> tuple[int, int]:
    """Number the pieces of texts from ``text`` on: a new number for each that was never met, whose start lies in ``data``.

    Returns:
        The text that it came to (all of them done where it is their count; else the table is full), and the pieces in the table.
    """
    mask = np.uint64(len(slots) - 1)
    while text < len(offsets) - 1:
        at, end, out = offsets[text], offsets[text + 1], ends[text]
        while at < end:
            stop = _piece_end(data, at, end, classes) if digits == 0 else _newer_end(data, at, end, classes, digits)
            value = _hash(data, at, stop)
            slot = value & mask
            while True:
                piece = slots[slot]
                if piece < 0:
                    if count == len(hashes):
                        return text, count
                    piece = count
                    slots[slot], hashes[piece], starts[piece], lengths[piece] = piece, value, at, stop - at
                    count += 1
                    break
                alike = hashes[piece] == value and lengths[piece] == stop - at
                if alike and not _differ(kept if piece < known else data, starts[piece], data, at, stop - at):
                    break
                slot = (slot + np.uint64(1)) & mask
            found[out] = piece
            out += 1
            at = stop
        text += 1
        ends[text] = out
    return text, count


@njit(nogil=True, cache=True)
def _fill_slots(hashes: NDArray[np.uint64], slots: NDArray[np.int32]) -> None:
    """Put the pieces into an empty table."""
    mask = np.uint64(len(slots) - 1)
    for piece in range(len(hashes)):
        slot = hashes[piece] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = piece


@njit(nogil=True, cache=True)
def _copy(data: Bytes, starts: Ints, lengths: Ints, into: Bytes, first: int) -> None:
    """Copy stretches one after another, and let ``starts`` tell where they are from ``first`` on."""
    out = 0
    for piece in range(len(starts)):
        start = starts[piece]
        starts[piece] = first + out
        for k in range(lengths[piece]):
            into[out] = data[start + k]
            out += 1


@njit(nogil=True, cache=True)
def _add_up(pieces: NDArray[np.int32], ends: Ints, widths: Ints, totals: Ints) -> None:
    """Ids up to the end of each text."""
    total = 0
    for text in range(1, len(ends)):
        for k in range(ends[text - 1], ends[text]):
            total += widths[pieces[k]]
        totals[text] = total


@njit(nogil=True, cache=True)
def _lay_out(pieces: NDArray[np.int32], token_ends: Ints, tokens: NDArray[np.uint32], ids: NDArray[np.uint32]) -> None:
    """Ids of the pieces one after another."""
    out = 0
    for k in range(len(pieces)):
        for token in range(token_ends[pieces[k]], token_ends[pieces[k] + 1]):
            ids[out] = tokens[token]
            out += 1
