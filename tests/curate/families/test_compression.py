"""The estimated compressed size falls with repetition, and depends on the text alone."""

from __future__ import annotations

import hashlib

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.families.compression import compression_signals


def sizes(texts: list[str]) -> list[int]:
    return [int(size) for size in compression_signals(pa.array(texts, pa.large_string())).column("lz_bytes").to_pylist()]


def test_it_falls_with_repetition() -> None:
    noise = "".join(hashlib.sha256(bytes([i])).hexdigest() for i in range(60))
    repeated = "the same line again\n" * 200
    small, large = sizes([repeated, noise])
    assert small * 20 < len(repeated)
    assert large * 20 > 19 * len(noise)


@given(st.lists(st.lists(st.sampled_from(["abcd", "abc", "x", "é"]), max_size=40).map("".join), max_size=8))
@settings(max_examples=100, deadline=None)
def test_it_depends_on_the_text_alone_and_is_at_most_its_length(texts: list[str]) -> None:
    told = sizes(texts)
    assert told == [sizes([text])[0] for text in texts]
    assert all(0 <= size <= len(text.encode()) and (size > 0) == (text != "") for size, text in zip(told, texts, strict=True))
