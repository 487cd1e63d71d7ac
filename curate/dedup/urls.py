"""Addresses that lead to the same page, told by their form: the normal form of a URL, for whole columns at once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

URLS_VERSION = 1
"""Changes whenever any URL's normal form does."""

_PARTS = (
    r"(?s)^(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*)://(?:[^/?#@]*@)?(?P<host>\[[^\]/?#]*\]|[^/?#:\[\]\s]+)(?P<port>:[0-9]*)?"
    r"(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?(?:#.*)?$"
)
_TRACKING = r"([?&])(?:(?:utm_[a-z]+|gclid|dclid|fbclid|msclkid|yclid|igshid|mc_cid|mc_eid)=[^&]*(?:&|$))+"


def normal_urls(urls: pa.LargeStringArray) -> pa.LargeStringArray:
    """Normal forms of URLs: two URLs of equal form are taken for one page.

    Scheme and host in lower case; http and https alike; a leading `www.`, user names, default ports, fragments, parameters
    that only track (utm_*, gclid, fbclid and their like), white space around, and slashes at the end of the path dropped. The path
    and all other parameters stay as they are, in their order.

    Args:
        urls: Arrow strings, nulls allowed.

    Returns:
        Normal forms; null for a null and for what is no URL with a host, which duplicates nothing.
    """
    parts: Any = pc.extract_regex(pc.utf8_trim_whitespace(urls.cast(pa.large_string())), _PARTS)
    nothing, slashes = pa.scalar("", pa.large_string()), pa.scalar("://", pa.large_string())

    def part(name: str) -> Any:
        return pc.struct_field(parts, name)

    scheme = pc.utf8_lower(part("scheme"))
    scheme = pc.if_else(pc.equal(scheme, "https"), pa.scalar("http", pa.large_string()), scheme)
    host = pc.replace_substring_regex(pc.utf8_lower(part("host")), r"^www\.(.)", r"\1")
    port = pc.if_else(pc.is_in(part("port"), pa.array([":80", ":443", ":"], part("port").type)), nothing, part("port"))
    path = pc.replace_substring_regex(part("path"), r"/+$", "")
    query = pc.replace_substring_regex(part("query"), _TRACKING, r"\1")
    query = pc.replace_substring_regex(query, r"[?&]+$", "")
    # Null where the pattern does not match: all parts are.
    joined: pa.LargeStringArray = pc.binary_join_element_wise(scheme, slashes, host, port, path, query, nothing)
    return joined
