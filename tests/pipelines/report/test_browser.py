"""The report and the live pages in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipelines.report import write_report
from tests.pipelines.fixture_lake import doc

PATIENCE = 600_000
"""Milliseconds."""


@contextmanager
def opened(browser: Any, address: str, **how: Any) -> Iterator[Any]:
    """A page of the address; fails on anything its console says, on a question it asks, and on any request to elsewhere."""
    context = browser.new_context(**how)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: said.append(request.url) if not request.url.startswith((address[:16], "data:")) else None)
    page.goto(address)
    yield page
    assert "owned" not in page.title()
    assert said == []
    context.close()


def draw_all(page: Any) -> int:
    """Have every chart drawn; returns how many have marks."""
    from playwright.sync_api import expect

    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("[data-chart]:not([data-drawn])")).to_have_count(0, timeout=PATIENCE)
    marked = page.evaluate(
        "[...document.querySelectorAll('[data-chart]')].filter(e => e.querySelector('svg .mark-rect path, svg .mark-line path')).length"
    )
    assert marked == page.locator("[data-chart]").count()
    return int(marked)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 380)])
def test_a_report_draws_its_charts_without_network_whatever_its_texts_say(
    hostile_lake: Path, tmp_path: Path, browser: Any, scheme: str, width: int
) -> None:
    path = write_report(hostile_lake, tmp_path / "report.html")
    how = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}, "offline": True}
    with opened(browser, path.as_uri(), **how) as page:
        assert draw_all(page) >= 11
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall(r"\d+", background)[0]) < 128) == (scheme == "dark")
        shown = page.locator("#duplicates pre").first.text_content()
        assert "</script><script>document.title = 'owned'</script>" in shown
        assert page.locator("ins").last.text_content() == "text!"
        assert "On what raw<script> holds out: good is better" in page.locator("#ablation").text_content()
        assert page.locator("#ablation .mark-symbol.role-mark path").count() == 12 + 2, "each seed of both recipes, and the differences"
        assert page.locator("[data-chart][aria-label][tabindex='0']").count() == page.locator("[data-chart]").count()


def test_a_lake_that_holds_nothing_has_a_report(tmp_path: Path, browser: Any) -> None:
    (tmp_path / "lake").mkdir()
    path = write_report(tmp_path / "lake", tmp_path / "report.html")
    with opened(browser, path.as_uri()) as page:
        assert draw_all(page) == 0
        assert "Nothing has been curated" in page.locator("main").text_content()


@pytest.fixture(scope="module")
def address(hostile_lake: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "pipelines.cli", "ui", "--port", "0", "--lake", str(hostile_lake)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().split()[0].rstrip("/")
    process.terminate()
    process.wait(600)


def find(page: Any, name: str) -> None:
    """Search for a document, and wait for the answer."""
    page.fill("#find", name)
    with page.expect_navigation():
        page.press("#find", "Enter")


def test_the_live_report_leads_to_a_document(address: str, browser: Any) -> None:
    with opened(browser, address) as page:
        assert draw_all(page) >= 11
        find(page, "user-1")
        life = page.locator("main").text_content()
        assert doc(1).hex() in life and "too_dull" in life and "<img src=x onerror" in life
        find(page, "user-2")
        with page.expect_navigation():
            page.click(f"main a:has-text('{doc(0).hex()[:12]}')")
        assert "web-r2" in page.locator("main").text_content()
        find(page, "user-4")
        assert "⟨U+202E⟩ around" in page.locator("pre").first.text_content()


def test_a_document_that_is_not_there_is_said(address: str, browser: Any) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    assert page.goto(f"{address}/document?id=%3Cscript%3E").status == 404
    assert "<script>" in page.locator("main").text_content()
    context.close()


def test_sql_answers_and_shows_markup_as_text(address: str, browser: Any) -> None:
    with opened(browser, f"{address}/sql") as page:
        page.fill("#query", "SELECT text FROM documents ORDER BY record")
        with page.expect_navigation():
            page.click("main button")
        assert page.locator("tbody tr").count() == 5
        assert "</script><script>" in page.locator("tbody tr").first.text_content()


def test_stages_are_shown(address: str, browser: Any) -> None:
    with opened(browser, f"{address}/running") as page:
        assert page.locator("#none").is_visible()  # the fixture's stage was never prepared by a planner
