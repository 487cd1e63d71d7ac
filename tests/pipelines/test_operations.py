"""Statistics, comparisons, snapshots and the doctor on a small lake."""

from __future__ import annotations

import fcntl
import io
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest
from rich.console import Console

from pipelines import doctor, stats
from pipelines.catalog import ask
from pipelines.cli import run_command
from pipelines.diff import diff, place_of, print_diff
from pipelines.doctor import examine
from pipelines.report import data
from pipelines.snapshots import keep_snapshot, list_snapshots, use_snapshot
from pipelines.stats import SOURCES, bar, histogram, lake_stats, print_stats
from schemas.errors import LakeError
from schemas.manifest import Snapshot, commit, read_snapshot, write_snapshot
from schemas.store import holder, lock
from tests.pipelines.fixture_lake import TEXTS, doc, locator, put


def judge_otherwise(lake: Path) -> None:
    """A newer snapshot: document 1 is kept, document 4 is gone."""
    rows = [
        {"doc_id": doc(n), "source": "web", "locator": locator(n), "state": "kept", "failures": [], "bytes": len(TEXTS[n])}
        for n in range(4)
    ]
    rows[2] |= {"state": "dropped", "reason": "near_duplicate"}
    old = read_snapshot(lake)
    write_snapshot(lake, Snapshot("other", {**old.steps, "verdicts": [put(lake, "verdicts", {"verdicts": rows}, "new")]}))


def test_a_record_that_repeats_an_id_is_not_counted_by_language() -> None:
    with duckdb.connect(":memory:") as db:
        db.execute(
            "CREATE TABLE verdicts AS SELECT 'web' AS source, doc_id, 'kept' AS state, 10 AS bytes FROM (VALUES ('a'), ('b')) t(doc_id)"
        )
        lines = "('a', 'en', .9), ('b', 'de', .8), ('a', 'fr', .7)"
        db.execute(f"CREATE TABLE languages AS FROM (VALUES {lines}) t(doc_id, language, language_score)")
        db.execute("CREATE TABLE repeats AS SELECT 'a' AS doc_id")
        for query in (stats._LANGUAGES, data._LANGUAGES):
            assert sum(line["documents"] for line in ask(db, query)) == 2


def test_stats_count_by_source_with_exact_quantiles(lake: Path) -> None:
    stats = lake_stats(lake)
    source = stats["sources"][0]
    assert (source["documents"], source["kept"], source["tokens"], source["duplicate_share"]) == (5, 2, 14, 0.2)
    assert source["bytes_median"] == sorted(map(len, TEXTS))[2]
    assert {line["reason"]: line["documents"] for line in stats["reasons"]} == {"too_dull": 1, "near_duplicate": 1}
    assert stats["rules"] == [{"source": "web", "rule": "too_dull", "documents": 1}]
    assert sum(line["documents"] for line in stats["lengths"]) == 5
    out = io.StringIO()
    print_stats(stats, Console(file=out, width=160))
    assert "too_dull" in out.getvalue() and bar(0.2) in out.getvalue()


def test_a_bar_is_as_long_as_its_share() -> None:
    assert [bar(share, 4) for share in (0, 1 / 32, 0.5, 1)] == [" 0.0%", "▏ 3.1%", "██ 50.0%", "████ 100.0%"]


def test_a_histogram_has_a_block_for_each_doubling() -> None:
    assert histogram({3: 4, 5: 8}) == "8 B ▅ █"


def test_diff_names_what_changed_and_only_that(lake: Path) -> None:
    keep_snapshot(lake, "before")
    judge_otherwise(lake)
    found = diff(place_of("@before", lake), place_of("@current", lake))
    changed = {(line["before"], line["after"]): line["documents"] for line in found["changes"]}
    assert changed == {("too_dull", "kept"): 1, ("held_out", "absent"): 1}
    assert {line["doc_id"] for line in found["documents"]} == {doc(1).hex(), doc(4).hex()}
    out = io.StringIO()
    print_diff(found, Console(file=out, width=160))
    assert doc(4).hex() in out.getvalue()


def test_diff_of_two_lakes(lake: Path) -> None:
    other = lake.parent / "other"
    shutil.copytree(lake, other)
    assert diff(place_of(str(lake), lake), place_of(str(other), lake))["changes"] == []
    judge_otherwise(other)
    assert len(diff(place_of(str(lake), lake), place_of(str(other), lake))["changes"]) == 2


def test_an_earlier_snapshot_is_brought_back_only_when_it_is_whole(lake: Path) -> None:
    keep_snapshot(lake, "before")
    judge_otherwise(lake)
    assert [each["name"] for each in list_snapshots(lake)] == ["current", "before"]
    assert list_snapshots(lake)[0]["id"] != list_snapshots(lake)[1]["id"]
    use_snapshot(lake, "before")
    assert list_snapshots(lake)[0]["id"] == list_snapshots(lake)[1]["id"]
    next(lake.glob("documents/*")).write_bytes(b"")
    with pytest.raises(LakeError, match="changed or cut short"):
        use_snapshot(lake, "before")


@pytest.mark.parametrize("name", ["before", "current", "unpacked", "../x", "A"])
def test_a_taken_or_bad_snapshot_name_is_refused(lake: Path, name: str) -> None:
    keep_snapshot(lake, "before")
    with pytest.raises(LakeError):
        keep_snapshot(lake, name)


def findings(lake: Path, deep: bool = False) -> dict[str, tuple[str, str]]:
    return {line["what"]: (line["state"], line["detail"]) for line in examine(lake, deep)}


def test_the_doctor_finds_cut_and_changed_files(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert findings(lake, deep=True)["files"][0] == "ok"
    victim = next(lake.glob("verdicts/*"))
    content = victim.read_bytes()
    victim.write_bytes(content[:-1] + b"\x00")
    assert findings(lake)["files"][0] == "ok" and findings(lake, deep=True)["files"][0] == "wrong"
    victim.write_bytes(content[:-1])
    assert findings(lake)["files"][0] == "wrong" and victim.name in findings(lake)["files"][1]
    assert run_command(["doctor", "--lake", str(lake), "--json"]) == 2
    assert any(line["what"] == "files" for line in json.loads(capsys.readouterr().out))


def test_the_doctor_sees_a_held_lock_and_leftovers(lake: Path) -> None:
    (lake / "documents/.tmp-0-x").write_text("")
    assert findings(lake)["leftovers"][0] == "note" and findings(lake)["lake lock"][0] == "ok"
    with lock(lake / ".lock", "test"):
        assert "process" in findings(lake)["lake lock"][1]


def test_the_doctor_tells_what_an_interrupted_curation_has_left_and_which_run_is_at_work(lake: Path) -> None:
    for entries in read_snapshot(lake).steps.values():
        for entry in entries:
            commit(lake, entry)
    commit(lake, put(lake, "holdout_draw", {"signals": [{"doc_id": doc(0)}]}, "on the way"))
    write_snapshot(lake, read_snapshot(lake))
    assert findings(lake)["unfinished steps"] == ("ok", "none") and findings(lake)["spare shards"][1].startswith("1 of finished")
    commit(lake, put(lake, "signals", {"signals": [{"doc_id": doc(0)}]}, "later"))
    state, detail = findings(lake)["unfinished steps"]
    assert state == "note" and "signals 1;" in detail and "run again" in detail
    with lock(lake / "runs/demo/.lock", "run"):
        assert "(run)" in findings(lake)["run demo"][1]
    assert "run demo" not in findings(lake)


def test_the_doctor_leaves_a_stage_to_the_machine_that_holds_its_run(lake: Path) -> None:
    (lake / "runs/far--off/0-code").mkdir(parents=True)
    (lake / "runs/far--off/0-code/stage.json").write_text("{}")
    ours, theirs = (
        {what: (state, detail) for what, state, detail in doctor._stages(lake, elsewhere)}["stage far--off/0-code"]
        for elsewhere in ({}, {"runs/far--off/.lock": "process 3 on b (run)"})
    )
    assert ours[0] == "note" and "run again" in ours[1]
    assert theirs == ("ok", "not ended; process 3 on b (run) sees to it")


def test_the_doctor_asks_prefect_which_runs_it_takes_for_alive(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'[{"name": "python"}]')

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.server_port}/api")
        state, detail = findings(lake)["Prefect server"]
        server.shutdown()
    assert state == "note" and "these run: python;" in detail and b"RUNNING" in asked[0]
    state, detail = findings(lake)["Prefect server"]
    assert state == "wrong" and "does not answer" in detail


@pytest.mark.parametrize(
    ("settings", "header"),
    [({"PREFECT_API_KEY": "k"}, "Bearer k"), ({"PREFECT_API_AUTH_STRING": "a:b"}, "Basic YTpi"), ({}, None)],
)
def test_the_doctor_asks_with_the_key_of_prefects_settings_and_notes_a_refusal(
    lake: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], header: str | None
) -> None:
    asked: list[str | None] = []

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    for name in ("PREFECT_API_KEY", "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, value in {**settings, "PREFECT_API_URL": f"http://127.0.0.1:{server.server_port}/api"}.items():
            monkeypatch.setenv(name, value)
        state, detail = findings(lake)["Prefect server"]
        server.shutdown()
    assert asked == [header] and state == "note" and "401" in detail and "PREFECT_API_KEY" in detail


def test_the_doctor_looks_at_locks_without_taking_them(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_file = lake / "runs/demo/.lock"
    with lock(lock_file, "earlier"):
        pass
    before = {path: path.read_bytes() for path in (lock_file,)}
    assert findings(lake)["lake lock"] == ("ok", "free") and not (lake / ".lock").exists()
    assert {path: path.read_bytes() for path in before} == before
    with lock_file.open("rb") as looks:  # as somebody who only looks does, for an instant
        fcntl.flock(looks, fcntl.LOCK_SH)
        monkeypatch.setattr("schemas.store.time", SimpleNamespace(sleep=lambda seconds: fcntl.flock(looks, fcntl.LOCK_UN)))
        with lock(lock_file, "run"):
            assert "(run)" in (holder(lock_file) or "")


@pytest.mark.parametrize("content", ["{not json", "{}", '{"recipe": "r", "steps": {"read": [1]}}'])
def test_a_damaged_snapshot_is_a_finding_not_the_doctors_end(lake: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    keep_snapshot(lake, "before")
    (lake / "snapshots/current.json").write_text(content)
    assert run_command(["doctor", "--lake", str(lake), "--json"]) == 2
    found = {line["what"]: line for line in json.loads(capsys.readouterr().out)}
    assert found["snapshot current"]["state"] == "wrong" and "damaged" in found["snapshot current"]["detail"]
    assert found["lake lock"]["state"] == "ok"


def test_garbage_is_counted_and_collected_only_from_a_free_lake(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for entries in read_snapshot(lake).steps.values():
        for entry in entries:
            commit(lake, entry)
    lost = put(lake, "verdicts", {"verdicts": [{"doc_id": doc(0), "source": "web", "state": "kept", "failures": []}]}, "lost")
    commit(lake, lost)
    command = ["snapshot", "--collect", "--days", "0", "--lake", str(lake)]
    assert run_command([*command, "--dry-run"]) == 0
    assert "1 files" in capsys.readouterr().out and (lake / lost.files["verdicts"].path).is_file()
    with lock(lake / ".lock", "test"):
        assert run_command(command) == 2
    assert run_command([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 1
    assert not (lake / lost.files["verdicts"].path).exists()
    assert findings(lake, deep=True)["files"][0] == "ok"


@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 500])
def test_quantiles_of_counted_lengths_equal_those_of_all_lengths(count: int) -> None:
    with duckdb.connect() as db:
        columns = "'s' AS source, (hash(i) % 50)::BIGINT AS bytes, 'kept' AS state, NULL::VARCHAR AS reason"
        db.execute(f"CREATE TABLE verdicts AS SELECT {columns} FROM range(?) AS t (i)", [count])
        db.execute("CREATE TABLE summary_sources AS SELECT 's' AS source, 1 AS tokens")
        whole = "SELECT quantile_disc(bytes, .05), quantile_disc(bytes, .5), quantile_disc(bytes, .95), max(bytes) FROM verdicts"
        assert db.execute(SOURCES).fetchall()[0][-4:] == db.execute(whole).fetchall()[0]
