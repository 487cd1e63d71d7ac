"""Signatures through tables and scratch files."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from curate.dedup.near import find_near_duplicates
from curate.dedup.signature_files import SignatureSpill, from_table, to_table
from curate.dedup.sketch import Signatures, SketchSettings, sign
from schemas.errors import LakeError

TEXTS = pa.array([f"words of document number {i // 2} and {'more' * (i // 2 % 3)} of them" for i in range(40)], pa.large_string())


def same(a: Signatures, b: Signatures) -> bool:
    columns = [(*one.bands, one.sketch, one.shingles) for one in (a, b)]
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(*columns, strict=True))


@pytest.mark.parametrize("bits", [32, 64])
def test_a_table_gives_back_its_signatures(tmp_path: Path, bits) -> None:
    settings = SketchSettings(key_bits=bits)
    signed = sign(TEXTS, settings)
    with pa.OSFile(str(tmp_path / "s.arrow"), "wb") as sink, pa.ipc.new_file(sink, to_table(signed).schema) as writer:
        writer.write_table(to_table(signed), max_chunksize=7)
    table = pa.ipc.open_file(pa.memory_map(str(tmp_path / "s.arrow"))).read_all()
    assert same(from_table(table, settings), signed)
    assert same(from_table(table.slice(3, 20), settings), sign(TEXTS[3:23], settings))
    assert same(from_table(table.slice(0, 0), settings), sign(TEXTS[:0], settings))


def test_a_table_of_other_settings_or_none_is_refused() -> None:
    table = to_table(sign(TEXTS, SketchSettings(seed=2)))
    with pytest.raises(LakeError, match=r"s2.*not of .*s1"):
        from_table(table, SketchSettings())
    with pytest.raises(LakeError, match="signatures of none"):
        from_table(table.replace_schema_metadata(None), SketchSettings())


def test_a_spill_gives_back_what_was_appended(tmp_path: Path) -> None:
    settings = SketchSettings()
    spill = SignatureSpill(tmp_path / "scratch", settings)
    for first in range(0, 40, 9):
        spill.append(sign(TEXTS[first : first + 9], settings))
    mapped = spill.finish()
    assert same(mapped, sign(TEXTS, settings)) and isinstance(mapped.sketch, np.memmap)
    results = [
        find_near_duplicates(one, np.arange(40), lambda indices: TEXTS.take(pa.array(indices)), settings, memory_limit=1 << 20)
        for one in (mapped, sign(TEXTS, settings))
    ]
    assert len(results[0].document) and np.array_equal(results[0].document, results[1].document)
    spill.remove()
    assert not list((tmp_path / "scratch").iterdir())


def test_a_spill_refuses_other_settings_and_may_be_empty(tmp_path: Path) -> None:
    spill = SignatureSpill(tmp_path, SketchSettings())
    with pytest.raises(ValueError, match="cannot take signatures"):
        spill.append(sign(TEXTS, SketchSettings(shingle=3)))
    assert len(spill.finish()) == 0
