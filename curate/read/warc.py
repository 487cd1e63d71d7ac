"""WARC, WET and their kin: web pages as text. Framing is read here, so that a bad record costs only itself; ARC is not read."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from curate.read.blocks import BrokenFile, unpacked
from curate.read.intake import Intake
from curate.read.page import BrokenPage, Response, html_text, http_response
from curate.read.piece import Piece

LINE = 1 << 16
"""Longest header line, in bytes."""
KINDS = ("response", "resource", "conversion")
"""Types of records that may hold a page; the others are passed over and are no records of ours, yet count as places."""
HTML = ("text/html", "application/xhtml+xml")
PLAIN = ("text/plain",)


class Framed(NamedTuple):
    """One record of the file.

    Attributes:
        headers: its named fields, names in lower case; None when it is not framed as a record.
        content: its block, empty when it was passed over or is too long to be held.
        size: bytes of the block.
    """

    headers: dict[str, str] | None
    content: bytes
    size: int


def read_warc(intake: Intake, piece: Piece, file: BinaryIO) -> Iterator[None]:
    """Take pages (HTML, plain text) that were fetched well, and conversions to text as they are."""
    intake.input_bytes += piece.size
    number = 0
    try:
        for record in _records(unpacked(file), limit := 6 * intake.max_bytes + (1 << 20)):
            _take(intake, record, number, limit)
            number += 1
            yield
    except BrokenFile as error:
        intake.refuse_file(error.reason, f"{error.detail}; after {number} records", piece.size)


def _records(stream: io.BufferedReader, limit: int) -> Iterator[Framed]:
    """Records in their order; what lies between records and is none is given as one that is not framed.

    Raises:
        BrokenFile: the file ends within a record.
    """
    line = _first_line(stream)
    while line:
        if line.startswith(b"WARC/"):
            headers = _headers(stream)
            length = headers.get("content-length", "")
            if length.isdecimal() and length.isascii():
                yield Framed(headers, _content(stream, int(length), limit if headers.get("warc-type") in KINDS else 0), int(length))
                line = _first_line(stream)
                continue
            line = b""
        size = len(line)
        while (line := stream.readline(LINE)) and not line.startswith(b"WARC/"):
            size += len(line)
        yield Framed(None, b"", size)


def _first_line(stream: io.BufferedReader) -> bytes:
    """The next line that is not blank."""
    while (line := stream.readline(LINE)) and not line.strip():
        pass
    return line


def _headers(stream: io.BufferedReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    name = ""
    while (line := stream.readline(LINE).decode("utf-8", "replace")) and line.strip():
        if line[0] in " \t" and name:
            headers[name] += " " + line.strip()
        else:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            headers[name] = value.strip()
    return headers


def _content(stream: io.BufferedReader, length: int, limit: int) -> bytes:
    """A block of that length, passed over and empty when longer than the limit.

    Raises:
        BrokenFile: the file ends before.
    """
    kept, left = [], length
    while left > 0 and (data := stream.read(min(left, 1 << 20))):
        left -= len(data)
        if length <= limit:
            kept.append(data)
    if left:
        raise BrokenFile("truncated_file", f"a record ends {left} bytes too early")
    return b"".join(kept)


def _take(intake: Intake, record: Framed, number: int, limit: int) -> None:
    """Take a record that holds a page, or set it aside."""
    headers = record.headers
    if headers is None:
        intake.records += 1
        intake.refuse(number, "broken_record", f"{record.size} bytes that are not framed as a WARC record", record.size)
        return
    if headers.get("warc-type") not in KINDS:
        return
    if record.size > limit:
        intake.records += 1
        intake.refuse(number, "too_large", f"a record of {record.size:,} bytes, max_document_bytes = {intake.max_bytes:,}", record.size)
        return
    try:
        page = _page(headers, record.content, limit)
    except BrokenPage as error:
        intake.records += 1
        intake.refuse(number, error.reason, error.detail, record.size)
        return
    if page is None:
        return
    intake.records += 1
    try:
        text = html_text(page) if page.media_type in HTML else page.body.decode(page.charset or "utf-8").removeprefix("\ufeff")
        text.encode()
    except BrokenPage as error:
        intake.refuse(number, error.reason, error.detail, record.size)
    except (ValueError, LookupError) as error:  # bytes that are no text, or a charset that is none
        intake.refuse(number, "invalid_utf8", f"not text in {page.charset or 'utf-8'}: {error}", record.size)
    else:
        intake.take(_fields(headers, page.media_type) | {intake.text_field: text}, number, record.size)


def _page(headers: dict[str, str], content: bytes, limit: int) -> Response | None:
    """The page in a record; None for what is no page: other media, redirections, errors."""
    if headers["warc-type"] == "response" and content.startswith(b"HTTP/"):
        page = http_response(content, limit)
        if not 200 <= page.status < 300:
            return None
    else:
        page = Response.of(200, headers.get("content-type", ""), content)
    return page if page.media_type in HTML + PLAIN else None


def _fields(headers: dict[str, str], media_type: str) -> dict[str, object]:
    names = {
        "url": "warc-target-uri",
        "date": "warc-date",
        "warc_type": "warc-type",
        "warc_record_id": "warc-record-id",
        "languages": "warc-identified-content-language",
        "truncated": "warc-truncated",
    }
    found = {field: headers[name].strip("<>") for field, name in names.items() if headers.get(name)}
    return {**found, "media_type": media_type}
