"""Datasets of the Hub, from a server on loopback that answers as the Hub does: the documents of the same files, at one commit."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.read import locate
from schemas.errors import InputError
from schemas.sources import Source

constants = pytest.importorskip("huggingface_hub.constants")
TEXTS = [f"document {n} " * 40 for n in range(300)]
COMMITS = {"main": "a" * 40, "old": "b" * 40, "refs/convert/parquet": "c" * 40}


def parquet(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), sink, row_group_size=50)
    return sink.getvalue()


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


SPLITS = ["default/test/0000.parquet", "default/train/0000.parquet"]
FILES = {
    COMMITS["main"]: {
        "README.md": b"# card",
        ".gitattributes": b"*",
        "data/a.jsonl": lines(TEXTS[:200]),
        "data/b.jsonl.gz": gzip.compress(lines(TEXTS[200:])),
    },
    COMMITS["old"]: {"data/empty.jsonl": b"", "data/a.jsonl": lines(TEXTS[:5])},
    COMMITS["refs/convert/parquet"]: {
        "default/train/0000.parquet": parquet(TEXTS[:250]),
        "default/test/0000.parquet": parquet(TEXTS[250:]),
    },
}


class Hub(BaseHTTPRequestHandler):
    """What of the Hub's interface reading needs."""

    failures = cut = 0

    def log_message(self, *_: object) -> None: ...

    def answer(self, body: bytes, code: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"content-length": str(len(body)), "content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if Hub.failures and "/resolve/" in path:
            Hub.failures -= 1
            return self.answer(b"{}", 503)
        if found := re.fullmatch("/api/datasets/corp/books(?:/revision/(.+))?", path):
            commit = COMMITS.get(unquote(found[1] or "main"))
            missing = {"X-Error-Code": "RevisionNotFound"}
            return self.answer(json.dumps({"id": "corp/books", "sha": commit}).encode()) if commit else self.answer(b"{}", 404, missing)
        if found := re.fullmatch("/api/datasets/corp/books/tree/([abc]{40})", path):
            files = FILES[found[1]]
            listed = [{"type": "file", "path": n, "size": len(data), "oid": hashlib.sha1(data).hexdigest()} for n, data in files.items()]
            return self.answer(json.dumps([{"type": "directory", "path": "data", "size": 0, "oid": "f" * 40}, *listed]).encode())
        if found := re.fullmatch("/datasets/corp/books/resolve/([abc]{40})/(.+)", path):
            data = FILES[found[1]][unquote(found[2])]
            first, last = map(int, self.headers["range"].removeprefix("bytes=").split("-"))
            if first >= len(data):
                return self.answer(b"", 416, {"content-range": f"bytes */{len(data)}"})
            if Hub.cut and last:
                Hub.cut -= 1
                last = -1
            return self.answer(data[first : last + 1], 206, {"content-range": f"bytes {first}-{last}/{len(data)}"})
        return self.answer(b"{}", 404, {"X-Error-Code": "RepoNotFound"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("curate.read.hub.WAITS", (0.0, 0.0))
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("reader", "path", "count", "names"),
    [
        ("jsonl", "hf://datasets/corp/books/data/*.jsonl*", 300, ["a.jsonl", "b.jsonl.gz"]),
        ("jsonl", "hf://datasets/corp/books/data", 300, ["a.jsonl", "b.jsonl.gz"]),
        ("jsonl", "hf://datasets/corp/books@old/data/a.jsonl", 5, ["a.jsonl"]),
        ("jsonl", "hf://datasets/corp/books@old/**", 5, ["data/a.jsonl"]),
        (
            "parquet",
            "hf://datasets/corp/books@refs%2Fconvert%2Fparquet/**/*.parquet",
            300,
            ["default/test/0000.parquet", "default/train/0000.parquet"],
        ),
        ("datasets", "hf://datasets/corp/books", 300, SPLITS),
        ("datasets", "hf://datasets/corp/books/default/train", 250, ["0000.parquet"]),
    ],
)
def test_a_dataset_is_read_file_by_file(hub: None, read, reader: str, path: str, count: int, names: list[str]) -> None:
    Hub.failures = 1  # which is tried again
    outcome = read(path, reader=reader)
    assert sorted(row["text"] for row in outcome.documents) == sorted(TEXTS[:count]) and not outcome.faults
    assert sorted({row["path"] for row in outcome.documents}) == names


def test_a_large_file_of_a_dataset_is_cut_between_row_groups(hub: None, read) -> None:
    outcome = read("hf://datasets/corp/books", reader="datasets", shard_bytes=1000)
    assert len(outcome.digests) > 2
    assert sorted(row["text"] for row in outcome.documents) == sorted(TEXTS) and not outcome.faults


def test_other_commits_do_not_touch_a_file_and_its_content_does(hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(reader="jsonl", paths=["hf://datasets/corp/books/data/a.jsonl"])
    ((before, place),) = locate("s", source)[0]
    monkeypatch.setitem(COMMITS, "main", "c" * 40)
    monkeypatch.setitem(FILES, "c" * 40, FILES["a" * 40])
    ((after, moved),) = locate("s", source)[0]
    assert before == after and place != moved and "@" + "c" * 40 in moved
    monkeypatch.setitem(FILES, "c" * 40, {"data/a.jsonl": lines(TEXTS[1:201])})
    assert locate("s", source)[0][0][0].mtime_ns != before.mtime_ns


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("hf://datasets/corp", "no dataset of the Hub"),
        ("hf://models/corp/books", "no dataset of the Hub"),
        ("hf://datasets/corp/none/data", "the Hub does not give it"),
        ("hf://datasets/corp/books@nope/data", "the Hub does not give it"),
        ("hf://datasets/corp/books/nothing/*.jsonl", "no file matches"),
    ],
)
def test_what_is_not_there_is_refused(hub: None, path: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        locate("s", Source(reader="jsonl", paths=[path]))


def test_an_answer_without_its_bytes_is_no_end_of_a_file(hub: None, read) -> None:
    Hub.cut = 2
    assert len(read("hf://datasets/corp/books/data", reader="jsonl").documents) == 300 and not Hub.cut


def test_a_dataset_at_two_revisions_is_refused(hub: None) -> None:
    source = Source(reader="jsonl", paths=["hf://datasets/corp/books/data", "hf://datasets/corp/books@old/data"])
    with pytest.raises(InputError, match=r"data/a\.jsonl is named at two revisions"):
        locate("s", source)


def test_a_hub_that_goes_on_failing_is_an_error_not_quarantine(hub: None, read) -> None:
    Hub.failures = 1000
    try:
        with pytest.raises(InputError, match=r"hf://datasets/corp/books@a+/data/a.jsonl: the Hub does not give it"):
            read("hf://datasets/corp/books/data/a.jsonl", reader="jsonl")
    finally:
        Hub.failures = 0
