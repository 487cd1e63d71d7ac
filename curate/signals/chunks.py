"""Chunks: the runs of a text without white space, found in the one pass that looks at each of its characters."""

from __future__ import annotations

import numpy as np

from curate.signals.code_points import SPACE, VOWEL_BIT, class_of, point_of
from curate.signals.hashing import BASE, ONE
from curate.signals.kernels import inlined, kernel

ONE_BIT = np.uint32(1)


@inlined
def count_run(mask, runs, before):  # type: ignore[no-untyped-def]
    """Runs of vowels up to and with a character of this class, and whether it is one; `before` says whether the one before it is."""
    vowel = np.int32((mask >> VOWEL_BIT) & ONE_BIT)
    return np.int32(runs + np.int32(vowel & np.int32(before ^ np.int32(1)))), vowel


@kernel
def find_chunks(classes, points, c, s, groups, starts, stops, hashes, inners):  # type: ignore[no-untyped-def]
    """Finds the chunks of a text and copies them one after another.

    Args:
        classes: The class of each code.
        points: The code point of each byte, where `c` is bytes.
        c: Codes of the text.
        s: Receives the stream, the text without white space; as long as `c`.
        groups: Receives how many runs of vowels begin before each place of the stream; one longer than `c`.
        starts: Receives where each chunk starts in `c`; these arrays hold one more than the white-space characters of `c`.
        stops: Receives where each ends.
        hashes: Receives the hash of each.
        inners: Receives the classes met in each between its first and its last character.

    Returns:
        The number of chunks and the length of the stream.
    """
    size = len(c)
    count = m = i = 0
    runs, vowel = np.int32(0), np.int32(0)
    groups[0] = 0
    while i < size:
        code = c[i]
        mask = class_of(classes, code)
        if mask & SPACE:
            i += 1
            continue
        starts[count] = i
        value = np.uint64(point_of(points, c, i)) + ONE
        s[m] = code
        m += 1
        i += 1
        runs, vowel = count_run(mask, runs, vowel)
        groups[m] = runs
        inner = before = np.uint32(0)
        while i < size:
            code = c[i]
            mask = class_of(classes, code)
            if mask & SPACE:
                break
            value = value * BASE + (np.uint64(point_of(points, c, i)) + ONE)
            s[m] = code
            m += 1
            i += 1
            runs, vowel = count_run(mask, runs, vowel)
            groups[m] = runs
            inner |= before
            before = mask
        stops[count] = i
        hashes[count] = value
        inners[count] = inner
        count += 1
    return count, m
