"""What the live pages refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pipelines.report.server import HEADERS, SHOWN_ROWS, Ui


@pytest.fixture
def client(lake: Path) -> TestClient:
    return asking(lake, 600)


def asking(lake: Path, seconds: float) -> TestClient:
    return TestClient(Ui(lake, seconds).app(), base_url="http://127.0.0.1:8421")


@pytest.mark.parametrize(
    "query",
    [
        "DROP VIEW documents",
        "COPY (SELECT 1) TO '{lake}/x.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{lake}/x.csv'",
        "SELECT 1; SELECT 2",
        "SET threads = 1",
        "SELECT * FROM read_text('/etc/hostname')",
        "INSTALL httpfs",
        "ATTACH '{lake}/y.duckdb' AS y",
    ],
)
def test_sql_only_reads_and_only_the_lake(client: TestClient, lake: Path, query: str) -> None:
    answer = client.get("/sql", params={"query": query.format(lake=lake)})
    assert answer.status_code == 400 and 'role="alert"' in answer.text
    assert not (lake / "x.csv").exists() and not (lake / "y.duckdb").exists()


def test_sql_shows_a_bounded_number_of_rows(client: TestClient) -> None:
    answer = client.get("/sql", params={"query": "FROM range(100000)"})
    assert answer.text.count("<tr>") == SHOWN_ROWS + 1 and f"The first {SHOWN_ROWS} rows;" in answer.text


def test_a_query_that_takes_too_long_is_stopped(client: TestClient, lake: Path) -> None:
    query = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE a.range % 7 = b.range % 3"
    answer = asking(lake, 0.5).get("/sql", params={"query": query})
    assert answer.status_code == 400 and "stopped after 0.5 seconds" in answer.text
    assert client.get("/sql", params={"query": "SELECT 41 + 1 AS answer"}).text.count("42") == 1


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8421", "127.0.0.1.evil.example", "0.0.0.0:8421"])
def test_another_name_for_this_machine_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/sql", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_site_asks_for_is_refused(client: TestClient, site: str) -> None:
    assert client.get("/", headers={"sec-fetch-site": site}).status_code == 403
    assert client.get("/", headers={"sec-fetch-site": "same-origin"}).status_code == 200


@pytest.mark.parametrize("page", ["/", "/sql", "/running", "/running.json", "/document?id=user-1", "/assets/style.css", "/nowhere"])
def test_every_answer_carries_the_policy_and_shares_nothing(client: TestClient, page: str) -> None:
    answer = client.get(page)
    assert HEADERS.items() <= dict(answer.headers).items()
    assert not any(name.startswith("access-control") for name in answer.headers)
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_only_get_is_answered(client: TestClient) -> None:
    methods: Any = [client.post, client.put, client.delete, client.patch]
    assert {method("/sql").status_code for method in methods} == {405}


def test_files_beside_the_assets_are_not_served(client: TestClient) -> None:
    assert client.get("/assets/base.html.j2").status_code == 404
    assert client.get("/assets/..%2Fserver.py").status_code == 404
