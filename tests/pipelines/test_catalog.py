from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from pipelines import catalog
from pipelines.catalog import CATALOG, Connection, open_catalog
from pipelines.run import sweep
from schemas.errors import LakeError
from schemas.tables import TABLES
from tests.pipelines.fixture_lake import doc, put_stage


def test_every_declared_table_is_a_view_with_its_columns(lake: Path) -> None:
    with open_catalog(lake) as db:
        for name, schema in TABLES.items():
            columns = [row[0] for row in db.execute(f"DESCRIBE {name}").fetchall()]
            assert set(schema.names) <= set(columns), name
        assert db.execute("SELECT count(*) FROM documents").fetchone() == (5,)
        assert db.execute("SELECT doc_id, locator FROM documents WHERE record = 3").fetchone() == (doc(3).hex(), 1 << 32)


def test_an_empty_folder_has_every_view_without_rows(tmp_path: Path) -> None:
    with open_catalog(tmp_path) as db:
        for name in TABLES:
            assert db.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,), name


def test_a_catalogue_that_cannot_be_built_is_a_user_error(lake: Path) -> None:
    for path in (lake / "verdicts").rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[:20])
    (lake / CATALOG).unlink(missing_ok=True)
    with pytest.raises(LakeError, match="cannot be built"), open_catalog(lake):
        pass


def test_a_missing_lake_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="no such lake"), open_catalog(tmp_path / "none"):
        pass


def test_steps_redone_by_a_later_attempt_are_void(lake: Path) -> None:
    with open_catalog(lake) as db:
        found = db.execute("SELECT attempt, step, status FROM ledger ORDER BY ALL").fetchall()
        assert found == [(0, 0, "seen"), (0, 1, "void"), (1, 1, "seen"), (1, 2, "seen")]
        assert db.execute("SELECT run, position, stage FROM losses LIMIT 1").fetchone() == ("demo", 0, "first")


def test_steps_that_the_next_stage_goes_back_behind_are_void(lake: Path) -> None:
    put_stage(lake, "runs/demo/1-second", events=[{"attempt": 2, "step": 2, "kind": "started", "detail": "{}"}])
    with open_catalog(lake) as db:
        assert db.execute("SELECT status FROM ledger WHERE step = 2").fetchall() == [("void",)]


def test_new_parts_of_a_running_stage_show_without_a_rebuild(lake: Path) -> None:
    with open_catalog(lake):
        before = (lake / CATALOG).stat().st_ino
    put_stage(lake, "runs/demo/0-first", metrics=[{"attempt": 1, "step": 2, "name": "loss", "value": 2.0}])
    with open_catalog(lake) as db:
        assert db.execute("SELECT max(step) FROM metrics").fetchone() == (2,)
    assert (lake / CATALOG).stat().st_ino == before


def test_a_moved_lake_is_read_where_it_is(lake: Path) -> None:
    with open_catalog(lake):
        pass
    moved = lake.parent / "moved's lake"
    shutil.move(lake, moved)
    with open_catalog(moved) as db:
        assert db.execute("SELECT lake FROM catalog_info").fetchone() == (str(moved),)
        assert db.execute("SELECT count(*) FROM verdicts").fetchone() == (5,)


def test_a_lake_in_a_folder_with_the_characters_of_a_glob_is_read_and_not_its_neighbour(lake: Path) -> None:
    with open_catalog(lake) as db:
        counts = {name: db.execute(f"SELECT count(*) FROM {name}").fetchone() for name in TABLES}
    place = lake.parent / "kind=x" / "lake[1]*"
    place.parent.mkdir()
    shutil.move(lake, place)
    shutil.copytree(place, place.with_name("lake1"))
    for neighbour in place.with_name("lake1").rglob("*.parquet"):
        neighbour.write_bytes(b"none")
    with open_catalog(place) as db:
        assert {name: db.execute(f"SELECT count(*) FROM {name}").fetchone() for name in TABLES} == counts


def test_the_file_opens_in_any_client_from_any_folder_in_an_old_storage_version(lake: Path) -> None:
    with open_catalog(lake):
        pass
    opened = f"duckdb.connect({str(lake / CATALOG)!r}, read_only=True)"
    asked = ["funnel()", f"duplicates_of('{doc(0).hex()[:8]}')", "epochs_by_source()", "loss_by_source('first')", "documents_at(1)"]
    asked += sorted(TABLES)
    code = f"import duckdb, sys; db = {opened}; print([len(db.execute(f'FROM {{name}}').fetchall()) for name in sys.argv[1:]])"
    shown = subprocess.run([sys.executable, "-c", code, *asked], cwd="/", capture_output=True, text=True, check=True)
    rows = dict(zip(asked, json.loads(shown.stdout), strict=True))
    assert list(rows.values())[:5] == [5, 1, 1, 3, 2] and rows["documents"] == 5 and rows["ledger"] == 4
    header = (lake / CATALOG).read_bytes()[:64]
    assert header[8:12] == b"DUCK" and int.from_bytes(header[12:20], "little") == 64  # 64 is the storage of DuckDB 0.9 to 1.x


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "SET enable_external_access = true",
        "ATTACH '/tmp/other.duckdb'",
        "SELECT * FROM read_text('{lake}/../secret')",
    ],
)
def test_nothing_outside_the_lake_can_be_reached(lake: Path, query: str) -> None:
    (lake.parent / "secret").write_text("secret")
    with open_catalog(lake) as db, pytest.raises(duckdb.Error):
        db.execute(query.format(lake=lake)).fetchall()


def test_macros_answer_the_usual_questions(lake: Path) -> None:
    with open_catalog(lake) as db:
        funnel = db.execute("SELECT outcome, reason, documents FROM funnel()").fetchall()
        dropped = {("dropped", "near_duplicate", 1), ("dropped", "too_dull", 1), ("quarantined", "broken_json", 1)}
        assert set(funnel) == {("held_out", None, 1), ("kept", None, 2), *dropped}
        assert db.execute("SELECT rows_seen, epochs, most_uses, allowed FROM epochs_by_source()").fetchall() == [(3, 1.5, 2, 2)]
        assert db.execute("SELECT doc_id FROM duplicates_of(?)", [doc(0).hex()[:8]]).fetchall() == [(doc(2).hex(),)]
        assert db.execute("SELECT step, loss FROM loss_by_source('first')").fetchall() == [(0, 4.0), (1, 3.0), (2, 2.0)]
        assert db.execute("SELECT doc_id, status FROM documents_at(1)").fetchall() == [(doc(3).hex(), "seen"), (doc(3).hex(), "void")]
        assert db.execute("SELECT duplicates, kept, tokens FROM summary_sources").fetchone() == (1, 2, 14)


def test_what_a_full_disk_left_of_a_catalogue_goes(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(db: Connection, *_: object) -> None:
        path = next(lake.glob(".tmp-*.duckdb"))
        path.with_name(f"{path.name}.wal").touch()
        raise duckdb.IOException("No space left on device")

    monkeypatch.setattr(catalog, "fill", fill)
    with pytest.raises(LakeError, match="cannot be built"):
        catalog.build_catalog(lake)
    assert not list(lake.glob(".tmp-*"))


def test_sweeping_spares_the_files_of_living_builders(lake: Path) -> None:
    for name, age in (("old", 7200), ("young", 0)):
        (lake / f".tmp-{name}").touch()
        os.utime(lake / f".tmp-{name}", (time.time() - age,) * 2)
    sweep(lake)
    assert [path.name for path in lake.glob(".tmp-*")] == [".tmp-young"]
    (lake / ".tmp-young").unlink()


def test_two_readers_at_once_and_no_leftover(lake: Path) -> None:
    with open_catalog(lake) as one, open_catalog(lake) as two:
        assert one.execute("SELECT 1").fetchone() == two.execute("SELECT 1").fetchone()
    assert [name for name in os.listdir(lake) if "catalog" in name] == [CATALOG]


def test_a_lake_that_may_only_be_read_answers_though_its_catalogue_is_stale(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (lake / CATALOG).write_bytes(b"stale")
    before = {path: path.stat().st_mtime_ns for path in lake.rglob("*")}
    cache = lake.parent / "cache"
    monkeypatch.setenv("GRISTMILL_CACHE", str(cache))
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # a superuser may write to what says that none may
    made = []
    for _ in range(2):
        with open_catalog(lake) as db:
            assert db.execute("SELECT count(*) FROM documents").fetchone() == (5,)
        made.append([path.stat().st_ino for path in cache.glob("catalogs/*.duckdb")])
    assert made[0] == made[1] and len(made[0]) == 1, "made once"
    assert {path: path.stat().st_mtime_ns for path in lake.rglob("*")} == before
