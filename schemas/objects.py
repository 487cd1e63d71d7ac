"""Objects of an S3 store: found, read, written, copied and deleted by key; what fails by a dropped connection is tried again.

The store is told by the usual variables: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION, and credentials as any AWS client finds them.
Failure model. An object is there whole or not at all: a writer killed on its way leaves what the store itself forgets. Every call may be
repeated. Listing shows what was written before it began, as Amazon's and all the common stores promise; times are the store's, in seconds.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from schemas.errors import GristmillError, LakeError, StoreError

SCHEME = "s3://"
WAITS = (0.5, 1.0, 2.0)
"""Seconds before a failed request is made again (the client has tried three times by then)."""
PART = 16 << 20
"""Bytes of a request for a part of an object."""
AT_ONCE = 8
_FINAL = ("NO_SUCH_BUCKET", "NO_SUCH_KEY", "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_SIGNATURE")

T = TypeVar("T")
A = TypeVar("A")


@dataclass(frozen=True)
class Stored:
    """An object: bucket and key, bytes, and when it was written by the store's clock, in seconds."""

    key: str
    bytes: int
    seconds: int


def is_remote(place: str) -> bool:
    """Whether a place names objects of a store."""
    return place.startswith(SCHEME)


@functools.cache
def client() -> Any:
    """The store's client (``pyarrow.fs.S3FileSystem``).

    It writes in the caller's thread: where a write in the background fails, Arrow 26 ends the process by a segmentation fault.
    """
    from pyarrow.fs import S3FileSystem

    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    ways: dict[str, Any] = {"region": region, "allow_delayed_open": True, "background_writes": False}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not endpoint:
        return S3FileSystem(**ways)
    address = urlsplit(endpoint)
    host = address.netloc.rpartition("@")[2]
    if address.scheme not in ("http", "https") or not host:
        raise LakeError("not an address such as http://127.0.0.1:8333", where="AWS_ENDPOINT_URL")
    return S3FileSystem(endpoint_override=host, scheme=address.scheme, **{**ways, "region": region or "us-east-1"})


def again(place: str, work: Callable[[], T], kind: type[GristmillError] = StoreError) -> T:
    """The result of some requests, made again after a failure that may pass.

    Raises:
        FileNotFoundError: there is no such object.
        GristmillError: of that kind: the store does not answer, or refuses.
    """
    for wait in (*WAITS, None):
        try:
            return work()
        except FileNotFoundError:
            raise
        except OSError as error:
            if wait is None or any(word in str(error) for word in _FINAL):
                raise silent(place, error, kind) from error
            time.sleep(wait)
    raise AssertionError


def silent(place: str, error: OSError, kind: type[GristmillError] = StoreError) -> GristmillError:
    """The error that tells a user what a store did not do."""
    return kind(
        f"the object store fails: {error}",
        where=f"{SCHEME}{place.removeprefix(SCHEME)}",
        fix="look at AWS_ENDPOINT_URL, credentials, bucket and network; run again to go on",
    )


def at_once(work: Callable[[A], T], items: Iterable[A]) -> Iterator[T]:
    """Results of some work on all items in their order, several at a time; the first failure is raised and what has not begun is left."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        futures = [pool.submit(work, item) for item in items]
        for future in futures:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def check_bucket(key: str) -> None:
    """Refuse a bucket that is not there.

    Raises:
        LakeError: it is not, or the store does not answer.
    """
    bucket = key.partition("/")[0]
    if again(bucket, lambda: client().get_file_info(bucket)).type.name == "NotFound":
        raise LakeError(f"no bucket {bucket!r}", where=f"{SCHEME}{key}", fix="make it, or look at the name and AWS_ENDPOINT_URL")


def listed(key: str, kind: type[GristmillError] = StoreError) -> list[Stored]:
    """All objects under a key taken as a folder."""
    from pyarrow.fs import FileSelector

    infos = again(key, lambda: client().get_file_info(FileSelector(key, recursive=True, allow_not_found=True)), kind)
    return [_stored(info) for info in infos if info.type.name == "File"]


def head(key: str, kind: type[GristmillError] = StoreError) -> Stored | None:
    """One object's size and time, None where it is not."""
    info = again(key, lambda: client().get_file_info(key), kind)
    return _stored(info) if info.type.name == "File" else None


def _stored(info: Any) -> Stored:
    return Stored(info.path, info.size, info.mtime_ns // 1_000_000_000)


def get(key: str, target: Path) -> None:
    """Write an object's bytes to a file, in requests of ``PART`` bytes each; a part that fails is asked for again.

    Raises:
        FileNotFoundError: there is no such object.
    """
    file = again(key, lambda: client().open_input_file(key))
    size = again(key, file.size)
    with target.open("wb") as out:
        for at in range(0, size, PART):
            part: bytes = again(key, lambda at=at: file.read_at(min(PART, size - at), at))  # type: ignore[misc]
            out.write(part)


def put(key: str, source: Path) -> Stored:
    """Write a file's bytes as an object, and return what the store says of it.

    All bytes go in one call, which no signal cuts short. An upload that failed is never let go of: the client would complete it with
    the parts it had.
    """
    import pyarrow

    def send() -> Stored:
        size = source.stat().st_size
        upload = client().open_output_stream(key)
        try:
            upload.write(pyarrow.memory_map(str(source)).read_buffer() if size else b"")
            upload.close()
        except OSError:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(upload))
            raise
        found = head(key)
        if found is None or found.bytes != size:
            raise OSError("an object that was written is cut short")
        return found

    return again(key, send)


def copy(key: str, new: str) -> None:
    """Copy an object within the store."""
    again(key, lambda: client().copy_file(key, new))


def delete(key: str) -> None:
    """Delete an object, which may be gone already."""
    try:
        again(key, lambda: client().delete_file(key))
    except FileNotFoundError:
        return
