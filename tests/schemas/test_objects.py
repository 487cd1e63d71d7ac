"""Objects written over connections that break, against a real store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from schemas import objects
from schemas.errors import StoreError
from tests.object_store import client, proxy

CASES = (
    (0, ("PUT", "uploads/")),
    (3_000_000, ("PUT", "uploads/")),
    (12_000_000, ("POST", "uploads")),  # written in parts: at the beginning or, with an uploadId, at the end
    (12_000_000, ("PUT", "partNumber=1")),
    (12_000_000, ("PUT", "partNumber=2")),
    (12_000_000, ("POST", "uploadId=")),
)
"""Bytes, and the request that finds no connection."""


def test_an_upload_that_fails_leaves_no_object_and_the_next_one_is_whole(
    machine: Callable[..., Path], store: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "WAITS", ())
    breaking = proxy(store)
    machine("a", breaking.port)
    source = tmp_path / "source"
    for number, (size, request) in enumerate(CASES):
        source.write_bytes((bytes(range(251)) * (size // 251 + 1))[:size])
        key = f"lakes/uploads/{number}"
        breaking.refuse = request
        with pytest.raises(StoreError, match="object store fails"):
            objects.put(key, source)
        assert client(store).get_file_info(key).type.name == "NotFound", (size, request)
        breaking.refuse = ("", "")
        assert objects.put(key, source).bytes == size
        assert client(store).open_input_stream(key).read() == source.read_bytes()
