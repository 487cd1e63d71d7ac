"""Documents whose address is on a block list are dropped, and the verdict names list and entry; lines that are no entry are refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from curate.curate import curate
from curate.curation import Curation
from curate.engine import LocalExecutor
from curate.step import Silent
from pipelines.why import life, print_life
from schemas.errors import InputError
from schemas.recipe_file import load_recipe

BLOCKED = {
    "https://bad.example/a": "sites.txt: domain bad.example",
    "http://deep.under.BAD.example:8080/x?y": "sites.txt: domain bad.example",
    "https://user@tracker.example.org./": "sites.txt: domain tracker.example.org",
    "http://www.fine.example/page/?utm_source=z#top": "pages.txt: url http://fine.example/page",
    "bad.example/without/scheme": "sites.txt: domain bad.example",
    "bad.example/go?to=https://fine.example/": "sites.txt: domain bad.example",
    "//fine.example/page": "pages.txt: url http://fine.example/page",
    "https://fine.example/on%2Dline-C%41SINO/7": "words.txt: word casino",
}
PASSED = [
    "https://notbad.example/a",
    "https://example.org/",
    "https://fine.example/page/two",
    "https://fine.example/casinos",
    "no url at all",
    None,
]


def write_lists(folder: Path, sites: str = "", pages: str = "", words: str = "") -> Path:
    (folder / "sites.txt").write_bytes(
        b"\xef\xbb\xbf# sites\r\n*.Bad.example\r\n\r\n0.0.0.0 tracker.example.org # ads\r\n" + sites.encode()
    )
    (folder / "pages.txt").write_text("www.fine.example/page\n" + pages)
    (folder / "words.txt").write_text("Casino\n# no comment\n" + words)
    texts = [{"text": f"text number {n}", "url": url} for n, url in enumerate([*BLOCKED, *PASSED])]
    (folder / "web.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    (folder / "recipe.yaml").write_text(
        "name: lists\nsources: {web: {reader: jsonl, paths: [web.jsonl]}}\nholdout: {share: 0}\n"
        "block: {domains: [sites.txt], urls: [pages.txt], words: [words.txt]}\n"
    )
    return folder / "recipe.yaml"


def run(recipe: Path):
    lake = recipe.parent / "lake"
    snapshot = curate(Curation(lake, load_recipe(recipe), LocalExecutor(1), Silent()))
    return {
        name: [row for file in snapshot.files(name) for row in pq.read_table(lake / file.path, partitioning=None).to_pylist()]
        for name in ("documents", "verdicts", "exclusions")
    }


def test_the_verdict_names_list_and_entry(tmp_path: Path) -> None:
    tables = run(write_lists(tmp_path))
    urls = {row["doc_id"]: row["url"] for row in tables["documents"]}
    assert {urls[row["doc_id"]]: row["detail"] for row in tables["exclusions"]} == BLOCKED
    reasons = {urls[row["doc_id"]]: row["reason"] for row in tables["verdicts"]}
    assert all(reasons[url] == "url_blocked" for url in BLOCKED)
    assert all(reasons[url] != "url_blocked" for url in PASSED)


@pytest.mark.parametrize(
    ("kind", "line", "message"),
    [
        ("sites", "com\n", r"'com' is no domain"),
        ("sites", "two words.example\n", "is no domain"),
        ("sites", "a\x00.example\n", "is no domain"),
        ("sites", "x" * 5000 + ".example\n", "is no domain"),
        ("sites", "-.-\n", "is no domain"),
        ("pages", "http:// spaced.example\n", "is no url"),
        ("pages", "http:///nothing\n", "is no url"),
        ("words", "two words\n", "is no word"),
        ("words", "...\n", "is no word"),
    ],
)
def test_a_line_that_is_no_entry_is_refused_with_its_place(tmp_path: Path, kind: str, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        run(write_lists(tmp_path, **{kind: line}))
    assert "line " in error.value.where and len(str(error.value)) < 400


def test_a_list_that_is_missing_or_not_utf8_is_the_users_error(tmp_path: Path) -> None:
    recipe = write_lists(tmp_path)
    (tmp_path / "words.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(InputError, match="cannot be read"):
        run(recipe)
    (tmp_path / "words.txt").unlink()
    with pytest.raises(InputError, match="check the path"):
        run(recipe)


def test_why_names_the_list_and_its_entry(tmp_path: Path) -> None:
    recipe = write_lists(tmp_path)
    tables = run(recipe)
    found = life(tmp_path / "lake", tables["exclusions"][0]["doc_id"].hex())
    console = Console(file=io.StringIO(), width=140)
    print_life(found, console)
    assert "url_blocked: sites.txt: domain bad.example" in console.file.getvalue()
