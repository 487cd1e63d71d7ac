from __future__ import annotations

import io
from pathlib import Path

import duckdb
import pytest
from rich.console import Console

from pipelines.state import lake_status, print_status
from pipelines.why import UnknownDocument, find_document, life, print_life
from schemas.manifest import Snapshot
from tests.pipelines.fixture_lake import doc


def printed(lake: Path, name: str) -> str:
    out = io.StringIO()
    print_life(life(lake, name), Console(file=out, width=200))
    return out.getvalue()


def test_a_seen_document_tells_its_stages_steps_and_losses(lake: Path) -> None:
    found = life(lake, "user-3")
    assert found["doc_id"] == doc(3).hex()
    assert [(s["step"], s["status"], s["loss"]) for s in found["steps"]] == [(1, "void", 3.2), (1, "seen", 3.0)]
    assert found["stages"] == [
        {"run": "demo", "position": 0, "stage": "first", "rows_seen": 1, "rows_void": 1, "first_step": 1, "last_step": 1}
    ]
    assert found["lots"][0]["rows"] == [1]
    assert "3.2" in printed(lake, "user-3") and "Verdict: kept" in printed(lake, "user-3")


def test_a_dropped_document_tells_rule_value_and_threshold(lake: Path) -> None:
    shown = printed(lake, doc(1).hex())
    assert "too_dull: value 0.9, threshold 0.5" in shown
    assert "n_words 3" in shown


def test_a_duplicate_names_the_kept_document_and_their_similarity(lake: Path) -> None:
    shown = printed(lake, doc(2).hex()[:10])
    assert doc(0).hex() in shown and "Jaccard 0.875" in shown
    assert life(lake, "user-0")["duplicates"] == [{"doc_id": doc(2).hex(), "kind": "near", "similarity": 0.875}]


def test_unknown_and_ambiguous_names_are_refused_with_what_to_do(lake: Path) -> None:
    with pytest.raises(UnknownDocument, match="doc_id"):
        life(lake, "nobody")
    with pytest.raises(UnknownDocument, match="give more"):
        shared = next(c for c in "0123456789abcdef" if sum(doc(n).hex().startswith(c) for n in range(5)) > 1)
        life(lake, shared)


def test_an_own_id_that_reads_as_hex_is_found_before_beginnings_of_doc_ids() -> None:
    old = Snapshot("made before there was an index", {})
    with duckdb.connect() as db:
        db.execute("CREATE TABLE documents AS SELECT * FROM (VALUES ('a1ff', 'x'), ('a1ee', 'y'), ('0b00', 'a1')) AS d (doc_id, id)")
        assert [find_document(db, Path(), old, name) for name in ("a1", "a1f", "A1EE")] == ["0b00", "a1ff", "a1ee"]


def test_status_counts_the_lake(lake: Path) -> None:
    status = lake_status(lake)
    assert status["sources"][0]["kept"] == 2 and status["sources"][0]["duplicates"] == 1
    out = io.StringIO()
    print_status(status, Console(file=out, width=200))
    assert "web" in out.getvalue()
