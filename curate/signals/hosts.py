"""Chunks that stay whole: URLs, host names, e-mail addresses and public IPv4 addresses."""

from __future__ import annotations

import numpy as np

from curate.signals.code_points import HOST, LOWER, WORD, class_of
from curate.signals.kernels import kernel


@kernel
def octet(s, k, b, place):  # type: ignore[no-untyped-def]
    """End of the IPv4 number at s[k], -1 if it is none; place 0 is the first, 3 the last."""
    end = k
    value = np.int64(0)
    while end < b and end - k < 4 and 48 <= s[end] <= 57:
        value = value * 10 + (np.int64(s[end]) - 48)
        end += 1
    digits = end - k
    if digits == 0 or digits > 3 or (digits == 3 and s[k] == 48):
        return -1
    if place == 0:
        return end if s[k] != 48 and value <= 223 and value != 10 and value != 127 else -1
    if place == 3:
        return end if s[k] != 48 and value <= 254 else -1
    return end if value <= 255 else -1


@kernel
def address_end(s, a, b):  # type: ignore[no-untyped-def]
    """End of the public IPv4 address at the start of s[a:b], -1 if there is none."""
    k = a
    for place in range(4):
        end = octet(s, k, b, place)
        if end < 0:
            return -1
        k = end
        if place < 3:
            if k >= b or s[k] != 46:
                return -1
            k += 1
    private = (s[a] == 49 and s[a + 1] == 54 and s[a + 2] == 57 and s[a + 3] == 46 and s[a + 4] == 50 and s[a + 5] == 53
               and s[a + 6] == 52 and s[a + 7] == 46)  # fmt: skip
    private |= (s[a] == 49 and s[a + 1] == 57 and s[a + 2] == 50 and s[a + 3] == 46 and s[a + 4] == 49 and s[a + 5] == 54
                and s[a + 6] == 56 and s[a + 7] == 46)  # fmt: skip
    if s[a] == 49 and s[a + 1] == 55 and s[a + 2] == 50 and s[a + 3] == 46 and s[a + 6] == 46:
        second = (np.int64(s[a + 4]) - 48) * 10 + np.int64(s[a + 5]) - 48
        private |= 16 <= second <= 31
    return -1 if private else k


@kernel
def host_end(classes, s, a, b):  # type: ignore[no-untyped-def]
    """End of the host name at the start of s[a:b], -1 if there is none: labels, a full stop, a top level of small letters."""
    end = a
    label = a
    labels = 0
    while end < b:
        mask = class_of(classes, s[end])
        if s[end] == 46:
            length = end - label
            if length == 0 or length > 64:
                return -1
            if not (class_of(classes, s[label]) & HOST and class_of(classes, s[end - 1]) & HOST):
                return -1
            labels += 1
            label = end + 1
        elif not (mask & (HOST | LOWER) or s[end] == 95 or s[end] == 45):
            break
        end += 1
    if labels == 0 or end - label < 2 or end - label > 63:
        return -1
    for k in range(label, end):
        if not class_of(classes, s[k]) & LOWER:
            return -1
    return end


@kernel
def ends_url(s, k, b):  # type: ignore[no-untyped-def]
    """Whether s[k:b] is an optional port and an optional path."""
    if k < b and s[k] == 58:
        end = k + 1
        while end < b and 48 <= s[end] <= 57:
            end += 1
        if not 2 <= end - k - 1 <= 5:
            return False
        k = end
    return k == b or s[k] == 47 or s[k] == 63 or s[k] == 35


@kernel
def hosts_at(classes, s, k, b):  # type: ignore[no-untyped-def]
    """Whether s[k:b] is an address or host name with an optional port and path."""
    end = address_end(s, k, b)
    if end >= 0 and ends_url(s, end, b):
        return True
    end = host_end(classes, s, k, b)
    return end >= 0 and ends_url(s, end, b)


@kernel
def is_url(classes, s, a, b):  # type: ignore[no-untyped-def]
    """Whether s[a:b] is a URL, a host name with a dot, an e-mail address, or a public IPv4 address."""
    dot = False
    for k in range(a + 1, b - 1):
        if s[k] == 46:
            dot = True
            break
    if not dot:
        return False
    if hosts_at(classes, s, a, b):
        return True
    k = a
    while k < b and (class_of(classes, s[k]) & WORD or s[k] == 43 or s[k] == 45 or s[k] == 46):
        k += 1
    if k - a >= 2 and k + 3 < b and s[k] == 58 and s[k + 1] == 47 and s[k + 2] == 47 and hosts_at(classes, s, k + 3, b):
        return True
    for k in range(a + 1, b - 1):  # noqa: SIM110
        if s[k] == 64 and hosts_at(classes, s, k + 1, b):
            return True
    return False
