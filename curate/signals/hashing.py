"""Hashes of strings of code points that can be joined: H(ab) = H(a) B^|b| + H(b) modulo 2^64.

With the hash of every prefix of a stream, the hash of any part of it is one multiplication away, so words, n-grams and looked-up
strings share one pass. Two strings that people write do not meet; strings built to collide can (Thue-Morse words of 1,024 characters
and more), at the cost of one n-gram counted as a repeat.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core.extending import intrinsic
from numba.np.arrayobj import make_array

from curate.signals.kernels import at, inlined, small

BASE = np.uint64(0x9E6C63D0876A9A63)
SPREAD = np.uint64(0x9E3779B97F4A7C15)
ONE = np.uint64(1)
POWERS = 4096
"""Powers of the base that are looked up; longer parts (one word of thousands of characters) compute theirs."""


def power_table() -> npt.NDArray[np.uint64]:
    """The first POWERS powers of the base."""
    table = np.empty(POWERS, np.uint64)
    power = 1
    for i in range(POWERS):
        table[i] = power
        power = power * int(BASE) % 2**64
    return table


def hash_text(text: str) -> int:
    """The hash of a whole string."""
    value = 0
    for char in text:
        value = (value * int(BASE) + ord(char) + 1) % 2**64
    return value


@small
def power(powers, exponent):  # type: ignore[no-untyped-def]
    """BASE ** exponent modulo 2**64."""
    if exponent < POWERS:
        return at(powers, exponent)
    result = ONE
    square = BASE
    left = exponent
    while left > 0:
        if left & 1:
            result = result * square
        square = square * square
        left >>= 1
    return result


@inlined
def part(prefix, powers, start, end):  # type: ignore[no-untyped-def]
    """The hash of stream[start:end] from the hashes of the stream's prefixes."""
    return at(prefix, end) - at(prefix, start) * power(powers, end - start)


@inlined
def home(key, shift):  # type: ignore[no-untyped-def]
    """First slot to try for a key in a table of 2 ** (64 - shift) slots; unsigned, or each use would ask whether it counts from the end."""
    return (key * SPREAD) >> shift


@inlined
def following(table, slot):  # type: ignore[no-untyped-def]
    """The slot to try after one that another key has taken."""
    return (slot + ONE) & np.uint64(len(table) - 1)


def _loader(number: types.Type) -> Any:
    """Compiles a load of the bytes from array[index] on as one number, wherever they lie; the caller keeps inside the array."""

    def load(typingctx, array, index):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            layout = make_array(array)(context, builder, arguments[0])  # type: ignore[no-untyped-call]
            place = builder.gep(layout.data, [arguments[1]])
            loaded = builder.load(builder.bitcast(place, context.get_value_type(number).as_pointer()))
            loaded.align = 1
            return loaded

        return number(array, types.intp), generate  # type: ignore[operator]

    return intrinsic(load)


load_word, load_half = _loader(types.uint64), _loader(types.uint32)
"""Eight bytes as one uint64, and four as one uint32."""

EACH_BYTE, HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
"""The lowest and the highest bit of each byte of a word of eight."""


@small
def store_word(array, place, word):  # type: ignore[no-untyped-def]
    """Writes a word's eight bytes to array[place:]."""
    for j in range(8):
        array[place + j] = np.uint8(word >> np.uint64(8 * j))


@small
def shift_for(count):  # type: ignore[no-untyped-def]
    """The shift of the smallest table that `count` keys fill at most by half."""
    bits = 3
    while (1 << bits) < 2 * count:
        bits += 1
    return np.uint64(64 - bits)
