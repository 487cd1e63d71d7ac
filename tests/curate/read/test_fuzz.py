"""Whatever bytes a file holds, every reader gives documents and quarantine that add up, and raises nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.curate.read.fuzz import READERS, check, seeds

HOSTILE = [
    b"\0",
    b"\xff" * 8,
    b"\x7f\xff\xff\xff",
    b"\x80",
    b"\n",
    b'"',
    b"{",
    b"[" * 300,
    b"\\u",
    b"\r\n\r\n",
    b"9" * 400,
    b"WARC/1.0\r\n",
    b"a" * 5000,
]
ROOT = Path(__file__).parents[3]


@st.composite
def damaged(draw: st.DrawFn, reader: str) -> bytes:
    """A valid file in which pieces were put in, taken out, doubled or overwritten; or any bytes at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    data = draw(st.sampled_from(seeds(reader)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.sampled_from([0, 1, 2, 4, 8, 40])))
        piece = draw(st.one_of(st.sampled_from(HOSTILE), st.binary(max_size=8), st.just(data[start:stop] * 2), st.just(b"")))
        data = data[:start] + piece + data[stop:]
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 4)) == 0 else data


@pytest.mark.parametrize("reader", READERS)
def test_the_valid_files_are_read(reader: str) -> None:
    assert sum(check(reader, seed) for seed in seeds(reader)) > 0


@pytest.mark.parametrize("reader", READERS)
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_no_bytes_break_a_reader(reader: str, data: st.DataObject) -> None:
    check(reader, data.draw(damaged(reader)), by_id=data.draw(st.booleans()))


def test_no_damaged_byte_of_a_parquet_footer_ends_the_process() -> None:
    """Arrow lets an exception of C++ escape where a footer describes a column wrongly and is asked for it; the fuzzer found it."""
    (data,) = seeds("parquet")
    end = len(data) - 8
    for place in range(end - int.from_bytes(data[end : end + 4], "little"), end):
        for flip in (1, 16):
            check("parquet", data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])


@given(first=st.sampled_from(READERS), second=st.sampled_from(READERS), place=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_a_file_of_another_kind_is_set_aside(first: str, second: str, place: int) -> None:
    check(first, seeds(second)[place % len(seeds(second))])


@pytest.mark.soak
def test_a_fuzzer_led_by_coverage_finds_nothing() -> None:
    pytest.importorskip("atheris", reason="the fuzzer is atheris, for Linux on x86-64")
    done = subprocess.run([sys.executable, "-m", "tests.curate.read.soak", "120"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
