"""Where personal data stands in a text: e-mail addresses, public IP addresses, telephone numbers and IBANs, over UTF-8 bytes.

Each finder looks at one place and returns the end of what begins there, or 0. They are rules of form with a look at the word before, so
that version numbers, section numbers, private addresses, order numbers and file names, which look alike, are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from curate.signals.kernels import inlined, kernel

Bytes = npt.NDArray[np.uint8]
Ends = npt.NDArray[np.int64]


class Words(NamedTuple):
    """Lower-case words one after another, and their ends."""

    letters: Bytes
    ends: Ends


def words(*listed: str) -> Words:
    """A list of words for compiled code."""
    return Words(np.frombuffer("".join(listed).encode(), np.uint8), np.cumsum([len(word) for word in listed]))


def lengths(table: Sequence[str]) -> npt.NDArray[np.int64]:
    """IBAN length by country: place 26 * first letter + second letter."""
    out = np.zeros(26 * 26, np.int64)
    for entry in table:
        out[26 * (ord(entry[0]) - 65) + ord(entry[1]) - 65] = int(entry[2:])
    return out


_VERSION = words(
    "version", "versions", "ver", "v", "release", "releases", "rel", "build", "section", "sec", "chapter", "figure", "fig", "table",
    "appendix", "firmware", "update", "patch", "revision", "rev", "oid", "driver", "sdk", "runtime", "clause", "rfc", "item", "upgrade",
)  # fmt: skip
_PHONE = words("phone", "phones", "tel", "telephone", "mobile", "cell", "fax", "telefax", "call", "whatsapp", "hotline", "mob", "ph", "fon")
_HOST = words(
    "ip", "ipv4", "address", "addr", "host", "server", "dns", "nameserver", "client", "from", "ping", "resolver", "peer", "gateway"
)
_COUNTING = words("number", "no", "nr", "num", "id", "code", "us", "me", "at", "or")
_ORDER = words(
    "order", "invoice", "ref", "reference", "isbn", "issn", "serial", "part", "sku", "case", "ticket", "model", "item", "account", "acct",
    "tracking", "po", "id", "product", "article", "batch", "lot", "patent", "bug", "issue", "commit", "doi", "catalog", "catalogue", "ean",
)  # fmt: skip
_FILES = words("png", "jpg", "jpeg", "gif", "svg", "webp", "css", "html", "js", "json", "py", "txt", "xml", "pdf", "ico", "avif", "service")
_IBAN = lengths(
    (
        "AD24", "AE23", "AL28", "AT20", "AZ28", "BA20", "BE16", "BG22", "BH22", "BR29", "BY28", "CH21", "CR22", "CY28", "CZ24", "DE22",
        "DK18", "DO28", "EE20", "EG29", "ES24", "FI18", "FO18", "FR27", "GB22", "GE22", "GI23", "GL18", "GR27", "GT28", "HR21", "HU28",
        "IE22", "IL23", "IQ23", "IS26", "IT27", "JO30", "KW30", "KZ20", "LB28", "LC32", "LI21", "LT20", "LU20", "LV21", "LY25", "MC27",
        "MD24", "ME22", "MK19", "MR27", "MT31", "MU30", "NL18", "NO15", "PK24", "PL28", "PS29", "PT25", "QA29", "RO24", "RS22", "SA24",
        "SC31", "SD18", "SE24", "SI19", "SK24", "SM27", "ST25", "SV28", "TL23", "TN24", "TR26", "UA29", "VA22", "VG24", "XK20",
    )
)  # fmt: skip


@inlined
def is_digit(byte):  # type: ignore[no-untyped-def]
    """Whether a byte is an ASCII digit."""
    return 48 <= byte <= 57


@inlined
def is_letter(byte):  # type: ignore[no-untyped-def]
    """Whether a byte is an ASCII letter."""
    return 65 <= byte <= 90 or 97 <= byte <= 122


@inlined
def is_word(byte):  # type: ignore[no-untyped-def]
    """Whether a byte is an ASCII letter, digit or underscore, or part of a character beyond ASCII."""
    return 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 or byte == 95 or byte >= 0x80


@kernel
def is_listed(data, a, b, letters, ends):  # type: ignore[no-untyped-def]
    """Whether data[a:b], in lower case, is one of the words."""
    first = 0
    for last in ends:
        if last - first == b - a:
            same = True
            for i in range(b - a):
                byte = data[a + i]
                same &= (byte + 32 if 65 <= byte <= 90 else byte) == letters[first + i]
            if same:
                return True
        first = last
    return False


@kernel
def word_before(data, at, begin):  # type: ignore[no-untyped-def]
    """The word of ASCII letters before `at`, up to five marks or spaces in between, none of them a line end."""
    b = at
    while b > begin and at - b < 5 and not is_word(data[b - 1]) and data[b - 1] != 10:
        b -= 1
    a = b
    while a > begin and is_letter(data[a - 1]):
        a -= 1
    if a > begin and (is_digit(data[a - 1]) or data[a - 1] >= 0x80):
        a = b
    return a, b


@kernel
def follows(data, at, begin, letters, ends):  # type: ignore[no-untyped-def]
    """Whether one of the words stands before `at`, or before one that counts, such as 'number'."""
    a, b = word_before(data, at, begin)
    if a < b and is_listed(data, a, b, letters, ends):
        return True
    if a < b and is_listed(data, a, b, _COUNTING.letters, _COUNTING.ends):
        a, b = word_before(data, a, begin)
        return a < b and is_listed(data, a, b, letters, ends)
    return False


@kernel
def email_at(data, sign, begin, end):  # type: ignore[no-untyped-def]
    """The span of the e-mail address around the @ at `sign`; (0, 0) where there is none."""
    a = sign
    while a > begin and sign - a < 64:
        byte = data[a - 1]
        if not (is_digit(byte) or is_letter(byte) or byte == 46 or byte == 95 or byte == 37 or byte == 43 or byte == 45):
            break
        a -= 1
    while a < sign and (data[a] == 46 or data[a] == 45 or data[a] == 37):
        a += 1
    if a == sign or data[sign - 1] == 46:
        return 0, 0
    if a > begin and (data[a - 1] >= 0x80 or data[a - 1] == 47 or data[a - 1] == 64):
        return 0, 0
    if a > begin and data[a - 1] == 58:  # user:password@host of an address with a scheme
        k = a - 1
        while k > begin and data[k - 1] > 32 and a - k < 80:
            k -= 1
            if data[k] == 47 and k > begin and data[k - 1] == 47:
                return 0, 0
    k, label, stop, letters = sign + 1, sign + 1, 0, True
    while k <= end:
        byte = data[k] if k < end else np.uint8(32)
        if is_digit(byte) or is_letter(byte) or byte == 45:
            letters &= is_letter(byte)
            k += 1
            continue
        if k == label or data[label] == 45 or data[k - 1] == 45 or byte >= 0x80 or byte == 95:
            break
        if label > sign + 1 and letters and 2 <= k - label <= 18:
            stop = k
        elif label > sign + 1:
            stop = 0
        if byte != 46:
            break
        k, label, letters = k + 1, k + 1, True
    if stop == 0:
        return 0, 0
    if stop + 1 < end and data[stop] == 58 and data[stop + 1] > 32:  # git@host:path
        return 0, 0
    last = stop
    while data[last - 1] != 46:
        last -= 1
    if is_listed(data, last, stop, _FILES.letters, _FILES.ends):
        return 0, 0
    return a, stop


@kernel
def is_public(a, b, c):  # type: ignore[no-untyped-def]
    """Whether addresses that begin with these three numbers are routed on the internet (RFC 6890 and its like)."""
    if a == 0 or a == 10 or a == 127 or a >= 224:
        return False
    if (a == 100 and 64 <= b < 128) or (a == 169 and b == 254) or (a == 172 and 16 <= b < 32) or (a == 198 and (b == 18 or b == 19)):
        return False
    if a == 192 and (b == 168 or (b == 0 and (c == 0 or c == 2)) or (b == 88 and c == 99)):
        return False
    return not ((a == 198 and b == 51 and c == 100) or (a == 203 and b == 0 and c == 113))


@kernel
def ipv4_at(data, at, begin, end):  # type: ignore[no-untyped-def]
    """The end of the public IPv4 address at `at`, a digit; 0 where there is none."""
    if at > begin:
        byte = data[at - 1]
        if is_word(byte) or byte == 46 or byte == 45 or byte == 43 or (byte == 47 and (at - 2 < begin or data[at - 2] != 47)):
            return 0
    parts, first, last, k = (0, 0, 0), 0, 0, at
    for part in range(4):
        value, start = 0, k
        while k < end and is_digit(data[k]) and k - start < 4:
            value = 10 * value + data[k] - 48
            k += 1
        if k == start or k - start > 3 or value > 255 or (k - start > 1 and data[start] == 48):
            return 0
        first = value if part == 0 else first
        last = value
        if part < 3:
            parts = (parts[1], parts[2], value)
            if k >= end or data[k] != 46:
                return 0
            k += 1
    if k < end and (is_word(data[k]) or ((data[k] == 46 or data[k] == 45) and k + 1 < end and is_word(data[k + 1]))):
        return 0
    if not is_public(parts[0], parts[1], parts[2]) or follows(data, at, begin, _VERSION.letters, _VERSION.ends):
        return 0
    # Four small numbers are a version or a section far more often than one of the .8 % of addresses that look so.
    small = first < 32 and max(parts[1], parts[2], last) < 100
    named = at > begin and (data[at - 1] == 47 or follows(data, at, begin, _HOST.letters, _HOST.ends))
    return 0 if small and not named else k


@inlined
def hex_value(byte):  # type: ignore[no-untyped-def]
    """The value of a hexadecimal digit, -1 for another byte."""
    if 48 <= byte <= 57:
        return np.int64(byte) - 48
    if 97 <= byte <= 102:
        return np.int64(byte) - 87
    if 65 <= byte <= 70:
        return np.int64(byte) - 55
    return np.int64(-1)


@kernel
def ipv6_at(data, at, begin, end):  # type: ignore[no-untyped-def]
    """The end of the global unicast IPv6 address (2000::/3 without documentation) at `at`, a 2 or 3; 0 where there is none."""
    if at > begin and (is_word(data[at - 1]) or data[at - 1] == 58 or data[at - 1] == 46):
        return 0
    groups, double, k, first, second, stop = 0, False, at, 0, -1, at
    while k < end and groups < 8:
        value, start = 0, k
        while k < end and k - start < 5 and hex_value(data[k]) >= 0:
            value = 16 * value + hex_value(data[k])
            k += 1
        if k == start or k - start > 4 or (groups == 0 and k - start != 4):
            break
        first, second = (value, second) if groups == 0 else (first, value if groups == 1 and not double else second)
        groups, stop = groups + 1, k
        if k + 1 < end and data[k] == 58 and data[k + 1] == 58 and not double:
            double, k = True, k + 2
            stop = k
        elif k < end and data[k] == 58:
            k += 1
        else:
            break
    whole = (groups == 8 and not double) or (double and 2 <= groups <= 7)
    if not whole or (first == 0x2001 and second == 0xDB8) or not 0x2000 <= first <= 0x3FFF:
        return 0
    return 0 if stop < end and (is_word(data[stop]) or data[stop] == 58) else stop


@kernel
def scan_number(data, at, end):  # type: ignore[no-untyped-def]
    """Digits from `at` with up to two of space - . / ( ) between them: end after the last, digits, and lengths of groups in 4 bits each."""
    digits, group, groups, gap, stop, k = 0, 0, 0, 0, at, at
    while k < end and digits < 16:
        byte = data[k]
        if is_digit(byte):
            if gap:
                groups, group = groups << 4 | group, 0
            digits, group, gap, stop = digits + 1, group + 1, 0, k + 1
        elif (byte == 32 or 45 <= byte <= 47 or byte == 40 or byte == 41) and gap < 2 and digits:
            gap += 1
        else:
            break
        k += 1
    return stop, digits, groups << 4 | group


@kernel
def phone_at(data, at, begin, end):  # type: ignore[no-untyped-def]
    """The end of the telephone number at `at`, a digit, + or (; 0 where there is none.

    International numbers with +; North American ones; and after a word such as 'phone' any of 7 to 15 digits.
    """
    byte = data[at]
    if at > begin:
        before = data[at - 1]
        if is_word(before) or before == 43 or before == 46 or before == 47 or before == 35 or before == 36 or before == 61:
            return 0
        if before == 45 and (at - 2 < begin or data[at - 2] > 32):
            return 0
        if before == 40 and byte != 43 and not is_digit(byte):
            return 0
    first = at + int(not is_digit(byte))
    if first >= end or not is_digit(data[first]):
        return 0
    stop, digits, groups = scan_number(data, first, end)
    if stop < end and (is_word(data[stop]) or (45 <= data[stop] <= 47 and stop + 1 < end and is_digit(data[stop + 1]))):
        return 0
    if stop + 1 < end and data[stop] == 32 and is_digit(data[stop + 1]):
        return 0
    if byte == 43:
        return stop if data[first] != 48 and 8 <= digits <= 15 else 0
    if follows(data, at, begin, _ORDER.letters, _ORDER.ends):
        return 0
    if 7 <= digits <= 15 and follows(data, at, begin, _PHONE.letters, _PHONE.ends):
        return stop
    if byte == 40 and data[first] == 48:  # (030) 123456
        return stop if 9 <= digits <= 12 and 0x22 <= groups <= 0xFFFF and data[first + 1] != 41 else 0
    american = groups == 0x334 or (groups == 0x1334 and data[first] == 49)
    if not american or (groups == 0x1334 and byte == 40):
        return 0
    area = first + 2 * int(groups == 0x1334) + int(groups == 0x1334 and data[first + 2] == 40)
    if byte != 40 and data[area + 3] == 32:  # groups cut by spaces alone are any numbers
        return 0
    exchange = area + 4 + int(not is_digit(data[area + 4]))
    if byte != 40 and data[area + 3] != data[exchange + 3] and data[area + 3] != 41:  # 252.227-7013
        return 0
    return stop if data[area] >= 50 and data[exchange] >= 50 else 0


@kernel
def iban_at(data, at, begin, end):  # type: ignore[no-untyped-def]
    """The end of the IBAN (ISO 13616) at `at`, a capital letter, with its check digits right; 0 where there is none."""
    if (at > begin and is_word(data[at - 1])) or end - at < 15:
        return 0
    if not (65 <= data[at] <= 90 and 65 <= data[at + 1] <= 90 and is_digit(data[at + 2]) and is_digit(data[at + 3])):
        return 0
    length = _IBAN[26 * (np.int64(data[at]) - 65) + np.int64(data[at + 1]) - 65]
    if length == 0:
        return 0
    k, seen, rest = at + 4, 4, np.int64(0)
    while seen < length:
        if k < end and data[k] == 32 and seen % 4 == 0:
            k += 1
        if k >= end or not (is_digit(data[k]) or 65 <= data[k] <= 90):
            return 0
        value = np.int64(data[k]) - (48 if is_digit(data[k]) else 55)
        rest = (rest * (10 if value < 10 else 100) + value) % 97
        k, seen = k + 1, seen + 1
    if k < end and is_word(data[k]):
        return 0
    for i in range(4):
        value = np.int64(data[at + i]) - (55 if i < 2 else 48)
        rest = (rest * (100 if i < 2 else 10) + value) % 97
    return k if rest == 1 else 0
