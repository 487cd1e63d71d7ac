"""Normal forms of URLs."""

from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup.urls import normal_urls


def normal(*urls: str | None) -> list[str | None]:
    return normal_urls(pa.array(urls, pa.large_string())).to_pylist()


@pytest.mark.parametrize(
    "variants",
    [
        ["http://example.org/a", "https://www.Example.ORG:443/a/", "HTTP://user:secret@example.org:80/a#top", "  http://example.org/a\n"],
        ["http://example.org", "https://example.org/", "http://www.example.org/?", "http://example.org/?utm_source=x&utm_medium=y#z"],
        [
            "http://a.b/p?id=1&x=2",
            "http://a.b/p?utm_source=q&id=1&x=2",
            "http://a.b/p?id=1&gclid=9&x=2",
            "http://a.b/p?id=1&x=2&fbclid=0&utm_id=1",
        ],
        ["http://[2001:DB8::1]/x", "https://[2001:db8::1]:443/x"],
    ],
)
def test_variants_of_one_address_have_one_form(variants: list[str]) -> None:
    assert len(set(normal(*variants))) == 1 and None not in normal(*variants)


def test_different_pages_stay_different() -> None:
    urls = ["http://a.b/p", "http://a.b/P", "http://a.b/p?id=1", "http://a.b/p?id=2", "http://a.b:8080/p", "http://c.a.b/p", "ftp://a.b/p"]
    urls += ["http://a.b/p?x=1&id=1", "http://a.b/p?id=1&x=1", "http://a.b/p?my_utm_source=1", "http://www.b/p", "http://a.b/p?gclid2=1"]
    assert len(set(normal(*urls))) == len(urls)


def test_what_is_no_url_has_no_form() -> None:
    assert normal(None, "", "word", "/relative/path", "mailto:a@b.c", "http://", "http:///x") == [None] * 7


addresses = st.from_regex(r"https?://[a-z]{1,5}\.org(/[a-z]{0,3}){0,3}(\?[a-z=&]{0,6})?", fullmatch=True)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20) | addresses))
def test_any_text_is_borne_and_a_normal_form_is_its_own(urls: list[str]) -> None:
    first = normal(*urls)
    assert normal(*first) == first
    for url, form in zip(urls, first, strict=True):
        if url.startswith("http") and form is not None and url.isascii() and url.isprintable():
            assert urlsplit(form).hostname == urlsplit(url).hostname.removeprefix("www.")
