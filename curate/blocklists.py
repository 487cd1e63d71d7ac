"""Block lists of URLs: a step that drops documents by domain, URL or word of their address, and names the list and entry that did it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.corpus import column_array
from curate.curation import Curation
from curate.dedup.urls import URLS_VERSION, normal_urls
from curate.exclude import exclusion_shards, write_exclusions
from curate.loose import loose_files
from curate.step import Shard, ShardWriter, Step
from schemas.curation import Block
from schemas.errors import InputError
from schemas.store import checksum

Json = Any
MAX_ENTRY = 4096
"""Characters of the longest entry; longer lines are no entry but a damaged file."""
_HOSTS_LINE = re.compile(r"(?:0\.0\.0\.0|127\.0\.0\.1|::1?)\s+(\S+)")
_DOMAIN = re.compile(r"(?!-)[\w-]{1,63}(?:\.[\w-]{1,63})+")
_SCHEME = r"\s*[A-Za-z][A-Za-z0-9+.-]*://"
_WORD = re.compile(r"[^\W_]+")
Entries = dict[str, str]
"""The first list that holds each entry."""


def block_steps(c: Curation) -> list[tuple[Step, list[Shard]]]:
    """The step that applies the recipe's block lists, none without them.

    Raises:
        InputError: a list is missing, cannot be read, or has a line that is no entry.
    """
    lists = {kind: loose_files(paths, f"block.{kind}") for kind in _READERS if (paths := getattr(c.recipe.block, kind))}
    if not lists:
        return []
    files = {kind: [[name, place, checksum(Path(place))] for name, place in found] for kind, found in lists.items()}
    # The list's place on this machine is no part of what the result depends on.
    settings = [{kind: [[name, content] for name, _, content in found] for kind, found in files.items()}, URLS_VERSION]
    for kind, found in files.items():
        entries(kind, _key(found))
    return [(Step("block", 2, settings, _block), exclusion_shards(c, {"lists": files}))]


def _key(files: Json) -> tuple[tuple[str, str, str], ...]:
    return tuple((name, place, content) for name, place, content in files)


@lru_cache(maxsize=16)
def entries(kind: str, files: tuple[tuple[str, str, str], ...]) -> Entries:
    """The entries of all lists of a kind, read once in each process.

    Args:
        kind: domains, urls or words.
        files: published path, place and checksum of each.
    """
    found: Entries = {}
    for name, place, _ in files:
        for number, line in enumerate(_lines(place), 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            entry = _READERS[kind](text) if len(text) <= MAX_ENTRY and text.isprintable() else None
            if entry is None:
                shown = text if len(text) <= 60 else text[:60] + "..."
                raise InputError(
                    f"{shown!r} is no {kind.removesuffix('s')}", where=f"{place}, line {number}", fix="correct or remove the line"
                )
            found.setdefault(entry, name)
    return found


def _lines(place: str) -> Iterator[str]:
    try:
        with Path(place).open(encoding="utf-8-sig") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=place, fix="give a UTF-8 file with one entry a line") from error


def _domain(text: str) -> str | None:
    """A domain of two labels and more in lower case; one label would block a whole top-level domain."""
    hosts = _HOSTS_LINE.match(text)
    name = (hosts[1] if hosts else text).lower().removeprefix("*.").strip(".")
    return name if _DOMAIN.fullmatch(name) else None


def _url(text: str) -> str | None:
    """The normal form of a URL; without a scheme it counts as http."""
    if re.search(r"\s", text):
        return None
    normal: str | None = normal_urls(pa.array([text if re.match(_SCHEME, text) else f"http://{text}"], pa.large_string()))[0].as_py()
    return normal


def _word(text: str) -> str | None:
    return text.lower() if _WORD.fullmatch(text) else None


_READERS: dict[str, Callable[[str], str | None]] = {"domains": _domain, "urls": _url, "words": _word}
assert set(_READERS) == set(Block.model_fields)


def _block(writer: ShardWriter, task: Json) -> Mapping[str, int]:
    if task["documents"] is None:
        return {"documents": 0, "excluded": 0}
    documents = pq.read_table(writer.root / task["documents"], columns=["doc_id", "url"], partitioning=None)
    lists = {kind: entries(kind, _key(files)) for kind, files in task["lists"].items()}
    urls = column_array(documents, "url").cast(pa.large_string())
    found = {}
    # As in the lists, an address without a scheme counts as http.
    scheme, nothing = pa.scalar("http://", pa.large_string()), pa.scalar("", pa.large_string())
    bare = pc.binary_join_element_wise(scheme, pc.utf8_ltrim(urls, "/ "), nothing)
    whole = pc.if_else(pc.match_substring_regex(urls, f"^{_SCHEME}"), urls, bare)
    for row, (url, normal) in enumerate(zip(urls.to_pylist(), normal_urls(whole).to_pylist(), strict=True)):
        if url is not None and (met := blocked(url, normal, lists)) is not None:
            found[row] = met
    rows = np.array(list(found), dtype=np.int64)
    columns = {
        "reason": pa.repeat("url_blocked", len(rows)),
        "detail": pa.array(list(found.values()), pa.string()),
        "matches": pa.nulls(len(rows), pa.int64()),
    }
    return write_exclusions(writer, task, documents, rows, columns)


def blocked(url: str, normal: str | None, lists: Mapping[str, Entries]) -> str | None:
    """What blocks a URL: list, kind and entry; domains first, the widest listed one last; None when nothing does.

    Args:
        url: the URL as it came.
        normal: its normal form, None when it has none.
        lists: entries by kind.
    """
    domains, urls, words = (lists.get(kind, {}) for kind in _READERS)
    if normal is not None:
        labels = re.split(r"[/?:]", normal.partition("://")[2], maxsplit=1)[0].strip(".").split(".")
        for place in range(len(labels) - 1):
            name = ".".join(labels[place:])
            if name in domains:
                return f"{domains[name]}: domain {name}"
        if normal in urls:
            return f"{urls[normal]}: url {normal}"
    if words:
        for word in _WORD.findall(unquote(url).lower()):
            if word in words:
                return f"{words[word]}: word {word}"
    return None
