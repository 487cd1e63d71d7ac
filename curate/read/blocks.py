"""Bytes of a file in bounded blocks, decompressed as its first bytes tell (never its name), and lines of such blocks."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Protocol

import zstandard

PLAIN_BLOCK = 1 << 20
PACKED_BLOCK = 1 << 15
"""Compressed bytes handed to a decoder at once: what a hostile stream can make of them is the most memory it can take."""
GZIP = b"\x1f\x8b\x08"
ZSTD = b"\x28\xb5\x2f\xfd"
ZSTD_WINDOW = 1 << 31
"""Largest window of Zstandard: files packed with --long=31 open."""


class Broken(Exception):
    """Input that cannot be understood.

    Args:
        reason: stable code for the quarantine.
        detail: what was found.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class BrokenFile(Broken):
    """A file that cannot be read on from some place."""

    tail = b""
    """What was read after the last whole line."""


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def compression(head: bytes) -> str | None:
    """``gzip``, ``zstd`` or None, by magic bytes; a skippable frame may come first in Zstandard."""
    if head.startswith(GZIP):
        return "gzip"
    if head.startswith(ZSTD) or (head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F):
        return "zstd"
    return None


def blocks(file: BinaryIO, stop: int | None = None) -> Iterator[bytes]:
    """Content of a file from where it stands, decompressed.

    Args:
        file: an open file.
        stop: read a plain file up to this offset only.

    Raises:
        BrokenFile: a compressed stream ends too early (``truncated_file``) or is damaged (``unreadable_file``), or the system cannot
            read on; everything before has been given.
    """
    try:
        if stop is not None:
            left = stop - file.tell()
            while left > 0 and (block := file.read(min(PLAIN_BLOCK, left))):
                left -= len(block)
                yield block
            return
        head = file.read(PACKED_BLOCK)
        packed = compression(head)
        if packed == "gzip":
            yield from _members(head, file, lambda: zlib.decompressobj(wbits=31))
        elif packed == "zstd":
            yield from _members(head, file, _zstd)
        else:
            while head:
                yield head
                head = file.read(PLAIN_BLOCK)
    except OSError as error:
        raise BrokenFile("unreadable_file", f"the system cannot read it: {error.strerror}") from error


def _zstd() -> _Decoder:
    return zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()


def _members(data: bytes, file: BinaryIO, start: Callable[[], _Decoder]) -> Iterator[bytes]:
    """All members (gzip) or frames (Zstandard) of a stream; zeros after a member are padding."""
    decoder, between = start(), True
    while data:
        if between:
            data = data.lstrip(b"\0") or file.read(PACKED_BLOCK).lstrip(b"\0")
            if not data:
                continue
        try:
            out = decoder.decompress(data)
        except (zlib.error, zstandard.ZstdError) as error:
            what = "other data follow the last member" if between else "the stream is damaged"
            raise BrokenFile("unreadable_file", f"{what}: {error}") from error
        if out:
            yield out
        between = decoder.eof
        data = decoder.unused_data if between else b""
        if between:
            decoder = start()
        data = data or file.read(PACKED_BLOCK)
    if not between:
        raise BrokenFile("truncated_file", "the compressed stream ends before its end mark")


class _Raw(io.RawIOBase):
    """Blocks as a raw stream."""

    def __init__(self, content: Iterator[bytes]) -> None:
        self._content = content
        self._held = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._held or next(self._content, b"")
        size = min(len(buffer), len(block))
        buffer[:size] = block[:size]
        self._held = block[size:]
        return size


def unpacked(file: BinaryIO) -> io.BufferedReader:
    """A file's content as a stream, decompressed; reading raises as ``blocks`` does."""
    return io.BufferedReader(_Raw(blocks(file)), PLAIN_BLOCK)


def whole_lines(content: Iterable[bytes], limit: int) -> Iterator[bytes | int]:
    r"""Runs of whole lines, each with its ``\n`` but perhaps the last; one longer than ``limit`` that no block holds as its length.

    Raises:
        BrokenFile: from the blocks, with ``tail`` set; all whole lines have been given.
    """
    held: list[bytes] = []
    size = 0
    try:
        for block in content:
            first = block.find(b"\n")
            if first < 0:
                held.append(block)
                size += len(block)
                if size > limit:
                    held.clear()
                continue
            size += first
            last = block.rfind(b"\n") + 1
            if size > limit:
                yield size
                if last > first + 1:
                    yield block[first + 1 : last]
            else:
                yield b"".join([*held, block[:last]])
            held = [block[last:]]
            size = len(held[0])
    except BrokenFile as error:
        error.tail = b"".join(held)
        raise
    if size:
        yield b"".join(held) if size <= limit else size


def lines(content: Iterable[bytes], limit: int) -> Iterator[list[bytes | int]]:
    r"""Lines of blocks, without their ``\n``, in lists of consecutive lines; a line longer than ``limit`` is given as its length.

    Raises:
        BrokenFile: see `whole_lines`.
    """
    for run in whole_lines(content, limit):
        if isinstance(run, int):
            yield [run]
        else:
            yield [line if len(line) <= limit else len(line) for line in run.removesuffix(b"\n").split(b"\n")]
