"""A fetched page: HTTP response to body, body to text; HTML by resiliparse (the extra ``web``)."""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

import zstandard

from curate.read.blocks import Broken
from schemas.errors import InputError

CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s\"';,]+)", re.IGNORECASE)

TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
FLAT = re.compile(
    r"area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr|p|li|d[td]|opt(ion|group)|r[bpt]|t(r|d|h|head|body|foot)"
)
"""Elements that have no end or that the next of their kind ends: they do not nest by themselves."""
MAX_DEPTH = 2000
"""Elements inside each other beyond which a page is refused: extraction takes time with the square of it (browsers stop at 512)."""


class BrokenPage(Broken):
    """A response that cannot be understood."""


class Response(NamedTuple):
    """Status, media type in lower case, charset as declared (or empty), body without transfer and content encodings."""

    status: int
    media_type: str
    charset: str
    body: bytes

    @classmethod
    def of(cls, status: int, content_type: str, body: bytes) -> Response:
        """Make one from a Content-Type header."""
        charset = CHARSET.search(content_type)
        return cls(status, content_type.partition(";")[0].strip().lower(), charset[1] if charset else "", body)


def http_response(raw: bytes, limit: int) -> Response:
    """Parse a response.

    Args:
        raw: status line, headers, blank line, body.
        limit: most bytes that a packed body may have when unpacked.

    Raises:
        BrokenPage: no status, an encoding that is damaged or unknown, or a body beyond the limit.
    """
    end = re.search(rb"\r?\n\r?\n", raw)
    head, body = (raw[: end.start()], raw[end.end() :]) if end else (raw, b"")
    first, *lines = head.decode("latin-1").splitlines() or [""]
    status = re.match(r"HTTP/\S+\s+(\d{3})\b", first)
    if status is None:
        raise BrokenPage("broken_http", f"no status in {first[:80]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = _unchunked(body)
    for encoding in reversed(headers.get("content-encoding", "").lower().split(",")):
        body = _decoded(encoding.strip(), body, limit)
    return Response.of(int(status[1]), headers.get("content-type", ""), body)


def _unchunked(body: bytes) -> bytes:
    """A chunked body joined; as it is when it was joined before it was stored, as many crawlers do."""
    joined: list[bytes] = []
    place = 0
    while True:
        size = re.compile(rb"([0-9A-Fa-f]{1,8})[^\r\n]{0,200}\r\n").match(body, place)
        if size is None:
            return b"".join(joined) if joined else body
        length = int(size[1], 16)
        if not length:
            return b"".join(joined)
        joined.append(body[size.end() : size.end() + length])
        place = size.end() + length + len(b"\r\n")


def _decoded(encoding: str, body: bytes, limit: int) -> bytes:
    try:
        if encoding in ("gzip", "x-gzip") and body.startswith(b"\x1f\x8b"):
            body = zlib.decompressobj(wbits=31).decompress(body, limit + 1)
        elif encoding == "deflate":
            body = zlib.decompressobj(wbits=15 if body[:1] == b"\x78" else -15).decompress(body, limit + 1)
        elif encoding == "zstd":
            body = zstandard.ZstdDecompressor().stream_reader(body).read(limit + 1)
        elif encoding == "br":
            body = _unbrotli(body, limit + 1)
        elif encoding not in ("", "identity", "gzip", "x-gzip"):
            raise BrokenPage("broken_http", f"content encoding {encoding[:40]!r} is not known")
    except (zlib.error, zstandard.ZstdError) as error:
        raise BrokenPage("broken_http", f"the body is not {encoding}: {error}") from error
    if len(body) > limit:
        raise BrokenPage("too_large", f"a body of more than {limit:,} bytes when unpacked")
    return body


def _unbrotli(body: bytes, limit: int) -> bytes:
    try:
        import brotli  # late: comes with the extra
    except ImportError as error:
        raise _extra("pages packed with brotli") from error
    try:
        unpacked: bytes = brotli.Decompressor().process(body, output_buffer_limit=limit)
    except brotli.error as error:
        raise BrokenPage("broken_http", f"the body is not br: {error}") from error
    return unpacked


def html_text(page: Response) -> str:
    """Text of an HTML page's main content, in the declared encoding, else the one its bytes tell.

    Raises:
        BrokenPage: the parser gives up, or elements are nested too deeply.
        InputError: resiliparse is not installed.
    """
    try:
        from resiliparse.extract.html2text import extract_plain_text  # late: optional, and slow to load
        from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5
        from resiliparse.parse.html import HTMLParserException
    except ImportError as error:
        raise _extra("HTML pages") from error
    encoding = map_encoding_to_html5(page.charset, fallback_utf8=False) if page.charset else None
    encoding = encoding or detect_encoding(page.body, from_html_meta=True) or "utf-8"
    html: str = bytes_to_str(page.body, encoding, "replace")
    if html.count("<") > MAX_DEPTH and _depth(html) > MAX_DEPTH:
        raise BrokenPage("broken_html", f"elements are nested more than {MAX_DEPTH} deep")
    try:
        text: str = extract_plain_text(html, main_content=True, alt_texts=False)
    except HTMLParserException as error:
        raise BrokenPage("broken_html", str(error)) from error
    return text


def _depth(html: str) -> int:
    """How deep elements are nested, about: by their tags alone."""
    depth = deepest = 0
    for end, name in TAG.findall(html):
        if not FLAT.fullmatch(name.lower()):
            depth = max(depth - 1, 0) if end else depth + 1
            deepest = max(deepest, depth)
    return deepest


def _extra(what: str) -> InputError:
    return InputError(f"{what} need packages that are not installed", fix="pip install 'gristmill[web]'")
