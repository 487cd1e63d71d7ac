"""What an export may replace and what it never touches."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.cli import run_command
from pipelines.export import ExportError, Format, export
from schemas.errors import LakeError
from tests.pipelines.tiny import write_project


def test_force_replaces_an_export_and_no_other_folder(lake: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for _ in range(2):
        assert export(lake, folder, "hf", force=True)
    (folder / "data" / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match=r"no export wrote: data/notes\.txt"):
        export(lake, folder, "hf", force=True)
    with pytest.raises(ExportError, match="no export wrote"):
        export(lake, lake, "hf", force=True)
    assert (folder / "data" / "notes.txt").read_text() == "mine"


def test_a_target_that_cannot_be_written_is_a_user_error(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot write"):
        export(lake, tmp_path / "file" / "x.jsonl", "jsonl")


@pytest.mark.parametrize("form", ["npy", "bin"])
def test_rows_cut_short_are_a_user_error_and_leave_no_export(tmp_path: Path, form: Format) -> None:
    recipe = write_project(tmp_path / "in")
    root = tmp_path / "lake"
    assert run_command(["curate", str(recipe), "--lake", str(root)]) == 0
    victim = next(root.glob("shards/**/*.arrow"))
    victim.write_bytes(victim.read_bytes()[:-100])
    with pytest.raises(LakeError, match=r"missing or cut short(.*\n)*.*curate RECIPE"):
        export(root, tmp_path / "out", form)
    assert not (tmp_path / "out").exists()
