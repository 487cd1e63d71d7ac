"""Repeated lines and paragraphs against Python's own splitting."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup.lines import cut_units, repeats, split_units

pieces = st.lists(st.sampled_from(["a", "b", " a ", "ü\u3000b", "\n", "\n", "\n\n", " \t", "\r\n", "x" * 40]), max_size=14).map("".join)
texts = st.lists(pieces | st.text(st.characters(codec="utf-8"), max_size=8), max_size=6)


def arrow(values: list[str]) -> pa.LargeStringArray:
    return pa.array(values, pa.large_string())


def blank(line: str) -> bool:
    return all(ord(c) <= 32 for c in line)


def python_units(text: str, unit: str) -> list[str]:
    """Spans: lines with their ends; or paragraphs with all up to the next one."""
    lines, out, inside = [line for line in re.split(r"(?<=\n)", text) if line], [], False
    for line in lines:
        if unit == "line":
            out += [] if blank(line) else [line]
        elif not blank(line) and not inside:
            out.append(line)
        elif out:
            out[-1] += line
        inside = not blank(line)
    return out


@given(texts, st.sampled_from(["line", "paragraph"]))
def test_units_are_those_of_python(values: list[str], unit: str) -> None:
    units = split_units(arrow(values), unit)
    spans = [values[r].encode()[a:b].decode() for r, a, b in zip(units.row, units.start, units.stop, strict=True)]
    assert [(r, s) for r, value in enumerate(values) for s in python_units(value, unit)] == list(
        zip(units.row.tolist(), spans, strict=True)
    )
    assert units.size.tolist() == [len(span.encode().strip(bytes(range(33)))) for span in spans]


@given(texts, st.sampled_from(["line", "paragraph"]), st.booleans(), st.sampled_from([1, 2, 40]))
def test_the_first_of_equal_units_stays_and_later_ones_are_cut(values: list[str], unit: str, within: bool, least: int) -> None:
    units = split_units(arrow(values), unit)
    long = units.size >= least
    drop = np.zeros(len(long), np.bool_)
    drop[long] = repeats(units.hashes[long], units.row[long] if within else None)
    cut, removed = cut_units(arrow(values), units, drop)
    seen: set[tuple[int, str]] = set()
    for row, value in enumerate(values):
        place, expected = 0, ""
        for span in python_units(value, unit):
            at = value.index(span, place)
            expected, place = expected + value[place:at], at + len(span)
            key, counts = (row if within else 0, " ".join(span.split())), len(span.encode().strip(bytes(range(33)))) >= least
            expected += "" if counts and key in seen else span
            seen |= {key} if counts else set()
        expected += value[place:]
        assert cut[row].as_py() == expected
        assert removed[row] == len(value.encode()) - len(expected.encode())


@given(texts)
def test_nothing_dropped_changes_nothing_and_slices_split_alike(values: list[str]) -> None:
    array = arrow(["head\n\n", *values])[1:]
    units = split_units(array)
    cut, removed = cut_units(array, units, np.zeros(len(units.row), np.bool_))
    assert cut.to_pylist() == values and not removed.any()
    assert np.array_equal(units.hashes, split_units(arrow(values)).hashes)


def test_other_units_are_refused() -> None:
    with pytest.raises(ValueError, match="unit = 'word'"):
        split_units(arrow(["a"]), "word")
