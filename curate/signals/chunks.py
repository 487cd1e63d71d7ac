"""Chunks: the runs of a text without white space, found in the one pass that looks at each of its characters."""

from __future__ import annotations

import numpy as np

from curate.signals.code_points import SPACE, class_of, point_of
from curate.signals.hashing import BASE, ONE
from curate.signals.kernels import kernel


@kernel
def find_chunks(classes, points, c, s, starts, stops, hashes, inners):  # type: ignore[no-untyped-def]
    """Finds the chunks of a text and copies them one after another.

    Args:
        classes: The class of each code.
        points: The code point of each byte, where `c` is bytes.
        c: Codes of the text.
        s: Receives the stream, the text without white space; as long as `c`.
        starts: Receives where each chunk starts in `c`; these arrays hold one more than the white-space characters of `c`.
        stops: Receives where each ends.
        hashes: Receives the hash of each.
        inners: Receives the classes met in each between its first and its last character.

    Returns:
        The number of chunks and the length of the stream.
    """
    size = np.uint64(len(c))
    count = m = i = np.uint64(0)
    while i < size:
        if class_of(classes, c[i]) & SPACE:
            i += ONE
            continue
        starts[count] = i
        value = np.uint64(point_of(points, c, i)) + ONE
        s[m] = c[i]
        m += ONE
        i += ONE
        inner = before = np.uint32(0)
        while i < size:
            code = c[i]
            mask = class_of(classes, code)
            if mask & SPACE:
                break
            value = value * BASE + (np.uint64(point_of(points, c, i)) + ONE)
            s[m] = code
            m += ONE
            i += ONE
            inner |= before
            before = mask
        stops[count] = i
        hashes[count] = value
        inners[count] = inner
        count += ONE
    return np.int64(count), np.int64(m)
