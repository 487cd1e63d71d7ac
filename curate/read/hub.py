"""Datasets of the Hugging Face Hub as files of a source: listed at one commit, read by ranges, nothing is kept on this machine.

They are named by ``hf://datasets/OWNER/NAME[@REVISION][/PATH]``. The Hub is the one of HF_ENDPOINT, and HF_TOKEN opens what is not public,
as for every client of it. Reads that go on failing are an error of the run, never quarantine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar
from urllib.parse import quote, unquote

from curate.read.remote import HUB, Match, Ranged, all_of, fits
from schemas.errors import InputError
from schemas.objects import WAITS

PARQUET = "refs/convert/parquet"
"""The branch on which the Hub keeps every public dataset as Parquet, whatever its files are: CONFIGURATION/SPLIT/0000.parquet and on."""
T = TypeVar("T")


def matches(pattern: str) -> Iterator[Match]:
    """The files of a dataset that a pattern names; their change is their blob's, so that other commits do not touch them.

    Raises:
        InputError: it names no dataset, there is none, or the Hub does not answer.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    repo, revision, wanted = _parts(pattern)
    api = HfApi()
    commit = _ask(pattern, lambda: api.dataset_info(repo, revision=revision).sha)
    listed = _ask(pattern, lambda: list(api.list_repo_tree(repo, recursive=True, revision=commit, repo_type="dataset")))
    for file in listed:
        names = file.path.split("/")
        if isinstance(file, RepoFile) and not any(name.startswith(".") for name in names) and fits(names, wanted):
            place = f"{HUB}datasets/{repo}@{commit}/{file.path}"
            yield Match(f"datasets/{repo}/{file.path}", file.size, int(file.blob_id[:15], 16), place)


def converted(pattern: str) -> str:
    """The Parquet files that the Hub itself makes of a dataset, or of a configuration or split in it; a stated revision stays."""
    repo, revision, wanted = _parts(pattern)
    return f"{HUB}datasets/{repo}@{quote(revision or PARQUET, safe='')}/{'/'.join(wanted)}"


def _parts(pattern: str) -> tuple[str, str | None, list[str]]:
    """Dataset, revision and the names that lead to files in it.

    Raises:
        InputError: it names no dataset.
    """
    kind, owner, name, *wanted = [*pattern.removeprefix(HUB).split("/"), "", ""]
    name, _, revision = name.partition("@")
    if kind != "datasets" or not owner or not name:
        fix = "write hf://datasets/OWNER/NAME, with @REVISION after the name where it is not main"
        raise InputError("no dataset of the Hub", where=pattern, fix=fix)
    return f"{owner}/{name}", unquote(revision) or None, [part for part in wanted if part]


def _ask(place: str, work: Callable[[], T]) -> T:
    """The result of some requests, made again after a failure that may pass.

    Raises:
        InputError: the Hub does not answer, or refuses.
    """
    for wait in (*WAITS, None):
        try:
            return work()
        except Exception as error:  # the Hub's client and the packages below it raise kinds of their own
            status = getattr(getattr(error, "response", None), "status_code", 500)
            if wait is None or (400 <= status < 500 and status != 429):
                told = " ".join(str(error).split())[:300] or repr(error)
                fix = "look at the name, the network, HF_ENDPOINT and HF_TOKEN; run again to go on"
                raise InputError(f"the Hub does not give it: {told}", where=place, fix=fix) from error
            time.sleep(wait)
    raise AssertionError


class HubFile(Ranged):
    """A file of a dataset at a commit."""

    def __init__(self, place: str) -> None:
        repo, commit, names = _parts(place)
        self._place, self._address = place, f"datasets/{repo}/resolve/{commit}/{quote('/'.join(names))}"
        super().__init__(int(_ask(place, lambda: self._get(0, 1).headers["content-range"]).rpartition("/")[2]))

    def part(self, size: int, at: int) -> bytes:
        """So many bytes from a place on."""
        return _ask(self._place, lambda: all_of(bytes(self._get(at, at + size).content), size)) if size else b""

    def _get(self, start: int, stop: int):  # type: ignore[no-untyped-def]  # a response of httpx or requests, by the client's version
        from huggingface_hub import HfApi
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff  # type: ignore[attr-defined]

        headers = build_hf_headers() | {"range": f"bytes={start}-{stop - 1}", "accept-encoding": "identity"}
        response = http_backoff("GET", f"{HfApi().endpoint}/{self._address}", headers=headers, timeout=60, max_retries=0)
        if response.status_code != 416:  # an empty file has no range, but says its size
            hf_raise_for_status(response)
        return response
