"""HTML to text: resiliparse beside trafilatura, speed by CPU time and accuracy on pages whose main content is known by their template.

    python bench/readers_html.py DOCS.jsonl.gz [WARC ...]

``DOCS`` holds raw HTML of the PostgreSQL and Apache manuals in ``text`` (path in ``id``); what their templates mark as navigation is
not content. Score: F1 over the multiset of words, and the share of navigation words among what was extracted. The WARC files' pages add to
the speed only. Needs resiliparse, trafilatura, lxml and lxml_html_clean; none is needed by the product but resiliparse.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import lxml.html
import orjson
import trafilatura
from resiliparse.extract.html2text import extract_plain_text

from curate.read.blocks import blocks

NAVIGATION = {
    "postgresql-doc": "//*[contains(@class,'navheader') or contains(@class,'navfooter')] | //head",
    "apache2-doc": "//*[@id='page-header' or @id='path' or @id='footer' or @id='quickview' or @class='toplang' or @class='bottomlang' or"
    " @id='comments_section' or contains(@class,'up')] | //head | //script | //div[@class='top']",
}
WORD = re.compile(r"\w+")


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        rows = [orjson.loads(line) for line in b"".join(blocks(file)).split(b"\n") if line]
    judged = [(row["text"], known) for row in rows if (known := main_words(row["id"], row["text"])) is not None]
    others = [row["text"] for row in rows] + [page for path in sys.argv[2:] for page in pages(Path(path))]
    engines: dict[str, Callable[[str], str | None]] = {
        "resiliparse, all text": lambda page: extract_plain_text(page, main_content=False),
        "resiliparse, main content": lambda page: extract_plain_text(page, main_content=True, alt_texts=False),
        "trafilatura": trafilatura.extract,
        "trafilatura, fast": lambda page: trafilatura.extract(page, fast=True),
    }
    megabytes = sum(len(page.encode()) for page in others) / 1e6
    print(f"{len(judged)} judged pages; {len(others)} pages, {megabytes:.1f} MB for speed")
    for name, extract in engines.items():
        scores, noise, empty = [], [], 0
        for page, (content, navigation) in judged:
            found = Counter(WORD.findall(extract(page) or ""))
            common = (found & content).total()
            scores.append(2 * common / max(found.total() + content.total(), 1))
            noise.append(((found - content) & navigation).total() / max(found.total(), 1))
            empty += not found
        begin = time.process_time()
        for page in others:
            extract(page)
        speed = megabytes / (time.process_time() - begin)
        mean, worst, share = sum(scores) / len(scores), min(scores), sum(noise) / len(noise)
        print(f"{name:28s} F1 {mean:.3f} (worst {worst:.3f}), navigation {share:.3f}, empty {empty}, {speed:7.2f} MB/s of HTML")


def main_words(path: str, html: str) -> tuple[Counter[str], Counter[str]] | None:
    """Words of the content and of the navigation of a page with a known template."""
    template = next((rule for name, rule in NAVIGATION.items() if name in path), None)
    if template is None:
        return None
    page = lxml.html.document_fromstring(html.encode(), parser=lxml.html.HTMLParser(encoding="utf-8"))
    navigation: Counter[str] = Counter()
    for node in page.xpath(template):
        if node.getparent() is not None:
            navigation.update(WORD.findall(node.text_content()))
            node.drop_tree()
    return Counter(WORD.findall(page.text_content())), navigation


def pages(path: Path) -> list[str]:
    """HTML of a WARC file, by the crudest means: what lies between html tags."""
    with path.open("rb") as file:
        raw = b"".join(blocks(file))
    return [page.decode("utf-8", "replace") for page in re.findall(rb"<html.*?</html>", raw, re.DOTALL | re.IGNORECASE)]


if __name__ == "__main__":
    main()
